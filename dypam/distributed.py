"""The processes of a run: environment, process group, and what all of them must agree on.

Works under torchrun, the DeepSpeed launcher, and without a launcher.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from dypam.config import ConfigError

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LOCK_PATIENCE = 180.0
"""Seconds that a build of DeepSpeed's op may take (it takes 30); an older lock is a dead build's."""


def rank() -> int:
    """Return this process's rank, from the launcher's environment (0 without a launcher)."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes, from the launcher's environment (1 without a launcher)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def pick_device(device: str) -> str:
    """Return `cuda` or `cpu` for `runtime.device` (`auto`: a GPU where there is one).

    Raises:
        ConfigError: `cuda` is asked for and there is none.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("runtime.device=cuda: PyTorch sees no GPU here; set runtime.device=cpu or auto.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def start(device: str) -> None:
    """Join the process group through DeepSpeed (gloo on CPUs, NCCL on GPUs); nothing if it is joined already.

    Raises:
        ConfigError: the launcher set only some of RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
    """
    import torch
    from torch import distributed

    if device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "warning")
    _complete_environment()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if distributed.is_initialized():
        return
    if device == "cpu":
        _wait_for_build(Path(os.environ["TORCH_EXTENSIONS_DIR"]))
    import deepspeed

    backend = "gloo" if device == "cpu" else "nccl"
    if world_size() == 1:  # a store in memory: no port to find free, no network
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend=backend, verbose=False)


def sum_over_processes(values: list[float], device: str) -> list[float]:
    """Return the sums over all processes, in FP64 (one all-reduce; every process calls it)."""
    import torch
    from torch import distributed

    total = torch.tensor(values, dtype=torch.float64, device=device)
    if world_size() > 1:
        distributed.all_reduce(total)
    return total.tolist()


def gather(value: Any) -> list[Any] | None:
    """Return every process's picklable value on rank 0, None elsewhere (every process calls it)."""
    from torch import distributed

    if world_size() == 1:
        return [value]
    everyone = [None] * world_size() if rank() == 0 else None
    distributed.gather_object(value, everyone)
    return everyone


def broadcast(value: Any) -> Any:
    """Return rank 0's picklable value on every process (every process calls it)."""
    from torch import distributed

    if world_size() == 1:
        return value
    box = [value]
    distributed.broadcast_object_list(box)
    return box[0]


def _complete_environment() -> None:
    if os.environ.get("WORLD_SIZE", "1") == "1":
        for name, value in zip(LAUNCHER, ("0", "0", "1", "127.0.0.1", "0"), strict=True):
            os.environ.setdefault(name, value)
    missing = ", ".join(name for name in LAUNCHER if name not in os.environ)
    if missing:
        raise ConfigError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} is set but {missing} is not; "
            "start several processes by torchrun or the DeepSpeed launcher."
        )


def _wait_for_build(extensions: Path) -> None:
    """Let another process finish building DeepSpeed's op; remove a lock that a killed build left behind."""
    for lock in extensions.glob("*/lock"):
        while lock.exists():
            if time.time() - lock.stat().st_mtime > LOCK_PATIENCE:
                lock.unlink(missing_ok=True)
            time.sleep(0.2)
