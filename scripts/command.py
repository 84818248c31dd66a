"""What every script shares: its configuration, one sentence for what is wrong with it, sweeps, `--help`.

Exit codes: 0 done; 1 a failure with its traceback; 2 wrong input or data that cannot be had; 3 another worker
has the run; 75 the worker lost its lease; 130 and 143 interrupted.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from data.fetch import DataError
from dypam.config import ConfigError, RunConfig
from dypam.files import FileError
from dypam.lease import EXIT_CODE, LeaseHeld, LeaseLost
from dypam.record import read_status
from scripts import compose

ROOT = Path(__file__).resolve().parent.parent
FAILED, REFUSED, HELD, INTERRUPTED, PREEMPTED = 1, 2, 3, 130, 143

Stage = Callable[[RunConfig], None]


def main(stage: Stage, doc: str, arguments: list[str] | None = None) -> None:
    """Run a script: one run here, or with `-m` every run of a grid in a process of its own."""
    flags, overrides = split(sys.argv[1:] if arguments is None else arguments)
    _prepare_environment()
    with exit_codes():
        if flags & {"-h", "--help"}:
            print(compose.help_text(doc))
        elif not flags:
            stage(compose.run_config(overrides))
        elif flags <= {"-m", "--multirun"}:
            _sweep(stage, overrides)
        else:
            _hydra(stage)


def split(arguments: list[str]) -> tuple[set[str], list[str]]:
    """Return flags and overrides, less the DeepSpeed launcher's `--local_rank` (the environment has it)."""
    flags = {item for item in arguments if item.startswith("-") and not item.startswith("--local_rank")}
    return flags, [item for item in arguments if not item.startswith("-")]


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn what can go wrong into one sentence and an exit code."""
    try:
        yield
    except (ConfigError, DataError, FileError) as error:
        _leave(f"Error: {error}", REFUSED)
    except LeaseHeld as error:
        _leave(f"Busy: {error}", HELD)
    except LeaseLost as error:
        _leave(str(error), EXIT_CODE)
    except KeyboardInterrupt:
        _leave("Interrupted; the same command goes on from here.", INTERRUPTED)
    except Exception:
        _leave(traceback.format_exc(), FAILED)
    except BaseException as error:
        if type(error).__name__ != "Preempted":
            raise
        _leave("Preempted; the same command goes on from here.", PREEMPTED)


def _leave(message: str, code: int) -> None:
    print(message, file=sys.stderr, flush=True)
    sys.exit(code)


def _prepare_environment() -> None:
    """Let this process and its children find our packages, ninja and DeepSpeed's op built in set-up."""
    _prepend("PYTHONPATH", str(ROOT))
    _prepend("PATH", str(Path(sys.prefix) / "bin"))
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    # PEFT and DeepSpeed ask Transformers 5 for it
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)


def _prepend(name: str, folder: str) -> None:
    have = os.environ.get(name, "").split(os.pathsep)
    if folder not in have:
        os.environ[name] = os.pathsep.join([folder, *filter(None, have)])


def _sweep(stage: Stage, overrides: list[str]) -> None:
    """Check the whole grid, then run it one process a run; other launchers are Hydra's to drive."""
    jobs = [(job, compose.run_config(job)) for job in compose.grid(overrides)]
    if compose.launcher(overrides) != "here":
        return _hydra(stage)
    unfinished = []
    for number, (job, config) in enumerate(jobs, 1):
        print(f"[{number}/{len(jobs)}] {config.run_dir}", flush=True)
        code = _run_one(stage, job, config)
        if code in (INTERRUPTED, PREEMPTED):
            sys.exit(code)
        if code:
            unfinished.append((job, code))
    if unfinished:
        print(f"{len(unfinished)} of {len(jobs)} runs did not finish; to run them again:", file=sys.stderr)
        for job, code in unfinished:
            print(f"  python {sys.argv[0]} {shlex.join(job)}   # exit code {code}", file=sys.stderr)
        sys.exit(FAILED)


def _run_one(stage: Stage, job: list[str], config: RunConfig) -> int:
    """Return the exit code of one run of a grid; what is finished or failed before costs no new process."""
    status = None
    with suppress(FileError):
        status = read_status(config.run_dir)
    if status == "failed" and not config.runtime.retry_failed:
        print("failed before; runtime.retry_failed=true runs it again", file=sys.stderr)
        return FAILED
    if status != "finished":
        code = subprocess.run([sys.executable, sys.argv[0], *job]).returncode
        return 128 - code if code < 0 else code
    try:
        with exit_codes():
            stage(config)
    except SystemExit as ending:
        return int(ending.code or 0)
    return 0


def _hydra(stage: Stage) -> None:
    """Hand over to Hydra: its other flags (`--cfg job`, `--info`, …) and its launchers."""
    import hydra

    def task(config: Any) -> None:
        stage(compose.validated(config))

    sys.argv = [argument for argument in sys.argv if not argument.startswith("--local_rank")]
    hydra.main(version_base="1.3", config_path=str(compose.CONFIGS), config_name="config")(task)()
