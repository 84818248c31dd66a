"""A backbone's directory, made once whatever happens: whole or absent, by one process of several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dypam.files import read_json, reporting, staged_directory, tidy, write_json
from dypam.lock import FileLock

PROOF = "source.json"
WHOLE = (PROOF, "config.json", "model.safetensors", "tokenizer.json")


def made_once(target: Path, proof: dict[str, Any], make: Callable[[Path], None]) -> Path:
    """Return a Transformers model directory, made now unless it is there, whole and by the same recipe.

    Args:
        target: the directory; it appears by one rename.
        proof: what it is made from; a directory with another proof is replaced.
        make: fills the empty directory that it is given.
    """
    if _is_whole(target, proof):
        return target
    lock = FileLock(target.with_name(target.name + ".lock"))
    with reporting(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.take()
    try:
        tidy(target.parent)
        if not _is_whole(target, proof):
            with staged_directory(target) as made:
                make(made)
                write_json(made / PROOF, proof)
    finally:
        lock.free()
    return target


def _is_whole(target: Path, proof: dict[str, Any]) -> bool:
    return all((target / name).is_file() for name in WHOLE) and read_json(target / PROOF) == proof
