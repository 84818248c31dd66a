"""Do all that a table or figure of the paper needs: its runs, then its drawings.

  python scripts/reproduce.py table1                     (= make reproduce-table1)
  python scripts/reproduce.py figure4 runtime.workers=2 hydra/launcher=slurm

NAME is a file of configs/experiment; any override of run.py -m may follow.  Stopped at any moment, the same
command goes on.  Runs that fail stay visibly missing in what is drawn, and the exit code is then 1.
"""

import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.fetch import DataError
from dypam.config import ConfigError
from dypam.files import FileError
from dypam.tracking import log_drawings
from scripts import command, compose, override, stages, sweep

RUN = "scripts/run.py"


def _table(overrides: list[str]) -> list[Path]:
    pdf = shutil.which("pdflatex") is not None
    if not pdf:
        print("pdflatex was not found: no PDF of the table.", file=sys.stderr)
    return list(importlib.import_module("scripts.table").draw(overrides, pdf))


def _by(module: str) -> Callable[[list[str]], list[Path]]:
    def draw(overrides: list[str]) -> list[Path]:
        return list(importlib.import_module(f"scripts.{module}").draw(overrides) or [])

    return draw


DRAWINGS: dict[str, Callable[[list[str]], list[Path]]] = {
    "table": _table,
    "figure": _by("figures"),
    "datasets": _by("dataset_tables"),
    "bench": _by("bench"),
}
"""How each kind in an experiment's `draws` is drawn; returns the files written."""


def reproduce(name: str, overrides: list[str]) -> bool:
    """Run and draw an experiment; return whether all of it could be done."""
    known = override.choices("experiment")
    if name not in known:
        raise ConfigError(f"{name} is no experiment; there are {', '.join(known)}.")
    overrides = [f"experiment={name}", *overrides]
    experiment = compose.experiment(overrides)
    if unknown := [kind for kind in experiment["draws"] if kind not in DRAWINGS]:
        raise ConfigError(f"draws has {', '.join(unknown)}; use {', '.join(DRAWINGS)}.")
    whole = not experiment["runs"] or sweep.sweep(stages.run, stages.is_run, overrides, RUN)
    paths: list[Path] = []
    for kind in experiment["draws"]:
        try:
            paths += DRAWINGS[kind](overrides)
        except (ConfigError, DataError, FileError) as error:  # the other drawings may have what they need
            print(f"Error: {kind}: {error}", file=sys.stderr)
            whole = False
    for path in paths:
        print(path)
    log_drawings(compose.run_config(compose.grid(overrides)[0]), paths)
    return whole


def main() -> int:
    """Reproduce what is named first; return the exit code."""
    _, given = command.asked(str(__doc__))
    if not given or "=" in given[0]:
        raise ConfigError(f"Name an experiment first: {', '.join(override.choices('experiment'))}.")
    return 0 if reproduce(given[0], given[1:]) else command.FAILED


if __name__ == "__main__":
    command.prepare_environment()
    with command.exit_codes():
        sys.exit(main())
