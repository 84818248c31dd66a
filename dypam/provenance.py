"""On what a run ran: versions, hardware, git; read without importing torch."""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "peft", "deepspeed", "accelerate", "datasets", "tokenizers", "numpy")


def _output(*command: str, **environment: str) -> str | None:
    """Return what a command prints, None if it fails or takes longer than 10 s."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, env={**os.environ, **environment}
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def git_state() -> dict[str, Any] | None:
    """Return the commit of this source tree and whether it differs from it; None outside a repository."""
    git = ("git", "-C", str(Path(__file__).parents[1]))
    commit = _output(*git, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _output(*git, "status", "--porcelain", GIT_OPTIONAL_LOCKS="0")
    return {"commit": commit.strip(), "dirty": bool(changes)}


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that results depend on (None: not installed)."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def _field(path: str, name: str) -> str | None:
    """Return the first value of a `name : value` line of a /proc file."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is not None:
        if not torch.cuda.is_available():
            return []
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if shutil.which("nvidia-smi") is None:
        return []
    return (_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or "").split("\n")[:-1]


def hardware() -> dict[str, Any]:
    """Return CPU model, usable cores, memory in GiB and the names of the GPUs."""
    kilobytes = (_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(kilobytes) / 2**20, 1),
        "gpus": _gpus(),
        "system": platform.platform(),
    }


def visible_gpus() -> list[str]:
    """Return the GPUs that a process started here may use, as CUDA_VISIBLE_DEVICES names them; no torch."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return (_output("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader") or "").split()
    names = [name.strip() for name in given.split(",")]
    return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
