"""`record.json`: what a run is, on what it ran, how far it came; and the refusal of what does not match.

Nothing here imports torch.  Every write is atomic and goes through the lease's guard.
"""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dypam import files
from dypam.config import ConfigError, RunConfig, differences
from dypam.lease import Lease
from dypam.provenance import git_state, hardware, versions

STAGES = ("train", "generate")
"""The stages that a finished run has behind it; scores are derived from its files at any time."""


EMPTY: dict[str, Any] = {"status": None, "identity": {}, "stages": {}, "seconds": {}, "attempts": []}
"""What every record has."""


class Preempted(BaseException):
    """SIGTERM came: not an error, and no `except Exception` holds it up.  Scripts exit with code 143."""


def read_record(run_dir: str | Path) -> dict[str, Any] | None:
    """Return a run's record, None if it has none; `FileError` if it is damaged or cannot be read."""
    path = Path(run_dir) / "record.json"
    try:
        record: dict[str, Any] = files.read_json(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise files.FileError(
            f"{path} cannot be read ({error.strerror or error}): give `results` a folder that can be, or "
            "correct its permissions."
        ) from error
    if not (isinstance(record, dict) and all(_fits(record, name) for name in EMPTY)):
        raise files.FileError(f"{path} is no run's record: restore it from a copy, or remove {path.parent}.")
    return record


def _fits(record: dict[str, Any], name: str) -> bool:
    """Whether a record has one of the fields of `EMPTY`, of its type."""
    return name in record and (EMPTY[name] is None or isinstance(record[name], type(EMPTY[name])))


def read_status(run_dir: str | Path) -> str | None:
    """Return `running` (or killed), `finished`, `failed`, `preempted`, or None for a run never started."""
    record = read_record(run_dir)
    return record["status"] if record else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Record:
    """The record of one run; `data` is the content of `record.json`.

    On processes other than the first (`lease=None`) it writes nothing.
    """

    def __init__(self, path: Path, data: dict[str, Any], lease: Lease | None) -> None:
        self.path = path
        self.data = data
        self._lease = lease
        self._phases: dict[str, float] = {}

    @classmethod
    def open(cls, run_dir: str | Path, config: RunConfig, lease: Lease | None) -> Record:
        """Open or prepare the record of `config` in `run_dir`; clear what a killed worker left there.

        Raises `ConfigError` if the directory holds a run with another identity, naming the keys that differ.
        Nothing is written before the first `stage` or `update`; a finished run's record stays as it is.
        """
        path = Path(run_dir) / "record.json"
        identity = files.as_json(config.identity())
        if lease:
            files.tidy(path.parent, lease.guard)
        data = read_record(run_dir)
        if data is None:
            data = {**copy.deepcopy(EMPTY), "identity": identity}
        elif differing := differences(data["identity"], identity):
            raise ConfigError(
                f"{run_dir} holds a run with another configuration ({'; '.join(differing)}): "
                "give this one another seed, name or run_dir, or remove that directory."
            )
        data["config"] = files.as_json(asdict(config))
        return cls(path, data, lease)

    @property
    def status(self) -> str | None:
        """Return `running`, `finished`, `failed` or `preempted`; None before the first attempt."""
        status: str | None = self.data["status"]
        return status

    def finished(self, stage: str | None = None) -> bool:
        """Whether one stage, or the whole run, is done and must not be done again."""
        return self.status == "finished" if stage is None else stage in self.data["stages"]

    def update(self, **fields: Any) -> None:
        """Set top-level fields (dicts are merged one level deep) and write the record."""
        for name, value in fields.items():
            old = self.data.get(name)
            self.data[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        self._write()

    def log(self, series: str, row: dict[str, Any]) -> None:
        """Append a row, which has its `step`, to a list such as `losses`; written by the next `update`.

        Call `update` before each checkpoint is saved: rows past a checkpoint are dropped by `rewind`, rows
        that come before one and were never written would be missing.
        """
        self.data.setdefault(series, []).append(row)

    def rewind(self, step: int) -> None:
        """Drop the rows of all series that come after `step`, when training goes on from there."""
        for name, rows in self.data.items():
            if isinstance(rows, list):
                self.data[name] = [
                    row for row in rows if not isinstance(row, dict) or row.get("step", 0) <= step
                ]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the block's wall time to `seconds[name]`; it sums over attempts."""
        self._phases[name] = time.monotonic()
        try:
            yield
        finally:
            self._count_time()
            self._phases.pop(name, None)

    def _count_time(self) -> None:
        """Move the time of the phases under way into `seconds`, so that a kill loses little of it."""
        now = time.monotonic()
        for name, start in self._phases.items():
            self.data["seconds"][name] = self.data["seconds"].get(name, 0.0) + now - start
            self._phases[name] = now

    def _write(self) -> None:
        self._count_time()
        if self._lease:
            files.write_json(self.path, self.data, self._lease.guard)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run one stage: `running`, then finished; `failed` with its message, or `preempted` on SIGTERM.

        A run that could not write is preempted too: it goes on when there is room.  A worker that lost its
        lease writes nothing: `LeaseLost`.  A refused start (`ConfigError` before anything was done) leaves no
        record, so that the corrected run can take its place.  The run is finished when all `STAGES` are.
        """
        self._begin(name)
        before = self._catch_sigterm()
        try:
            with self.phase(f"{name}_total"):
                yield
        except BaseException as error:
            with suppress(files.FileError):  # a full disk must not hide the reason
                why = f"{type(error).__name__}: {error}"
                if isinstance(error, Preempted | KeyboardInterrupt):
                    self._end("preempted")
                elif isinstance(error, files.FileError):
                    self._end("preempted", error=why)
                elif isinstance(error, ConfigError) and self._is_new():
                    self._withdraw()
                else:
                    self.fail(why)
            raise
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)
        self.finish(name)

    def _begin(self, stage: str) -> None:
        here = {"host": os.uname().nodename, "pid": os.getpid(), "git": git_state()}
        self.data["attempts"].append({"stage": stage, "started": _now(), "status": "running", **here})
        self.data["stages"].pop(stage, None)
        self.data.pop("error", None)
        self.update(status="running", versions=versions(), hardware=hardware(), git=here["git"])

    def _is_new(self) -> bool:
        return len(self.data["attempts"]) == 1 and not self.data.get("losses")

    def _withdraw(self) -> None:
        if self._lease:
            with self._lease.guard():
                self.path.unlink(missing_ok=True)

    def _catch_sigterm(self) -> Any:
        """Let SIGTERM raise `Preempted`; only the main thread can. Returns the handler before."""

        def preempt(*_: Any) -> None:
            raise Preempted

        try:
            return signal.signal(signal.SIGTERM, preempt)
        except ValueError:
            return None

    def _end(self, status: str, **fields: Any) -> None:
        if self.data["attempts"]:
            self.data["attempts"][-1].update(status=status, ended=_now())
        self.update(status=status, **fields)

    def finish(self, stage: str) -> None:
        """Mark one stage as done for good."""
        self.data["stages"][stage] = _now()
        done = all(name in self.data["stages"] for name in STAGES)
        if self.data["attempts"]:
            self.data["attempts"][-1].update(status="finished", ended=_now())
        self.update(status="finished" if done else "running")

    def fail(self, message: str) -> None:
        """Mark the run as failed, with the reason."""
        self._end("failed", error=message)
