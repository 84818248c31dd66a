"""`adapter/`: the best adapter of a run, as its method writes it, and a description of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from dypam import files
from dypam.config import ConfigError
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

    Raises:
        FileError: it cannot be written; an older one is still there.
    """
    with files.staged_directory(run_dir / "adapter", lease.guard) as aside:
        try:
            method.save(model, aside)
        except SafetensorError as error:  # how safetensors tells of a full disk
            raise files.FileError(
                f"{run_dir / 'adapter'} cannot be written ({error}): free disk space or look at the path; "
                "the same command then goes on."
            ) from error
        files.write_json(aside / DESCRIPTION, {**about, "adapter_digest": adapter_digest(aside)})


def adapter_digest(directory: Path) -> str:
    """Return the SHA-256 over an adapter's files, its descriptions (backbone.json, README.md) left out."""
    digest = hashlib.sha256()
    for name in files.files_under(directory):
        if str(name) not in (DESCRIPTION, "README.md"):
            digest.update(f"{name} {files.sha256_file(directory / name)}\n".encode())
    return digest.hexdigest()


def check_files(directory: Path) -> None:
    """Raise `ConfigError` unless the adapter's files are there, and are those that training wrote."""
    if not (directory / DESCRIPTION).exists():
        raise ConfigError(
            f"{directory.parent} has no adapter yet: run scripts/train.py with the same arguments."
        )
    if files.read_json(directory / DESCRIPTION)["adapter_digest"] != adapter_digest(directory):
        raise ConfigError(
            f"{directory} is damaged: its files are not those that training wrote; train again."
        )


def check_backbone(digest: str, directory: Path) -> None:
    """Raise `ConfigError` if the adapter's description names other backbone weights than `digest`'s."""
    about = directory / DESCRIPTION
    wanted = files.read_json(about).get("weights_digest") if about.exists() else None
    if wanted and wanted != digest:
        raise ConfigError(
            f"{directory}: the adapter was trained on other weights (digest {wanted[:12]}, these "
            f"have {digest[:12]}); set backbone.revision or backbone.path to its own backbone."
        )
