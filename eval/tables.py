"""From a collection of runs to a table: which lines and columns, which cell is best, second, starred.

A table has one line for each method and each way to show it (`Layout.show`), backbone by backbone.  Rules of
the paper: best bold, second underlined, ties share, within a backbone and a column; a star on the micro and
macro average of `ours` where its mean is above the best baseline's and a two-sided t-test over the seeds
gives p < 0.05.  What is missing stays visible: an empty value, and the count of missing runs in the caption.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dypam.config import ConfigError, TestSet
from eval import stats
from eval.aggregate import AVERAGES, Collection, Key, Run, macro, micro
from eval.layout import Cell, Column, Layout, Line, Table

REHEARSAL = (
    "Rehearsal on nano models: no result of the paper's models, and not comparable with published numbers."
)


def build(collection: Collection, layout: Layout, testsets: Mapping[str, TestSet] | None = None) -> Table:
    """Lay out a collection; `testsets` name the columns where no run has finished yet."""
    sets = collection.suite.tests if collection.suite else dict(testsets or {})
    columns = _columns(sets, layout)
    published = read_published(layout.published) if layout.published else {}
    variants = [(p, show) for p in layout.protocols for show in layout.show]
    lines = [_chance(columns, sets)] if layout.chance else []
    for backbone in collection.grid.backbones:
        for method in collection.grid.methods:
            for protocol, show in variants:
                cells = {
                    c.key: _cell(collection, layout, published, c, backbone, method, protocol, show)
                    for c in columns
                }
                label = _variant(layout, protocol, show) if len(variants) > 1 else ""
                ours = method == layout.ours
                lines.append(Line(backbone, method, label, show, cells, ours))
    mark(lines, columns, layout.digits)
    tests = _stars(collection, layout, lines, variants) if layout.ours in collection.grid.methods else []
    _relabel(lines, collection)
    caption, notes = _words(collection, layout, columns, tests)
    missing = {str(key): why for key, why in collection.missing.items()}
    return Table(layout, columns, lines, caption, notes, missing, tests)


def read_published(path: str | Path) -> dict[tuple[str, str], dict[str, float]]:
    """Return the numbers of a published table by (backbone, method) and column; blank cells are left out."""
    file = Path(path)
    if not file.is_absolute():
        file = Path(__file__).parent / "published" / file.name
    if not file.exists():
        raise ConfigError(f"table.published is {path!r}, which does not exist; give a CSV of eval/published.")
    with open(file, newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {
        (row.pop("backbone", ""), row.pop("method")): {
            key: float(value) for key, value in row.items() if value
        }
        for row in rows
    }


def mark(lines: Iterable[Line], columns: Iterable[Column], digits: int) -> None:
    """Set best and second in every column within each backbone and variant; differences are not ranked."""
    groups: dict[tuple[str, str], dict[str, Line]] = {}
    for line in lines:
        if line.kind in ("seed", "mean", "published"):
            groups.setdefault((line.backbone, line.variant), {})[line.method] = line
    for group in groups.values():
        for column in columns:
            if column.kind != "params":
                values = {method: line.cells[column.key].value for method, line in group.items()}
                for method, name in stats.marks(values, digits).items():
                    group[method].cells[column.key].mark = name


def _columns(sets: Mapping[str, TestSet], layout: Layout) -> list[Column]:
    params = [Column("param_pct", "Param(%)", "params")] if layout.params else []
    each = [Column(name, test.label, "set", test.rows, test.contaminated) for name, test in sets.items()]
    total = sum(test.rows for test in sets.values())
    return [*params, *each, *(Column(name, name.capitalize(), "average", total) for name in AVERAGES)]


def _cell(
    collection: Collection,
    layout: Layout,
    published: Mapping[tuple[str, str], Mapping[str, float]],
    column: Column,
    backbone: str,
    method: str,
    protocol: str,
    show: str,
) -> Cell:
    printed = published.get((backbone, method), {})
    column_key = f"{column.key}_avg" if column.kind == "average" else column.key
    if show == "published":
        star = bool(printed.get(f"{column.key}_sig"))
        return Cell(printed.get(column_key), runs=1 if column_key in printed else 0, star=star)
    if column.kind == "params":
        run = collection.any_run(backbone, method)
        value = run.published_params() if run else None
        there = Cell(value, runs=1 if value is not None else 0)
    elif show == "mean":
        values = list(collection.by_seed(backbone, method, column.key, protocol).values())
        mean, sd = stats.mean_sd(values) if values else (None, None)
        return Cell(mean, sd, runs=len(values))
    else:
        run = collection.runs.get(Key(backbone, method, layout.seed))
        there = Cell(run.accuracy(column.key, protocol), runs=1) if run else Cell()
        if run and show == "interval":
            there.interval = _interval(run, column.key, protocol)
    if show == "difference":
        if there.value is None or column_key not in printed:
            return Cell()
        return Cell(there.value - printed[column_key], runs=1)
    return there


def _interval(run: Run, column: str, protocol: str) -> tuple[float, float]:
    names = run.scores[protocol] if column in AVERAGES else [column]
    right = [run.right(name, protocol) for name in names]
    low, high = stats.bootstrap(right, average="macro" if column == "macro" else "micro")
    return 100 * low, 100 * high


def _chance(columns: Iterable[Column], sets: Mapping[str, TestSet]) -> Line:
    counts = {name: [(test.chance * test.rows, test.rows)] for name, test in sets.items()}
    everything = [pair for pairs in counts.values() for pair in pairs]
    cells = {c.key: Cell(micro(counts[c.key])) if c.kind == "set" else Cell() for c in columns}
    if everything:
        cells |= {"micro": Cell(micro(everything)), "macro": Cell(macro(everything))}
    return Line("", "Chance", "", "chance", cells)


def _variant(layout: Layout, protocol: str, show: str) -> str:
    names = {"seed": f"seed {layout.seed}", "mean": "mean ± sd", "interval": "95 % interval"}
    several = len(layout.protocols) > 1 and show != "published"
    return f"{protocol}, {names.get(show, show)}" if several else names.get(show, show)


def _stars(
    collection: Collection, layout: Layout, lines: list[Line], variants: list[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Test `ours` on both averages of every backbone and protocol; star its lines; return the tests."""
    grid, found = collection.grid, []
    for backbone in grid.backbones:
        for protocol in layout.protocols:
            for column in AVERAGES:
                every = {m: collection.by_seed(backbone, m, column, protocol) for m in grid.methods}
                result = stats.star(every.pop(layout.ours), every, layout.test)
                if result:
                    found.append((backbone, protocol, column, result))
    raw = [result.test.p for *_, result in found]
    adjusted = stats.holm(raw) if layout.holm else raw
    tests = []
    for (backbone, protocol, column, result), p in zip(found, adjusted, strict=True):
        due = result.significant(p)
        for line in lines:
            labels = {_variant(layout, protocol, s) if len(variants) > 1 else "" for s in ("seed", "mean")}
            own = line.ours and line.backbone == backbone and line.kind in ("seed", "mean")
            if own and line.variant in labels and line.cells[column].value is not None:
                line.cells[column].star = due
        tests.append(
            {
                "backbone": backbone,
                "protocol": protocol,
                "column": column,
                "best_baseline": result.baseline,
                "difference": result.test.difference,
                "t": result.test.statistic,
                "df": result.test.df,
                "p": result.test.p,
                "p_used": p,
                "n": list(result.test.n),
                "star": due,
            }
        )
    return tests


def _relabel(lines: Iterable[Line], collection: Collection) -> None:
    """Replace names by the labels that the runs' configurations give them."""
    for line in lines:
        if line.kind == "chance":
            continue
        run, other = collection.any_run(line.backbone, line.method), collection.any_run(line.backbone)
        method = run or collection.any_run(method=line.method)
        if method:
            line.method = method.record["identity"]["method"].get("label") or line.method
        if other:
            line.backbone = other.record["identity"]["backbone"]["label"]


def _words(
    collection: Collection, layout: Layout, columns: list[Column], tests: list[dict[str, Any]]
) -> tuple[str, list[str]]:
    """Return the caption, and the notes under the table."""
    grid = collection.grid
    caption = layout.caption.rstrip(".") + "."
    if collection.missing:
        total = len(grid.runs())
        caption += f" {len(collection.missing)} of {total} runs are missing (—)."
    notes = [REHEARSAL] if layout.rehearsal else []
    seeds = ", ".join(map(str, grid.seeds))
    total_n = next((c.n for c in columns if c.kind == "average"), 0)
    notes.append(f"Accuracy in %, {total_n} examples in all; {len(grid.seeds)} seed(s): {seeds}.")
    notes.append(f"Protocol: {', '.join(layout.protocols)}. Best in bold, second underlined; ties share.")
    if tests:
        name = {"student": "Student", "welch": "Welch", "paired": "paired"}[layout.test]
        adjusted = ", Holm-adjusted" if layout.holm else ""
        notes.append(f"* above the best baseline: two-sided t-test ({name}) over seeds, p < 0.05{adjusted}.")
    dirty = [f"{c.label}: {c.contaminated}" for c in columns if c.contaminated]
    if dirty:
        notes.append(f"† contaminated by training data. {'; '.join(dirty)}.")
    return caption, notes + collection.notes
