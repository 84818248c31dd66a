"""Many runs on this machine: a queue over slots, and a server with all imports from which each run is forked.

Several sweeps may share a grid, here or over a common file system: a run has one worker (`dypam.lease`), and
what another one works on is left to it and looked at again at the end.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

from dypam.config import ConfigError, Runtime, differences
from dypam.files import FileError
from dypam.lease import EXIT_CODE, Lease, LeaseHeld, held_by
from dypam.provenance import visible_gpus
from dypam.record import Record, read_record
from scripts import command, compose
from scripts.forked import CONTEXT, preloads, start
from scripts.worker import Run, Worker, do

HELD = (command.HELD, EXIT_CODE)
STOPPED = {signal.SIGINT: command.INTERRUPTED, signal.SIGTERM: command.PREEMPTED}
LOG = "output.log"
LOOK_AGAIN = 2.0
"""Seconds between looks at runs that other workers have."""


def sweep(stage: command.Stage, done: command.Done, overrides: list[str], script: str) -> bool:
    """Run a stage of every run that overrides mean; return whether all finished, having said which did not.

    Args:
        stage: what is done for each run, a function of a module.
        done: whether it is done already; looks at files only.
        overrides: as given for `-m`; the whole grid is checked before the first run starts.
        script: the script that does the same for a single run.
    """
    runs = plan(overrides)
    if compose.launcher(overrides) == "here":
        Sweep(stage, done, runs).run()
    else:
        from scripts.launch import launch

        launch(stage, done, runs, overrides)
    return report(runs, script)


def plan(overrides: list[str]) -> list[Run]:
    """Return the runs that overrides mean, every one of them checked, and each once.

    Raises `ConfigError` where two that differ would share a directory.
    """
    runs: dict[str, Run] = {}
    for job in compose.grid(overrides):
        run = Run(len(runs) + 1, job, compose.run_config(job))
        first = runs.setdefault(os.path.abspath(run.config.run_dir), run)
        if differing := first is not run and differences(first.config.identity(), run.config.identity()):
            raise ConfigError(
                f"run_dir is {run.config.run_dir} for two runs that differ (run {first.number} is there, the "
                f"other here: {'; '.join(differing)}): put what differs into run_dir or a name."
            )
    return list(runs.values())


def settle(run: Run, done: command.Done) -> bool:
    """Tell, by a look at its files, whether a run is over: finished, failed before, or not to be had."""
    try:
        record = read_record(run.config.run_dir)
        run.tried = len(record["attempts"]) if record else 0
        if done(run.config):
            run.code = 0
        elif record and record["status"] == "failed" and not run.config.runtime.retry_failed:
            run.code, run.why = command.FAILED, f"failed before ({record.get('error')})"
    except (ConfigError, FileError, OSError) as error:  # one run's files never end the others
        run.code, run.why = command.REFUSED, str(error)
    return run.code is not None


def report(runs: list[Run], script: str) -> bool:
    """Say which runs did not finish, why, and the commands that repeat them; return whether all did."""
    left = [run for run in runs if run.code != 0]
    if left:
        print(f"{len(left)} of {len(runs)} runs did not finish; to run them again:", file=sys.stderr)
    for run in left:
        print(f"  python {script} {shlex.join(run.job)}   # exit code {run.code}: {run.why}", file=sys.stderr)
    return not left


def slots(runtime: Runtime) -> list[dict[str, str]]:
    """Return what each slot adds to its runs' environment: a GPU to each, in turn, or nothing on a CPU."""
    found = visible_gpus() if runtime.device in ("auto", "cuda") else []
    number = runtime.workers or max(len(found), 1)
    return [{"CUDA_VISIBLE_DEVICES": found[i % len(found)]} if found else {} for i in range(number)]


def share(runtime: Runtime, slots: list[dict[str, str]]) -> int | None:
    """Return the threads of each run: its share of the cores where several work on a CPU without a number."""
    on_gpu = runtime.device.startswith("cuda") or any(slots)
    if runtime.threads or on_gpu or len(slots) < 2:
        return runtime.threads
    return max(1, len(os.sched_getaffinity(0)) // len(slots))


class Sweep:
    """Runs a stage of many runs here, as many at once as there are slots; `run` does all of it.

    With one slot a run writes to the terminal, with several each into `output.log` of its directory.
    """

    def __init__(self, stage: command.Stage, done: command.Done, runs: list[Run]) -> None:
        self.stage, self.done, self.runs = stage, done, runs
        self.free = slots(runs[0].config.runtime)
        self.threads = share(runs[0].config.runtime, self.free)
        self.several = len(self.free) > 1
        self.waiting: deque[Run] = deque(runs)
        self.held: list[Run] = []
        self.busy: dict[Any, Worker] = {}
        self.modules = preloads(run.config for run in runs)
        self.stopping: signal.Signals | None = None
        self.own = 0
        self._said_waiting = False

    def run(self) -> None:
        """Work until every run has its exit code; end with 130 or 143 when a signal asks to stop."""
        before = {number: signal.signal(number, self._stop) for number in STOPPED}
        try:
            while self.busy or (not self.stopping and (self.waiting or self.held)):
                self._fill()
                self._wait()
        finally:
            for worker in self.busy.values():
                worker.process.kill()
                worker.process.join()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.stopping:
            print("Stopped; the same command goes on from here.", file=sys.stderr)
            sys.exit(STOPPED[self.stopping])
        finished = sum(run.code == 0 for run in self.runs)
        print(f"{finished} of {len(self.runs)} runs are finished, {self.own} by this sweep.", flush=True)

    def _fill(self) -> None:
        """Give every free slot a run that is to be done and that nobody has."""
        if not self.waiting:
            self.waiting.extend(run for run in self.held if not held_by(run.config.run_dir))
            self.held = [run for run in self.held if run not in self.waiting]
        while self.free and self.waiting and not self.stopping:
            run = self.waiting.popleft()
            if settle(run, self.done):
                continue
            if held_by(run.config.run_dir):
                self.held.append(run)
            else:
                self._start(run)

    def _start(self, run: Run) -> None:
        slot, (here, there) = self.free.pop(), connection.Pipe()
        config, log = run.config, None
        if self.several:
            config = replace(config, runtime=replace(config.runtime, progress=False, threads=self.threads))
            log = Path(config.run_dir) / LOG
        self._say(run, f"started{f', {log}' if log else ''}")
        process = CONTEXT.Process(target=do, args=(self.stage, config, slot, log, there))
        start(process, self.modules)
        there.close()
        self.busy[process.sentinel] = Worker(process, run, slot, here, time.monotonic())
        if self.stopping:  # the signal came in the middle of this
            self.busy[process.sentinel].stop()

    def _wait(self) -> None:
        """Wait for a run to end, or for as long as runs of others may be left alone."""
        if self.busy:
            for sentinel in connection.wait(list(self.busy), LOOK_AGAIN if self.held else None):
                self._end(self.busy.pop(sentinel))
        elif self.held and not self.stopping:
            if not self._said_waiting:
                reason = held_by(self.held[0].config.run_dir) or "it was given back just now."
                print(f"Waiting for {len(self.held)} runs that other workers have: {reason}", flush=True)
                self._said_waiting = True
            time.sleep(LOOK_AGAIN)

    def _end(self, worker: Worker) -> None:
        """Take note of how a run ended."""
        run, code = worker.run, worker.code()
        self.free.append(worker.slot)
        minutes = (time.monotonic() - worker.start) / 60
        # an orphan of a fork server that was killed works on
        if code in HELD or (code and held_by(run.config.run_dir)):
            self.held.append(run)
            return self._say(run, "another worker has it; later")
        run.code, run.why = code, worker.why()
        if worker.ended_by and worker.ended_by not in STOPPED and not self.stopping:
            _note_death(run)
        self.own += code == 0 and worker.did_it()
        over = sum(run.code is not None for run in self.runs)
        outcome = "finished" if code == 0 else f"did not finish ({run.why})"
        self._say(run, f"{outcome}, {minutes:.1f} min; {over} of {len(self.runs)} done")

    def _say(self, run: Run, what: str) -> None:
        print(f"[{run.number}/{len(self.runs)}] {run.config.run_dir}: {what}", flush=True)

    def _stop(self, number: int, _: Any) -> None:
        """Ask all runs to stop where they can go on exactly; asked again, end them at once."""
        for worker in self.busy.values():
            worker.process.kill() if self.stopping else worker.stop()
        self.stopping = signal.Signals(number)


def _note_death(run: Run) -> None:
    """Write the end of a run whose process could not do it itself into its record."""
    with suppress(LeaseHeld, FileError, ConfigError), Lease.acquire(run.config.run_dir) as lease:
        record = Record.open(run.config.run_dir, run.config, lease)
        if not record.finished():
            record.fail(run.why)
