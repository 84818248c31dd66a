"""The processes of a run: environment, process group, and what all of them must agree on.

Works under torchrun, the DeepSpeed launcher, and without a launcher.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from dypam.config import ConfigError

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LOCK_PATIENCE = 90.0
"""Seconds that a build of DeepSpeed's op may take (it takes 30); an older lock is a dead build's."""


def rank() -> int:
    """Return this process's rank, from the launcher's environment (0 without a launcher)."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes, from the launcher's environment (1 without a launcher)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def pick_device(device: str) -> str:
    """Return `cpu` or `cuda:N` for `runtime.device` (`auto`: a GPU where there is one, each process its own).

    Raises:
        ConfigError: a GPU is asked for that is not there, or one and the same for several processes.
    """
    import torch

    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    _, _, number = device.partition(":")
    if number and world_size() > 1:
        raise ConfigError(
            f"runtime.device={device} is one GPU for {world_size()} processes; set runtime.device=cuda."
        )
    index = int(number or os.environ.get("LOCAL_RANK", "0"))
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"runtime.device={device}: PyTorch sees {torch.cuda.device_count()} GPUs here, and process "
            f"{rank()} needs GPU {index}; set runtime.device=cpu or auto, or start fewer processes."
        )
    return f"cuda:{index}"


def start(device: str) -> None:
    """Join the process group through DeepSpeed (gloo on CPUs, NCCL on GPUs); nothing if it is joined already.

    Args:
        device: what `pick_device` returned.

    Raises:
        ConfigError: the launcher set only some of RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
    """
    import torch
    from torch import distributed

    _complete_environment()
    if device != "cpu":
        torch.cuda.set_device(device)
    if distributed.is_initialized():
        return
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    # The ninja that built DeepSpeed's op in set-up: another release of it would build the op anew.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ.get("PATH", "")])
    backend = "nccl"
    if device == "cpu":
        backend = "gloo"
        os.environ["DS_ACCELERATOR"] = "cpu"
        _wait_for_build(Path(os.environ["TORCH_EXTENSIONS_DIR"]))
    if world_size() == 1:  # a store in memory: no port to find free, no network
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    with contextlib.redirect_stdout(io.StringIO()):
        import deepspeed

        if device == "cpu":  # DeepSpeed may have been imported, and have chosen, long before
            from deepspeed.accelerator import cpu_accelerator, set_accelerator

            set_accelerator(cpu_accelerator.CPU_Accelerator())
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        deepspeed.init_distributed(dist_backend=backend, verbose=False)
    atexit.register(distributed.destroy_process_group)


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
