"""Training checkpoints: whole or absent, whatever engine writes them.

A checkpoint is written aside, its manifest holds the SHA-256 of each of its files, and one rename makes it
`checkpoints/step-000200`.  On the way back every digest is verified: DeepSpeed itself loads flipped bits, and
starts over where its `latest` is missing, without a word.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dypam import events, files
from dypam.lease import Lease, LeaseLost

MANIFEST, STATE = "manifest.json", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: optimizer step, directory, and the `state` that was saved with it."""

    step: int
    path: Path
    state: dict[str, Any]


def damage(path: Path) -> str | None:
    """Say what is wrong with the checkpoint at `path`, or return None if every file is as it was written."""
    try:
        manifest = files.read_json(path / MANIFEST)
        digests: dict[str, str] = manifest["files"]
        if path.name != _name(manifest["step"]):
            return f"its manifest is that of step {manifest['step']}"
        found = {str(name) for name in files.files_under(path)} - {MANIFEST}
        for name in sorted(found ^ digests.keys()):
            return f"{name} is " + ("missing" if name in digests else "not in its manifest")
        for name, digest in digests.items():
            if files.sha256_file(path / name) != digest:
                return f"{name} has another content than when it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (files.FileError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return f"{MANIFEST} or a file it names cannot be read"
    return None


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _reason(error: Exception | None) -> str | None:
    """Return an error's first line, without its full stop."""
    if error is None:
        return None
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


class Checkpoints:
    """The checkpoints of one run, of which the newest `keep` up to the one just saved are kept.

    Every process has one: process 0 holds the lease and does all that concerns the whole, the others
    (`lease=None`) write only their own files.  With several processes, `share` returns process 0's value on
    all of them, and `gather` everyone's values on process 0 (None elsewhere).
    """

    def __init__(
        self,
        run_dir: str | Path,
        lease: Lease | None,
        keep: int = 2,
        *,
        share: Callable[[Any], Any] = lambda value: value,
        gather: Callable[[Any], list[Any] | None] = lambda value: [value],
        warn: Callable[[str], object] = lambda message: print(message, file=sys.stderr),
    ) -> None:
        self.directory = Path(run_dir) / "checkpoints"
        self.lease = lease
        self.keep = keep
        self._share, self._gather, self._warn = share, gather, warn
        self._told: set[Path] = set()

    def save(self, step: int, write: Callable[[Path], object], state: dict[str, Any]) -> Path:
        """Save what `write` puts into the directory it is given, and `state` (plain JSON).

        All processes call it.  Returns the checkpoint's path.  Raises `FileError` on all of them, with
        nothing left behind, where one cannot write.
        """
        final = self.directory / _name(step)
        tmp = self._share(self._prepare(final) if self.lease else None)
        cause: Exception | None = None
        try:
            write(tmp)
        except LeaseLost:
            raise
        except Exception as error:
            cause = error
        failures = self._gather(_reason(cause))
        outcome = self._publish(step, tmp, final, state, failures or []) if self.lease else None
        if outcome := self._share(outcome):
            raise files.FileError(
                f"checkpoint {final} cannot be written ({outcome}): free disk space or look at the path; "
                "the same command then goes on from the last whole checkpoint."
            ) from cause
        return final

    def _prepare(self, final: Path) -> Path:
        """Make the directory to write into; its name is new, so that no former worker can write there too."""
        assert self.lease
        tmp = files.temporary(final)
        with self.lease.guard():
            tmp.mkdir(parents=True)
        return tmp

    def _publish(
        self, step: int, tmp: Path, final: Path, state: dict[str, Any], failures: list[str | None]
    ) -> str | None:
        """Make `tmp` the checkpoint, or remove it; return what went wrong."""
        assert self.lease
        if failure := next(filter(None, failures), None):
            shutil.rmtree(tmp, ignore_errors=True)
            return failure
        try:
            files.write_json(tmp / STATE, state)
            digests = {str(name): files.sha256_file(tmp / name) for name in files.files_under(tmp)}
            files.write_json(tmp / MANIFEST, {"step": step, "files": digests})
            events.reach("checkpoint.before_rename")
            files.replace_directory(tmp, final, self.lease.guard)
            older = [path for path in self._all() if int(path.name[5:]) <= step]
            for path in set(self._all()) - set(older[-self.keep :]):
                files.remove_directory(path, self.lease.guard)
        except (OSError, files.FileError) as error:
            self.lease.check()
            shutil.rmtree(tmp, ignore_errors=True)
            return _reason(error)
        return None

    def _all(self) -> list[Path]:
        """Return the checkpoints' directories, oldest first, whole or not."""
        return sorted(self.directory.glob("step-*"), key=lambda path: (len(path.name), path.name))

    def newest_whole(self) -> Checkpoint | None:
        """Return the newest checkpoint whose every digest is right, None if there is none.

        Damaged ones are named once and passed over.  Call it on one process and share the answer: it reads
        every byte of the checkpoint.
        """
        for path in reversed(self._all()):
            fault = damage(path)
            if fault is None:
                return Checkpoint(int(path.name[5:]), path, files.read_json(path / STATE))
            if path not in self._told:
                self._told.add(path)
                self._warn(f"checkpoint {path} is damaged and passed over: {fault}.")
        return None

    def clear(self) -> None:
        """Remove all checkpoints, after the run's end (process 0 only)."""
        assert self.lease
        for path in self._all():
            files.remove_directory(path, self.lease.guard)
