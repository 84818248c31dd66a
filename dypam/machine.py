"""What makes a run repeatable: seeds, random states, deterministic kernels; and its peak memory."""

from __future__ import annotations

import gc
import os
import random
import resource
from typing import Any

import numpy as np
import torch


def make_deterministic(device: str) -> None:
    """Ask for the deterministic kernels on a GPU; on a CPU a fixed number of threads is enough."""
    if device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False


def seed(value: int) -> None:
    """Seed every global generator."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def random_state(device: str) -> dict[str, Any]:
    """Return the states of all global generators as tensors and plain values."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    state = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if device != "cpu":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: str) -> None:
    """Take back what `random_state` gave."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device != "cpu":
        torch.cuda.set_rng_state(state["cuda"], device)


def release(device: str) -> None:
    """Free the memory of what is not reachable any more, engine and model first of all."""
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def peak_memory(device: str) -> int:
    """Return the most bytes that this process had: PyTorch's on a GPU, resident ones on a CPU."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
