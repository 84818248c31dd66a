"""One run of a sweep, and the process that does it."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dypam.config import RunConfig
from dypam.files import FileError, reporting
from dypam.record import read_record
from scripts import command


@dataclass(eq=False)
class Run:
    """One run of a grid: its place in it, overrides and configuration; then its exit code, and why.

    `tried` is the number of attempts that its record held before this sweep looked whether it is over.
    """

    number: int
    job: list[str]
    config: RunConfig
    code: int | None = None
    why: str = ""
    tried: int = 0


@dataclass
class Worker:
    """A process that has a run: its slot, the line to it, and when it began."""

    process: Any
    run: Run
    slot: dict[str, str]
    line: Any
    start: float

    def stop(self) -> None:
        """Ask it to stop; by a message too, as the signal is lost on a process that has only just begun."""
        with suppress(OSError):
            self.line.send("stop")
        self.process.terminate()

    @property
    def ended_by(self) -> int:
        """Return the number of the signal that ended it, 0 if it ended itself."""
        return max(-self.process.exitcode, 0)

    def code(self) -> int:
        """Return the exit code, of a killed process as a shell has it."""
        self.process.join()
        code: int = self.process.exitcode
        return 128 - code if code < 0 else code

    def did_it(self) -> bool:
        """Tell whether the run was not finished by another worker while this one was about to begin."""
        record = read_record(self.run.config.run_dir)
        by = {attempt["pid"] for attempt in record["attempts"][self.run.tried :]} if record else set()
        return not by or self.process.pid in by

    def why(self) -> str:
        """Return what a process that did not finish said of it, in a line."""
        if self.ended_by:
            name = signal.Signals(self.ended_by).name
            return f"killed by {name}{', out of memory?' if name == 'SIGKILL' else ''}"
        with suppress(EOFError, OSError):
            return str(self.line.recv())
        return "" if self.process.exitcode == 0 else "its process vanished"


def do(
    stage: command.Stage, config: RunConfig, environment: dict[str, str], log: Path | None, line: Any
) -> None:
    """Do one run in a fresh process; Ctrl-C, which all get, is the sweep's to answer."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if line.poll():  # asked to stop while SIGTERM was still ignored, as it is by the server
        sys.exit(command.PREEMPTED)
    gc.freeze()  # what is imported stays; no need to walk through it at every collection
    command.prepare_environment()
    os.environ.update(environment)
    try:
        with reporting(log) if log else nullcontext():
            if log:
                _redirect(log)
            code, why = command.outcome(stage, config)
    except FileError as error:  # not even the reason can be written
        code, why = command.REFUSED, f"Error: {error}"
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    with suppress(OSError):  # an orphan of a server that was killed: nobody listens
        line.send(why)
    sys.exit(code)


def _redirect(log: Path) -> None:
    """Let this process write into `log`, behind what it holds."""
    log.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(output, stream)
