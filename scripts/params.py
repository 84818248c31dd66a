"""Count a method's parameters on a backbone, without weights; with no argument, audit published Param(%).

  python scripts/params.py                                            (the audit; a minute or two)
  python scripts/params.py backbone=qwen3-8b method=lora method.r=32  (any pair, to match a budget)

Published accounting: trainable / (backbone + adapter), over the whole checkpoint that the backbone comes in.
The audit covers Tables 1 and 3 and the RoSA chapter, and exits with 1 if a printed value neither agrees nor
has a known reason.
"""

import dataclasses
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from eval.published.audit import read
from scripts import command, compose, override

if TYPE_CHECKING:
    from dypam.count import Counts

TABLES = {"Table 1": "table1_math", "Table 3": "table3_commonsense", "RoSA chapter": "rosa_commonsense"}
CHAPTER = "RoSA chapter"


@dataclasses.dataclass(frozen=True)
class Printed:
    """One printed Param(%)."""

    table: str
    backbone: str
    method: str
    percent: str

    @property
    def overrides(self) -> list[str]:
        """The configuration that the row was run with."""
        chapter = f"rosa_chapter/{self.method}"
        known = self.table == CHAPTER and chapter in override.choices("method")
        return [f"backbone={self.backbone}", f"method={chapter if known else self.method}"]

    def agrees(self, percent: float) -> bool:
        """Tell whether a value has the printed digits."""
        return f"{percent:.{self.decimals}f}" == self.percent

    @property
    def decimals(self) -> int:
        """Digits after the point."""
        return len(self.percent.partition(".")[2])


def published() -> list[Printed]:
    """Return every printed Param(%) of the tables that have the column."""
    return [
        Printed(table, row["backbone"], row["method"], row["param_pct"])
        for table, name in TABLES.items()
        for row in read(name)
    ]


def audit() -> int:
    """Print every printed value beside ours; return how many disagree without a reason."""
    rows = published()
    agreed = unexplained = 0
    print(f"{'table':12} {'backbone':13} {'method':10} {'trainable':>12} {'ours %':>8} {'printed':>8}")
    for row in rows:
        ours = count_of(*row.overrides)
        verdict = "agrees" if row.agrees(ours.percent) else next(reasons(row, ours.percent, rows), "")
        agreed += verdict == "agrees"
        unexplained += not verdict
        place = f"{row.table:12} {row.backbone:13} {row.method:10}"
        values = f"{ours.published_trained:12,} {ours.percent:8.4f} {row.percent:>8}"
        print(place, values, f" {verdict or 'DISAGREES'}", flush=True)
    explained = len(rows) - agreed - unexplained
    print(f"{len(rows)} printed: {agreed} agree, {explained} differ for a reason, {unexplained} without one.")
    return unexplained


def reasons(row: Printed, percent: float, rows: list[Printed]) -> Iterator[str]:
    """Yield what explains a printed value that is not ours."""
    twins = [
        r.backbone for r in rows if (r.table, r.method, r.percent) == (row.table, row.method, row.percent)
    ]
    if row.table == "Table 3" and row.backbone == "gemma-3-4b" and "qwen3-8b" in twins:
        yield "Table 3 repeats Qwen3-8B's value in Gemma's row; Table 1 does not"
    if row.method in ("dypam", "rosa"):
        norms = count_of(*row.overrides, "method.train_norms=true").percent
        if row.agrees(norms):
            yield f"with all norms trained {norms:.4f}; the text says that the backbone is frozen"
    unit = 10**-row.decimals
    if abs(percent - float(row.percent)) < unit:
        yield "within one unit of the last digit; the chapter's rounding is not known"


@cache
def count_of(*overrides: str) -> "Counts":
    """Return the counts of the backbone and method that overrides choose."""
    from dypam.count import count
    from dypam.validate import check_targets

    config = compose.run_config(list(overrides))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries' remarks on what they adapt are no news here
        return count(check_targets(config), config.backbone)


def main(overrides: list[str]) -> None:
    """Count one configuration, or audit all."""
    if not overrides:
        sys.exit(1 if audit() else 0)
    counts = count_of(*overrides)
    print(f"really trained       {counts.trained:>14,} of {counts.total:,} (the text model with its adapter)")
    total = f"{counts.published_total:,} = {counts.percent:.4f} %"
    print(f"published accounting {counts.published_trained:>14,} of {total}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    with command.exit_codes():
        if {"-h", "--help"} & set(arguments):
            print(__doc__)
        else:
            main(arguments)
