"""What every script shares: its configuration, one sentence for what is wrong with it, sweeps, `--help`.

Exit codes: 0 done; 1 a failure with its traceback; 2 wrong input, or data or predictions that are not there;
3 another worker has the run; 75 the worker lost its lease; 130 and 143 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.fetch import DataError
from dypam.config import ConfigError, RunConfig
from dypam.files import FileError
from dypam.lease import EXIT_CODE, LeaseHeld, LeaseLost
from dypam.record import Preempted
from eval.score import ScoreError
from scripts import compose, usage

if TYPE_CHECKING:
    from eval.layout import Table

ROOT = Path(__file__).resolve().parent.parent
FAILED, REFUSED, HELD, INTERRUPTED, PREEMPTED = 1, 2, 3, 130, 143

Stage = Callable[[RunConfig], None]
Done = Callable[[RunConfig], bool]


def never(config: RunConfig) -> bool:
    """Whether a stage is done that looks for itself at what there is to do."""
    return False


def main(stage: Stage, doc: str, done: Done = never) -> None:
    """Run a script: one run here, or with `-m` every run of a grid in a process of its own.

    `done` tells from files alone whether there is nothing to do for a run; a sweep then starts no process.
    """
    flags, overrides = split(sys.argv[1:])
    prepare_environment()
    with exit_codes():
        if flags & {"-h", "--help"}:
            print(usage.help_text(doc))
        elif not flags:
            stage(compose.run_config(compose.single(overrides)))
        elif flags <= {"-m", "--multirun"}:
            from scripts.sweep import sweep

            sys.exit(0 if sweep(stage, done, overrides, sys.argv[0]) else FAILED)
        else:
            _hydra()


def drawing(draw: Callable[[list[str], bool], Any], doc: str) -> None:
    """Run a script that draws a table: `draw(overrides, pdf)`, with `--pdf` and `--help` as its flags."""
    with exit_codes():
        flags, overrides = asked(doc, "--pdf")
        draw(overrides, "--pdf" in flags)


def asked(doc: str, *known: str) -> tuple[set[str], list[str]]:
    """Return the flags and overrides that a script was given; print its help and end, if that is asked for.

    Raises:
        ConfigError: a flag that is not one of `known`, `-m` (runs are named as for run.py -m) and `--help`.
    """
    flags, overrides = split(sys.argv[1:])
    if flags & {"-h", "--help"}:
        print(usage.help_text(doc))
        sys.exit()
    if unknown := flags - {"-m", *known}:
        wrong, name = " ".join(sorted(unknown)), Path(sys.argv[0]).name
        raise ConfigError(f"{wrong} is no flag of {name}; it has {' and '.join([*known, '--help'])}.")
    return flags, overrides


def show_table(table: Table, directory: Path, *, pdf: bool) -> list[Path]:
    """Print a table, write its files into `directory`, say what is missing; return the files."""
    from eval import render

    print(render.to_text(table))
    for key, why in table.missing.items():
        print(f"missing: {key}: {why}", file=sys.stderr)
    paths = render.write(table, directory, pdf=pdf)
    print(f"written: {', '.join(map(str, paths))}")
    return paths


def split(arguments: list[str]) -> tuple[set[str], list[str]]:
    """Return flags and overrides, less the DeepSpeed launcher's `--local_rank` (the environment has it)."""
    flags = {item for item in arguments if item.startswith("-") and not item.startswith("--local_rank")}
    return flags, [item for item in arguments if not item.startswith("-")]


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn what can go wrong into one sentence and an exit code."""
    try:
        yield
    except (ConfigError, DataError, FileError, ScoreError) as error:
        _leave(f"Error: {error}", REFUSED)
    except LeaseHeld as error:
        _leave(f"Busy: {error}", HELD)
    except LeaseLost as error:
        _leave(str(error), EXIT_CODE)
    except KeyboardInterrupt:
        _leave("Interrupted; the same command goes on from here.", INTERRUPTED)
    except Preempted:
        _leave("Preempted; the same command goes on from here.", PREEMPTED)
    except Exception:
        _leave(traceback.format_exc(), FAILED)


class Ended(SystemExit):
    """The end of a process with an exit code and the message that was printed."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(code)
        self.status, self.message = code, message


def outcome(stage: Stage, config: RunConfig) -> tuple[int, str]:
    """Do a stage of one run; return its exit code, and in one line why it is not 0."""
    try:
        with exit_codes():
            stage(config)
    except Ended as ending:
        return ending.status, ending.message.strip().splitlines()[-1]
    return 0, ""


def _leave(message: str, code: int) -> None:
    print(message, file=sys.stderr, flush=True)
    raise Ended(message, code)


def prepare_environment() -> None:
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


def _hydra() -> None:
    """Hand over to Hydra, for its other flags (`--cfg job`, `--info`, …)."""
    import hydra

    arguments = [item for item in sys.argv[1:] if not item.startswith("--local_rank")]
    given = [item for item in arguments if "=" in item and not item.startswith("-")]
    others = [item for item in arguments if item not in given]
    sys.argv = [sys.argv[0], *others, *compose.expanded(given)]
    hydra.main(version_base="1.3", config_path=str(compose.CONFIGS), config_name="config")(lambda _: None)()
