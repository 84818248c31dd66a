"""List every experiment: how many runs it has, how many are finished, being worked on, failed, and left.

  python scripts/list.py                  (= make list)
  python scripts/list.py results=/other/folder

Files only; nothing is started.  Left are those never started, and those that were stopped and will go on.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dypam.config import ConfigError
from dypam.files import FileError
from dypam.lease import held_by
from dypam.record import read_status
from scripts import command, compose, override


@dataclass
class Experiment:
    """An experiment with the directories of its runs, and how many of these are in which state."""

    name: str
    run_dirs: list[str]
    states: Counter[str] = field(default_factory=Counter)
    why_not: str = ""

    def look(self) -> None:
        """Count the states of its runs."""
        self.states = Counter(map(state, self.run_dirs))


COLUMNS: dict[str, Callable[[Experiment], object]] = {
    "experiment": lambda e: e.name,
    "runs": lambda e: len(e.run_dirs),
    "done": lambda e: e.states["done"],
    "running": lambda e: e.states["running"],
    "failed": lambda e: e.states["failed"],
    "left": lambda e: e.states["left"],
}
"""Heading → value; what is known of an experiment before it runs (hours, memory) is one more entry."""


def state(run_dir: str) -> str:
    """Return `done`, `running`, `failed` or `left` for one run."""
    try:
        status = read_status(run_dir)
    except FileError:
        return "failed"
    if status == "finished":
        return "done"
    if held_by(run_dir):
        return "running"
    return "failed" if status == "failed" else "left"


def experiments(overrides: list[str]) -> Iterator[Experiment]:
    """Yield every experiment of `configs/experiment`; those that cannot be had at this scale say why."""
    for name in override.choices("experiment"):
        given = [f"experiment={name}", *overrides]
        try:
            if not compose.experiment(given)["runs"]:
                yield Experiment(name, [])
                continue
            found = Experiment(name, compose.run_dirs(given))
        except ConfigError as error:
            yield Experiment(name, [], why_not=str(error))
            continue
        found.look()
        yield found


def main(overrides: list[str]) -> None:
    """Print the list."""
    compose.compose(override.fixed(overrides))  # whatever is wrong with all of them is said once
    listed = list(experiments(overrides))
    rows = [list(COLUMNS), *([str(value(one)) for value in COLUMNS.values()] for one in listed)]
    names, *numbers = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *values in rows:
        cells = [value.rjust(width) for value, width in zip(values, numbers, strict=True)]
        print("  ".join([name.ljust(names), *cells]))
    for one in listed:
        if one.why_not:
            print(f"{one.name}: {one.why_not}", file=sys.stderr)


if __name__ == "__main__":
    with command.exit_codes():
        main(command.asked(str(__doc__))[1])
