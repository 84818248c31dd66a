"""`adapter/`: the best adapter of a run, as its method writes it, and a description of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from torch import nn

from dypam import files
from dypam.lease import Lease
from dypam.method import Method

DESCRIPTION = "backbone.json"


def save_adapter(
    method: Method, model: nn.Module, run_dir: Path, lease: Lease, about: dict[str, Any]
) -> None:
    """Put the model's adapter into `run_dir/adapter` in the place of an older one, by one rename.

    Args:
        method: the method that attached it.
        model: the adapted model.
        run_dir: the run's directory.
        lease: the right to write there.
        about: what its description says, such as backbone and step; `adapter_digest` is added.
    """
    with files.staged_directory(run_dir / "adapter", lease.guard) as aside:
        method.save(model, aside)
        files.write_json(aside / DESCRIPTION, {**about, "adapter_digest": adapter_digest(aside)})


def adapter_digest(directory: Path) -> str:
    """Return the SHA-256 over an adapter's files, its descriptions (backbone.json, README.md) left out."""
    digest = hashlib.sha256()
    for name in files.files_under(directory):
        if str(name) not in (DESCRIPTION, "README.md"):
            digest.update(f"{name} {files.sha256_file(directory / name)}\n".encode())
    return digest.hexdigest()
