"""One run has one worker: a lease with a heartbeat, and a fence that keeps a former holder from writing.

`lease.json` names the holder and when it last renewed; its `token` rises with every takeover.  `guard` takes
the lock of `lease.lock` and reads the token again, so that between this check and the end of a write nobody
can take the lease over, and a worker that was stopped, replaced and continued is turned away.  A holder
that is known to be dead (same host; process gone or host restarted) loses its lease at once, any other one
after `ttl` seconds without renewal.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dypam.files import FileError, read_json, reporting, write_json
from dypam.lock import FileLock

EXIT_CODE = 75
"""With this code a worker ends that has lost its lease."""

_ending = threading.Lock()


class LeaseHeld(RuntimeError):  # noqa: N818
    """Another worker holds the run: one sentence with its process, host and age."""


class LeaseLost(RuntimeError):  # noqa: N818
    """The worker does not hold the run any more, and may not write."""


@dataclass(frozen=True)
class Holder:
    """A worker: its fencing token, and what tells whether its process is still alive."""

    token: int
    host: str
    boot_id: str
    namespace: str
    pid: int
    started: str | None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_gone(self) -> bool:
        """Whether the holder is known to be dead; false where that cannot be seen from here."""
        here = _myself(0)
        if self.host != here.host:
            return False
        if self.boot_id != here.boot_id:
            return True
        return self.namespace == here.namespace and self.started != _started(self.pid)


def _started(pid: int) -> str | None:
    """Return a process's start time in ticks since boot; None if there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _myself(token: int) -> Holder:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    pid = os.getpid()
    return Holder(token, socket.gethostname(), boot, os.readlink("/proc/self/ns/pid"), pid, _started(pid))


def _end_process(message: str) -> None:
    """End at once, without flushing or cleaning up: nothing more may be written."""
    with _ending:
        with suppress(OSError):
            os.write(2, f"{message}\n".encode())
        os._exit(EXIT_CODE)


class Lease:
    """The right to write into one run directory; make it with `acquire`."""

    def __init__(
        self, run_dir: Path, holder: Holder, ttl: float, lock: FileLock, on_lost: Callable[[str], None]
    ) -> None:
        self.run_dir = run_dir
        self.holder = holder
        self.ttl = ttl
        self._lock = lock
        self._on_lost = on_lost
        self._mutex = threading.RLock()
        self._depth = 0
        self._stop = threading.Event()
        self._renewed = 0.0

    @classmethod
    def acquire(
        cls,
        run_dir: str | Path,
        ttl: float = 60.0,
        *,
        wait: float | None = None,
        on_lost: Callable[[str], None] = _end_process,
    ) -> Lease:
        """Take the lease of `run_dir` (made if missing) and start its heartbeat.

        Seconds: `ttl` until others may take over from a holder that no longer renews, `wait` (default: the
        smaller of `ttl` and 10) until giving up on a holder that stands in the middle of a write.  `on_lost`
        is called from a thread or a signal handler, by default to end the process.

        Raises:
            LeaseHeld: another worker holds it.
            FileError: the directory cannot be made, written or locked.
        """
        run_dir = Path(run_dir).absolute()
        lock = FileLock(run_dir / "lease.lock")
        with reporting(run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)
            _refuse_if_held(run_dir)
            if not lock.take(min(ttl, 10.0) if wait is None else wait):
                raise _stands_still(run_dir)
        try:
            token = _refuse_if_held(run_dir) + 1
            lease = cls(run_dir, _myself(token), ttl, lock, on_lost)
            lease._write()
        except BaseException:
            lock.close()
            raise
        lock.free()
        lease._start()
        return lease

    def _start(self) -> None:
        atexit.register(self.release)
        threading.Thread(target=self._beat, name="lease", daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCONT, lambda *_: self._continued())

    def _beat(self) -> None:
        while not self._stop.wait(self.ttl / 4):
            try:
                self.renew()
            except LeaseLost as lost:
                return None if self._stop.is_set() else self._on_lost(str(lost))
            except (FileError, OSError):
                continue

    def _continued(self) -> None:
        """Look at the lease first of all after SIGCONT; without the lock, which may be ours."""
        if not self._stop.is_set() and os.getpid() == self.holder.pid:
            try:
                self.check()
            except LeaseLost as lost:
                self._on_lost(str(lost))

    def _write(self, released: bool = False) -> None:
        state = {**asdict(self.holder), "renewed": time.time(), "ttl": self.ttl, "released": released}
        write_json(self.run_dir / "lease.json", state)
        self._renewed = time.monotonic()

    def check(self) -> None:
        """Raise `LeaseLost` unless this process holds the lease."""
        found = _read(self.run_dir)
        if os.getpid() != self.holder.pid:
            raise LeaseLost(
                f"{self.run_dir}: a forked process may not write; only {self.holder} holds the run."
            )
        if self._stop.is_set():
            raise LeaseLost(f"{self.run_dir}: the lease was given back; acquire it again before writing.")
        if found is None or _holder(found) != self.holder:
            taker = _holder(found) if found else "nobody, since lease.json was removed or damaged"
            raise LeaseLost(
                f"{self.run_dir}: the lease of this worker ({self.holder}) ran out and belongs to {taker}; "
                "this worker ends and writes nothing more."
            )

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Check the lease and hold the run's lock: the only place to write.  Nests; raises `LeaseLost`."""
        if os.getpid() != self.holder.pid:
            self.check()
        with self._mutex:
            self._depth += 1
            try:
                if self._depth == 1:
                    self._take_lock()
                yield
                if self._depth == 1 and time.monotonic() - self._renewed > self.ttl / 4:
                    self._write()
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._lock.free()

    def _take_lock(self) -> None:
        try:
            self._lock.take()
        except FileNotFoundError as error:
            raise LeaseLost(f"{self.run_dir}: the run directory was removed; this worker ends.") from error
        self.check()

    def renew(self) -> None:
        """Tell other workers that this one is alive; raises `LeaseLost`."""
        with self.guard():
            self._write()

    def release(self) -> None:
        """Give the lease back, if it is still this process's; at exit this happens by itself."""
        if self._stop.is_set() or os.getpid() != self.holder.pid:
            return
        with suppress(LeaseLost, FileError, OSError), self.guard():
            self._write(released=True)
        self._stop.set()
        with self._mutex:
            self._lock.close()
        atexit.unregister(self.release)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _read(run_dir: Path) -> dict[str, Any] | None:
    """Return lease.json, None if it is missing or damaged (then nobody's claim can be told)."""
    try:
        state: dict[str, Any] = read_json(run_dir / "lease.json")
        _holder(state), state["renewed"] + state["ttl"], state["released"]
    except (FileNotFoundError, FileError, TypeError, KeyError):
        return None
    return state


def _holder(state: dict[str, Any]) -> Holder:
    return Holder(**{name: state[name] for name in Holder.__dataclass_fields__})


def _refuse_if_held(run_dir: Path) -> int:
    """Raise `LeaseHeld` if a holder is alive, as far as can be seen; return the last token given."""
    state = _read(run_dir)
    if state is None:
        return 0
    holder, age = _holder(state), time.time() - state["renewed"]
    # a renewal far in the future comes from a wrong clock, and is no better than an old one
    if not state["released"] and not holder.is_gone() and abs(age) <= state["ttl"]:
        raise LeaseHeld(
            f"{run_dir} is being worked on by {holder} (last sign of life {max(age, 0):.0f} s ago): wait "
            f"until it ends, or end it; it is replaced after {state['ttl']:g} s without a sign of life."
        )
    return holder.token


def held_by(run_dir: str | Path) -> str | None:
    """Return in one sentence which living worker has a run, None if it is free (a look, no promise)."""
    try:
        _refuse_if_held(Path(run_dir))
    except LeaseHeld as held:
        return str(held)
    return None


def _stands_still(run_dir: Path) -> LeaseHeld:
    state = _read(run_dir)
    return LeaseHeld(
        f"{run_dir} is locked by {_holder(state) if state else 'another process'}, which stands still in the "
        "middle of a write: end that process (kill -9) and start again."
    )
