"""A lock between processes: `flock` on a file, which the system frees when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from pathlib import Path

_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """An exclusive lock on `path`, which is made if missing and never removed.

    Two objects exclude one another, in one process as well.  Taking it twice is harmless, so that an
    exception out of a signal handler, wherever it strikes, cannot leave its own process locked out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        _locks.add(self)

    def take(self, wait: float | None = None) -> bool:
        """Take the lock; false if another still has it after `wait` seconds (None: wait for ever)."""
        end = time.monotonic() + (wait or 0)
        while True:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait is None else fcntl.LOCK_NB))
            except BlockingIOError:
                if time.monotonic() >= end:
                    self.close()
                    return False
                time.sleep(0.02)
                continue
            if self._is_current(self._descriptor):
                return True
            self.close()

    def _is_current(self, descriptor: int) -> bool:
        """Whether the path still leads to the file that is locked, and not to a new one or none."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def free(self) -> None:
        """Let others take the lock."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file; in the process that took the lock this frees it, in a forked copy it does not."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _close_all() -> None:
    """Close a forked process's copies, or the lock would outlive its holder with them."""
    for lock in _locks:
        lock.close()


os.register_at_fork(after_in_child=_close_all)
