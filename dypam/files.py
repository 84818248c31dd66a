"""The one place that writes files: a reader sees the old content or the new one, never a part.

Everything takes an optional `guard`, such as `Lease.guard`: a function that returns a context manager in
which, and only in which, this process may change the directory.  Names that start with `.tmp-` or `.old-`
are this module's; `tidy` clears what a killed process left of them.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import math
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from dypam import events

Guard = Callable[[], AbstractContextManager[Any]]
TEMPORARY, OLD = ".tmp-", ".old-"


class FileError(RuntimeError):
    """A file cannot be written or is damaged: one sentence with the path and the fix."""


def _enter(guard: Guard | None) -> AbstractContextManager[Any]:
    return guard() if guard else nullcontext()


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the block, which writes `path`, into a `FileError`."""
    try:
        yield
    except OSError as error:
        fix = "check that the path can be written"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            fix = "free disk space or raise the quota; the same command then goes on"
        raise FileError(f"{path} cannot be written ({error.strerror or error}): {fix}.") from error


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_interruptibly(descriptor: int, content: bytes, event: str) -> None:
    """Write `content`, and let a fault test strike with half of it written."""
    if events.due(event):
        half = len(content) // 2
        half += content[half - 1 : half] == b"\n"  # in the middle of a line, not after one
        _write_all(descriptor, content[:half])
        events.strike(event)
        content = content[half:]
    _write_all(descriptor, content)
    os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary(path: Path) -> Path:
    """Return an unused name beside `path` that tells which process made it."""
    return path.with_name(
        f"{TEMPORARY}{path.name}-{os.urandom(4).hex()}-{os.getpid()}@{socket.gethostname()}"
    )


def write_atomic(path: Path, content: bytes | str, guard: Guard | None = None) -> None:
    """Replace `path` by `content`: written aside, synced, renamed, the directory synced.

    Raises `FileError`, with the old content still in place, if the disk is full or the path is no good.
    """
    data = content.encode() if isinstance(content, str) else content
    with _enter(guard), reporting(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = temporary(path)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            try:
                _write_interruptibly(descriptor, data, f"{path.stem}.write")
            finally:
                os.close(descriptor)
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)


def as_json(value: Any) -> Any:
    """Return `value` as JSON has it: paths as text, NumPy scalars as numbers, NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any, guard: Guard | None = None) -> None:
    """Write `value` as indented JSON in its own key order; not-finite numbers become null."""
    write_atomic(path, json.dumps(as_json(value), indent=2, ensure_ascii=False) + "\n", guard)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; `FileError` if it is torn or otherwise not JSON."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        fix = "restore it from a copy, or remove it to have it made again"
        raise FileError(f"{path} is damaged ({str(error).splitlines()[0]}): {fix}.") from error


def _whole_lines(content: bytes) -> int:
    """Return the length of `content` up to and with its last newline."""
    return content.rfind(b"\n") + 1


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]], guard: Guard | None = None) -> None:
    """Append each row as a line of JSON: one write, synced; a torn last line is cut off before.

    On failure (a full disk) the file is as long as before.
    """
    content = "".join(json.dumps(as_json(row), ensure_ascii=False) + "\n" for row in rows).encode()
    with _enter(guard), reporting(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            length = os.fstat(descriptor).st_size
            if length and os.pread(descriptor, 1, length - 1) != b"\n":
                length = _whole_lines(path.read_bytes())
                os.ftruncate(descriptor, length)
            try:
                _write_interruptibly(descriptor, content, f"{path.parent.name}.mid_line")
            except BaseException:
                os.ftruncate(descriptor, length)
                raise
        finally:
            os.close(descriptor)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file up to the first line that is torn or no JSON object; [] if missing."""
    rows: list[dict[str, Any]] = []
    with suppress(FileNotFoundError, ValueError), open(path, "rb") as lines:
        for line in lines:
            row = json.loads(line)
            if not line.endswith(b"\n") or not isinstance(row, dict):
                break
            rows.append(row)
    return rows


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def files_under(directory: Path) -> list[Path]:
    """Return the files under `directory`, relative to it, sorted by name."""
    return sorted(path.relative_to(directory) for path in directory.rglob("*") if not path.is_dir())


def sync_tree(directory: Path) -> None:
    """Bring every file and folder under `directory`, and itself, to the disk."""
    with reporting(directory):
        for folder, _, names in os.walk(directory, topdown=False):
            for name in names:
                with open(os.path.join(folder, name), "rb") as content:
                    os.fsync(content.fileno())
            _sync_directory(Path(folder))


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one system call (Linux `renameat2`); false where it cannot be done."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    here, exchange = -100, 2
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def replace_directory(tmp: Path, final: Path, guard: Guard | None = None) -> None:
    """Put the directory `tmp` in the place of `final` (which may be missing), both in one parent.

    One system call where the file system can swap; else `final` is first renamed aside, and `tidy` brings it
    back if the process ends between the two renames.
    """
    sync_tree(tmp)
    old = final.with_name(f"{OLD}{final.name}")
    with _enter(guard), reporting(final):
        if not final.exists():
            os.rename(tmp, final)
        elif _exchange(tmp, final):
            events.reach(f"{final.name}.between_renames")
            shutil.rmtree(tmp)
        else:
            shutil.rmtree(old, ignore_errors=True)
            os.rename(final, old)
            events.reach(f"{final.name}.between_renames")
            os.rename(tmp, final)
            shutil.rmtree(old)
        _sync_directory(final.parent)


@contextmanager
def staged_directory(final: Path, guard: Guard | None = None) -> Iterator[Path]:
    """Yield an empty directory beside `final` that takes its place if the block ends well, else vanishes."""
    with _enter(guard), reporting(final):
        tmp = temporary(final)
        tmp.mkdir(parents=True)
    try:
        with reporting(final):
            yield tmp
        replace_directory(tmp, final, guard)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise


def remove_directory(path: Path, guard: Guard | None = None) -> None:
    """Remove a directory so that no part of it is ever seen under its name."""
    with _enter(guard), reporting(path):
        aside = temporary(path)
        os.rename(path, aside)
        shutil.rmtree(aside)


def _is_abandoned(path: Path) -> bool:
    """Whether a temporary name was made by a process of this host that is no more."""
    rest, _, host = path.name.rpartition("@")
    return host == socket.gethostname() and not Path("/proc", rest.rpartition("-")[2]).exists()


def tidy(directory: Path, guard: Guard | None = None) -> None:
    """Clear under `directory` what a killed process left, and bring back what it had moved aside.

    With a guard every temporary name goes, since no other process may write there; without one, those of
    this host's dead processes.
    """
    with _enter(guard):
        for path in sorted(directory.rglob(f"{TEMPORARY}*")):
            if guard or _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        for path in sorted(directory.rglob(f"{OLD}*")):
            final = path.with_name(path.name.removeprefix(OLD))
            shutil.rmtree(path) if final.exists() else os.rename(path, final)
