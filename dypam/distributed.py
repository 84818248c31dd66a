"""The processes of a run: environment, process group, and what all of them must agree on.

Works under torchrun, the DeepSpeed launcher, and without a launcher.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
import io
import logging
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from dypam.config import ConfigError

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LOCK_AGE = 30.0
"""Seconds after which a lock on DeepSpeed's op, in whose folder nobody works, is that of a killed build."""


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

    _check_environment()
    if device != "cpu":
        torch.cuda.set_device(device)
    if distributed.is_initialized():
        return
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    # where ninja is, should DeepSpeed's op have to be built
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ.get("PATH", "")])
    backend = "nccl"
    if device == "cpu":
        backend = "gloo"
        os.environ["DS_ACCELERATOR"] = "cpu"
    if world_size() == 1:  # a store in memory: no port to find free, no network
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    with contextlib.redirect_stdout(io.StringIO()):
        import deepspeed

        if device == "cpu":  # DeepSpeed may have been imported, and have chosen, long before
            from deepspeed.accelerator import cpu_accelerator, set_accelerator

            set_accelerator(cpu_accelerator.CPU_Accelerator())
            _load_communication_op(Path(os.environ["TORCH_EXTENSIONS_DIR"]))
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


def _check_environment() -> None:
    missing = ", ".join(name for name in LAUNCHER if name not in os.environ)
    if missing and world_size() > 1:
        raise ConfigError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} is set but {missing} is not; "
            "start several processes by torchrun or the DeepSpeed launcher."
        )


def _load_communication_op(extensions: Path) -> None:
    """Load DeepSpeed's CPU op, built in set-up or now; one process at a time, whatever a killed build left.

    PyTorch waits for ever on the lock file of a build that was killed, and builds anew for another ninja.
    """
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    builder = ShareMemCommBuilder()
    if not builder.is_compatible():
        return
    folder = extensions / builder.NAME
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "dypam.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if built := _built_op(folder / f"{builder.NAME}.so"):
            OpBuilder._loaded_ops[builder.NAME] = built
            return
        lock = folder / "lock"
        while lock.exists() and (_is_built_in(folder) or time.time() - lock.stat().st_mtime < LOCK_AGE):
            time.sleep(0.5)
        lock.unlink(missing_ok=True)
        builder.load(verbose=False)


def _built_op(library: Path) -> ModuleType | None:
    """Return the op of a library that was built for the PyTorch installed here, None if there is none."""
    import torch

    if not library.is_file() or library.stat().st_mtime < Path(torch.version.__file__).stat().st_mtime:
        return None
    spec = importlib.util.spec_from_file_location(library.stem, library)
    assert spec
    assert spec.loader
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:
        return None
    return module


def _is_built_in(folder: Path) -> bool:
    """Tell whether some process of this machine works in `folder`, as ninja and the compiler do."""
    for process in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if process.readlink() == folder:
                return True
    return False
