"""Start a group of processes as a launcher would, and wait for them."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(rank: int = 0, world: int = 1, port: int | None = None, **extra: str) -> dict[str, str]:
    """What torchrun would set for this rank, one thread each, DeepSpeed on the CPU."""
    root = Path(__file__).parents[2]
    launcher = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    clean = {key: value for key, value in os.environ.items() if key not in launcher}
    own = {key: str(value) for key, value in launcher.items()} if world > 1 else {}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {
        **clean,
        **own,
        "PATH": path,
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        **extra,
    }


@contextmanager
def group(command: list[str], world: int = 1, **extra: str) -> Iterator[list[subprocess.Popen]]:
    """Start `python COMMAND` as `world` processes; whatever happens, none outlives the block."""
    port = free_port()
    everyone = [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment(rank, world, port, **extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        yield everyone
    finally:
        for process in everyone:
            process.kill()
            process.communicate()


def run(command: list[str], world: int = 1, expect: int | None = 0, **extra: str) -> list[str]:
    """Run a group to its end and return the outputs; an exit status other than `expect` fails the test."""
    with group(command, world, **extra) as everyone:
        outputs = [process.communicate(timeout=240)[0] for process in everyone]
        for process, output in zip(everyone, outputs, strict=True):
            assert expect is None or process.returncode == expect, output[-4000:]
    return outputs
