"""From a collection of runs to a table: which lines and columns, which cell is best, second, starred.

A table has one line for each method and each way to show it (`Layout.show`), backbone by backbone.  Rules of
the paper: best bold, second underlined, ties share, within a backbone and a column; a star on the micro and
macro average of `ours` where its mean is above the best baseline's and a two-sided t-test over the seeds
gives p < 0.05; none where a method lacks a seed.  What is missing stays visible: an empty value, and the
count of missing runs in the caption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from dypam.config import ConfigError, TestSet
from eval import stats
from eval.aggregate import AVERAGES, Collection, Key, Run, is_rehearsal, macro, micro
from eval.captions import words
from eval.layout import Cell, Column, Layout, Line, Table
from eval.published.numbers import published_beside

OF_ONE_SEED = {"seed", "interval", "difference"}
"""What is shown of the run with `table.seed` alone."""


def build(
    collection: Collection,
    layout: Layout,
    testsets: Mapping[str, TestSet] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Table:
    """Lay out a collection; `testsets` name the columns, `labels` the lines where no run has finished yet."""
    seeds = collection.grid.seeds
    if OF_ONE_SEED & set(layout.show) and layout.seed not in seeds:
        raise ConfigError(
            f"table.seed is {layout.seed}, which is none of the runs' seeds ({', '.join(map(str, seeds))}): "
            f"give table.seed={seeds[0]}, or table.show=[mean]."
        )
    if any(map(is_rehearsal, collection.grid.backbones)):
        layout = replace(layout, rehearsal=True)
    sets = collection.suite.tests if collection.suite else dict(testsets or {})
    columns = _columns(sets, layout)
    published = published_beside(layout, sets)
    # published numbers have one protocol: the first
    pairs = [(p, show) for p in layout.protocols for show in layout.show]
    variants = [(p, show) for p, show in pairs if show != "published" or p == layout.protocols[0]]
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
    tests += _one_seed(collection, layout) + (_above_chance(collection, layout) if layout.chance else [])
    _relabel(lines, collection, labels or {})
    caption, notes = words(collection, layout, columns, tests)
    if layout.pivot:
        columns, lines = _pivot(columns[0], lines)
    missing = {str(key): why for key, why in collection.missing.items()}
    return Table(layout, columns, lines, caption, notes, missing, tests)


def _pivot(column: Column, lines: list[Line]) -> tuple[list[Column], list[Line]]:
    """Return a column for each backbone instead of a line, all of them showing `column`."""
    backbones = dict.fromkeys(line.backbone for line in lines if line.kind != "chance")
    turned: dict[tuple[str, str], Line] = {}
    for line in lines:
        same = turned.setdefault((line.method, line.variant), replace(line, backbone="", cells={}))
        same.cells |= {name: line.cells[column.key] for name in backbones if line.backbone in (name, "")}
    return [replace(column, key=name, label=name) for name in backbones], list(turned.values())


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
    params = [Column("param_pct", "Param(%)", "params", digits=layout.params_digits)] if layout.params else []
    each = [Column(name, test.label, "set", test.rows, test.contaminated) for name, test in sets.items()]
    total = sum(test.rows for test in sets.values())
    every = [*params, *each, *(Column(name, name.capitalize(), "average", total) for name in AVERAGES)]
    for name in layout.columns:
        if sets and name not in {column.key for column in every}:
            raise ConfigError(f"table.columns has {name!r}; use {', '.join(column.key for column in every)}.")
    return [column for column in every if not layout.columns or column.key in layout.columns]


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
        there = Cell(_accuracy(run, layout, column, protocol), runs=1) if run else Cell()
        if run and show == "interval":
            there.interval = _interval(run, column.key, protocol)
    if show == "difference":
        if there.value is None or column_key not in printed:
            return Cell()
        return Cell(there.value - printed[column_key], runs=1)
    return there


def _accuracy(run: Run, layout: Layout, column: Column, protocol: str) -> float:
    value = run.accuracy(column.key, protocol)
    return stats.cut(value, layout.digits) if layout.cut else value


def _interval(run: Run, column: str, protocol: str) -> tuple[float, float]:
    names = run.scores[protocol] if column in AVERAGES else [column]
    right = [run.right(name, protocol) for name in names]
    low, high = stats.bootstrap(right, average="macro" if column == "macro" else "micro")
    return 100 * low, 100 * high


def _chance(columns: Iterable[Column], sets: Mapping[str, TestSet]) -> Line:
    counts = {name: [(test.chance * test.rows, test.rows)] for name, test in sets.items()}
    everything = [pair for pairs in counts.values() for pair in pairs]
    known = {name: Cell(micro(pairs)) for name, pairs in counts.items()}
    if everything:
        known |= {"micro": Cell(micro(everything)), "macro": Cell(macro(everything))}
    return Line("", "Chance", "", "chance", {c.key: known.get(c.key, Cell()) for c in columns})


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
            for column in (c for c in AVERAGES if not layout.columns or c in layout.columns):
                every = {m: collection.by_seed(backbone, m, column, protocol) for m in grid.methods}
                whole = all(values.keys() == set(grid.seeds) for values in every.values())
                result = stats.star(every.pop(layout.ours), every, layout.test)
                if result:
                    found.append((backbone, protocol, column, whole, result))
    raw = [result.test.p for *_, result in found]
    adjusted = stats.holm(raw) if layout.holm else raw
    tests = []
    for (backbone, protocol, column, whole, result), p in zip(found, adjusted, strict=True):
        due = whole and result.significant(p)
        for line in lines:
            labels = {_variant(layout, protocol, s) if len(variants) > 1 else "" for s in ("seed", "mean")}
            own = line.ours and line.backbone == backbone and line.kind in ("seed", "mean")
            if (
                own
                and line.variant in labels
                and column in line.cells
                and line.cells[column].value is not None
            ):
                line.cells[column].star = due
        names = {"test": layout.test, "backbone": backbone, "protocol": protocol, "column": column}
        numbers = {"difference": result.test.difference, "t": result.test.statistic, "df": result.test.df}
        used = {"p": result.test.p, "p_used": p, "n": list(result.test.n), "complete": whole, "star": due}
        tests.append({**names, "best_baseline": result.baseline, **numbers, **used})
    return tests


def _one_seed(collection: Collection, layout: Layout) -> list[dict[str, Any]]:
    """Compare `ours` with the best other method by McNemar's test, where a t-test has no seeds to work on."""
    grid, tests = collection.grid, []
    for backbone in grid.backbones if len(grid.seeds) == 1 else []:
        runs = {m: collection.runs.get(Key(backbone, m, grid.seeds[0])) for m in grid.methods}
        ours = runs.pop(layout.ours, None)
        others = {name: run for name, run in runs.items() if run}
        for protocol in layout.protocols if ours and others else []:
            assert ours
            best = max(others, key=lambda name: others[name].accuracy("micro", protocol))
            pair = [
                np.concatenate([run.right(n, protocol) for n in run.scores[protocol]])
                for run in (ours, others[best])
            ]
            names = {"test": "mcnemar", "backbone": backbone, "protocol": protocol, "column": "micro"}
            tests.append({**names, "best_baseline": best, **asdict(stats.mcnemar(*pair)), "n": len(pair[0])})
    return tests


def _above_chance(collection: Collection, layout: Layout) -> list[dict[str, Any]]:
    """Test the run of `layout.seed` (or of the first seed there is) of every method against guessing."""
    tests = []
    for backbone, method in {(key.backbone, key.method): None for key in collection.runs}:
        seeds = [key.seed for key in collection.runs if key[:2] == (backbone, method)]
        run = collection.runs[Key(backbone, method, layout.seed if layout.seed in seeds else seeds[0])]
        for protocol in layout.protocols:
            for name, test in collection.suite.tests.items() if collection.suite else ():
                if not test.chance:
                    continue  # one right answer would be more than guessing
                ((correct, n),) = run.counts(name, protocol)
                p = stats.above_chance(int(correct), n, test.chance)
                names = {"test": "above_chance", "backbone": backbone, "method": method, "protocol": protocol}
                tests.append(
                    {**names, "column": name, "correct": correct, "n": n, "chance": test.chance, "p": p}
                )
    return tests


def _relabel(lines: Iterable[Line], collection: Collection, labels: Mapping[str, str]) -> None:
    """Replace names by the labels that the runs' configurations give them; by `labels` without a run.

    Where methods share a label, their names stand behind it.
    """
    methods = {name: _method_label(collection, name, labels) for name in collection.grid.methods}
    shared = Counter(methods.values())
    for line in lines:
        if line.kind == "chance":
            continue
        other = collection.any_run(line.backbone)
        line.backbone = labels.get(line.backbone, line.backbone)
        if other:
            line.backbone = other.record["identity"]["backbone"]["label"]
        label = methods[line.method]
        line.method = f"{label} ({line.method})" if shared[label] > 1 else label


def _method_label(collection: Collection, name: str, labels: Mapping[str, str]) -> str:
    run = collection.any_run(method=name)
    given = run.record["identity"]["method"].get("label") if run else None
    return str(given or labels.get(name, name))
