"""From run directories to the plain data of the results page: runs, scores, curves, published numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from data.fetch import DataError
from dypam.config import ConfigError, Suite, differences
from dypam.files import FileError
from dypam.record import read_record
from eval import stats
from eval.aggregate import AVERAGES, Grid, Key, Run, Source, collect, is_rehearsal, published_params, suite_of
from eval.extract import PROTOCOLS
from eval.published.numbers import published_suites, read_published

CURVE_POINTS = 150
RESAMPLES = 1000
PUBLISHED = {
    "math10k": ("table1_math.csv", "rosa_math.csv"),
    "commonsense15k": ("table3_commonsense.csv", "rosa_commonsense.csv"),
}
"""Published tables that a suite's results stand beside."""
SCALING = {"math10k": "table2_scaling_math_macro.csv"}
CHAPTER = Path(__file__).parents[2] / "configs" / "experiment" / "rosa_commonsense.yaml"
"""Says which method here is which one of the RoSA chapter."""


@dataclass
class Found:
    """One run directory: its place, its record without the losses, these thinned, and its valid scores."""

    key: Key
    suite: str
    directory: Path
    record: dict[str, Any]
    curves: dict[str, list[list[float]]]
    run: Run | None = None
    why: str = ""

    @property
    def rehearsal(self) -> bool:
        """Whether it ran on a nano backbone, and is no result of the paper's models."""
        return is_rehearsal(self.key.backbone)


@dataclass
class Gathered:
    """All runs under a results folder, the suites by name, and what the page must warn of."""

    runs: list[Found] = field(default_factory=list)
    suites: dict[str, Suite] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def scored(self, suite: str) -> list[Found]:
        """Return the runs of a suite that have valid scores."""
        return [found for found in self.runs if found.suite == suite and found.run]


def gather(results: Path, source: Source, *, workers: int = 2) -> Gathered:
    """Read every run under `results`, and score those that are finished.

    Damaged records and runs that do not fit together become warnings, not errors.
    """
    gathered = Gathered()
    for path in sorted((results / "runs").glob("*/*/*/seed*/record.json")):
        try:
            record = read_record(path.parent)
        except FileError as error:
            gathered.warnings.append(str(error))
            continue
        assert record is not None
        identity = record["identity"]
        key = Key.recorded(identity)
        suite = identity["suite"]["name"]
        if path.parent != results / "runs" / suite / str(key):
            gathered.warnings.append(
                f"{path.parent} holds run {suite}/{key} and is left out: it is not its place."
            )
            continue
        losses = record.pop("losses", [])
        thinned = {kind: _curve(losses, kind) for kind in ("loss", "val_loss")}
        gathered.runs.append(Found(key, suite, path.parent, record, thinned))
    for name in dict.fromkeys(found.suite for found in gathered.runs):
        _score_suite(gathered, name, results, source, workers)
    return gathered


def _score_suite(gathered: Gathered, name: str, results: Path, source: Source, workers: int) -> None:
    """Attach scores to a suite's runs: rehearsals and others apart, as nothing is to mix them.

    The first run says what the suite is; runs on other test sets of that name have no numbers here.
    """
    members = [found for found in gathered.runs if found.suite == name]
    whole = members[0].record["identity"]["suite"]
    gathered.suites[name] = suite_of(whole)
    for found in members:
        if others := differences(whole, found.record["identity"]["suite"]):
            found.why = f"the suite {name} of run {members[0].key} is another one ({'; '.join(others[:3])})"
            gathered.warnings.append(
                f"{gathered.suites[name].label}: run {found.key} has no numbers: {found.why}"
            )
    members = [found for found in members if not found.why]
    for rehearsal in (False, True):
        group = [found for found in members if found.rehearsal is rehearsal]
        try:
            _collect(group, name, results, source, workers)
        except ConfigError as error:
            gathered.warnings.append(f"{gathered.suites[name].label}: {error}")
            for found in group:
                _collect([found], name, results, source, 1)


def _collect(group: list[Found], suite: str, results: Path, source: Source, workers: int) -> None:
    keys = [found.key for found in group]
    axes = [sorted({key[i] for key in keys}) for i in range(3)]  # type: ignore[type-var]
    grid = Grid(suite, *axes)  # type: ignore[arg-type]
    try:
        collection = collect(grid, results, source, workers=workers)
    except DataError as error:
        for found in group:
            found.why = f"not scored: {error}"
        return
    for found in group:
        found.run = collection.runs.get(found.key)
        found.why = collection.missing.get(found.key, "")


def index(gathered: Gathered) -> dict[str, Any]:
    """Return what the page shows first: labels, test sets, every run's numbers, published cells."""
    identities = [found.record["identity"] for found in gathered.runs]
    return {
        "protocols": list(PROTOCOLS),
        "warnings": gathered.warnings,
        "backbones": {i["backbone"]["name"]: i["backbone"].get("label") for i in identities},
        "methods": {i["method"]["name"]: i["method"].get("label") for i in identities},
        "suites": {name: _suite(suite) for name, suite in gathered.suites.items()},
        "published": {name: _published(gathered, name) for name in gathered.suites},
        "runs": [_row(found) for found in gathered.runs],
    }


def details(gathered: Gathered) -> list[dict[str, Any]]:
    """Return each run's configuration and provenance: its record without what the page has elsewhere."""
    return [{k: v for k, v in found.record.items() if k != "identity"} for found in gathered.runs]


def curves(gathered: Gathered) -> list[dict[str, Any]]:
    """Return each run's losses over steps, thinned to what a plot can show."""
    return [found.curves for found in gathered.runs]


def _curve(rows: Iterable[Mapping[str, Any]], kind: str) -> list[list[float]]:
    """Return [steps, values]; where there are too many rows, each point is the mean of a stretch."""
    points = [(row["step"], row[kind]) for row in rows if row.get(kind) is not None]
    stretch = math.ceil(len(points) / CURVE_POINTS) or 1
    groups = [points[i : i + stretch] for i in range(0, len(points), stretch)]
    steps = [group[-1][0] for group in groups]
    return [steps, [float(f"{sum(v for _, v in group) / len(group):.5g}") for group in groups]]


def _suite(suite: Suite) -> dict[str, Any]:
    keep = ("name", "label", "answer", "rows", "chance", "contaminated")
    tests = [{key: asdict(test)[key] for key in keep} for test in suite.tests.values()]
    return {"label": suite.label, "note": suite.note, "tests": tests}


def _published(gathered: Gathered, suite: str) -> dict[str, dict[str, float]]:
    """Return the published cells of this suite's real runs: "backbone method" → column → value."""
    printed: dict[tuple[str, str], dict[str, float]] = {}
    for name in PUBLISHED.get(suite, ()):
        ours = _names_in_chapter() if name.startswith("rosa") else {}
        for (backbone, method), cells in read_published(name).items():
            printed[backbone, ours.get(method, method)] = cells
    if suite in SCALING:
        for (_, method), by_backbone in read_published(SCALING[suite]).items():
            for backbone, value in by_backbone.items():
                printed.setdefault((backbone, method), {"macro_avg": value})
    found = {}
    for run in gathered.runs:
        if run.suite == suite and not run.rehearsal:
            cells = printed.get(run.key[:2], {})
            if comparable := _comparable(gathered.suites[suite], cells):
                found[" ".join(run.key[:2])] = comparable
    return found


@lru_cache
def _names_in_chapter() -> dict[str, str]:
    """Return, by the name that the RoSA chapter's tables give a method, its name here."""
    table = yaml.safe_load(CHAPTER.read_text())["table"]
    return {theirs: name for name, theirs in table["published_names"].items()}


def _comparable(suite: Suite, cells: Mapping[str, float]) -> dict[str, float]:
    """Return the published cells of test sets that have the published size; averages if it is their suite."""
    ours = {name: test.rows for name, test in suite.tests.items()}
    groups = published_suites()
    same = {name for group in groups for name in group if ours.get(name) == group[name]}
    comparable = same | {"micro", "macro"} if ours in groups else same
    named = {name.removesuffix("_avg"): value for name, value in cells.items()}
    return {name: value for name, value in named.items() if name in comparable}


def _row(found: Found) -> dict[str, Any]:
    return {
        "suite": found.suite,
        "backbone": found.key.backbone,
        "method": found.key.method,
        "seed": found.key.seed,
        "rehearsal": found.rehearsal,
        "status": found.record["status"],
        "why": found.why,
        "cells": {protocol: _cells(found.run, protocol) for protocol in PROTOCOLS} if found.run else {},
        **metrics(found.record),
    }


def _cells(run: Run, protocol: str) -> dict[str, list[float]]:
    """Return by column [accuracy, low, high] in percent: Wilson's interval, or the averages' bootstrap."""
    cells = {}
    for name, row in run.scores[protocol].items():
        low, high = _wilson(row["correct"], row["n"])
        cells[name] = [round(run.accuracy(name, protocol), 4), low, high]
    right = [run.right(name, protocol) for name in run.scores[protocol]]
    for name in AVERAGES:
        low, high = stats.bootstrap(right, average=name, resamples=RESAMPLES)  # type: ignore[arg-type]
        cells[name] = [round(run.accuracy(name, protocol), 4), round(100 * low, 3), round(100 * high, 3)]
    return cells


@lru_cache(maxsize=100_000)
def _wilson(correct: int, n: int) -> tuple[float, float]:
    low, high = stats.wilson(correct, n)
    return round(100 * low, 3), round(100 * high, 3)


def metrics(record: dict[str, Any]) -> dict[str, float | None]:
    """Return a run's costs: Param(%), peak memory (GB), tokens a second in training and generation, hours."""
    tokens, seconds = record.get("tokens") or {}, record.get("seconds") or {}
    memory = record.get("peak_memory") or {}
    peak = max((value for value in memory.values() if value), default=None)
    made = [
        start for one in (record.get("generation") or {}).get("sets", {}).values() for start in one["starts"]
    ]
    return {
        "params": published_params(record),
        "memory": peak and round(peak / 1e9, 3),
        "train_speed": _rate(tokens.get("read"), seconds.get("train")),
        "generate_speed": _rate(sum(s["tokens"] for s in made), sum(s["seconds"] for s in made)),
        "hours": round(sum(v for k, v in seconds.items() if k.endswith("_total")) / 3600, 4) or None,
    }


def _rate(tokens: float | None, seconds: float | None) -> float | None:
    return round(tokens / seconds, 2) if tokens and seconds else None
