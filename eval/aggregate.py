"""From run directories to one collection of scores: what is there, what is missing and why, what differs.

Only finished runs with complete, fitting predictions count; all others are missing cells with a reason.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.fetch import Files
from dypam.config import ConfigError, RunConfig, Runtime, Suite, TestSet, differences
from dypam.files import FileError, as_json, write_json
from dypam.lease import Lease, LeaseHeld
from dypam.record import read_record
from eval import mixtures
from eval.score import ScoreError, ready_scores, score_run, unpack

AVERAGES = ("micro", "macro")
PUBLISHED_SEED = 2333


class Key(NamedTuple):
    """Which run: backbone, method, seed."""

    backbone: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.backbone}/{self.method}/seed{self.seed}"

    @classmethod
    def of(cls, run: RunConfig) -> Key:
        """Return the key of a run."""
        return cls(run.backbone.name, str(run.method["name"]), run.seed)

    @classmethod
    def recorded(cls, identity: Mapping[str, Any]) -> Key:
        """Return the key of a run by the identity in its record."""
        return cls(identity["backbone"]["name"], identity["method"]["name"], identity["seed"])


@dataclass(frozen=True)
class Grid:
    """The runs that a table needs: every backbone with every method and seed, on one suite."""

    suite: str
    backbones: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    asked: Mapping[Key, RunConfig] = field(default_factory=dict)
    """What runs must be; a run that is not named counts as it is found."""

    @classmethod
    def of(cls, runs: Sequence[RunConfig]) -> Grid:
        """Return the grid that holds exactly such runs; raise `ConfigError` if they have several suites."""
        suites = list(dict.fromkeys(run.suite.name for run in runs))
        if len(suites) > 1:
            raise ConfigError(
                f"Accuracies are of one suite, and these runs have {', '.join(suites)}: choose one."
            )
        asked = {Key.of(run): run for run in runs}
        backbones, methods, seeds = (list(dict.fromkeys(key[i] for key in asked)) for i in range(3))
        return cls(suites[0], backbones, methods, seeds, asked)  # type: ignore[arg-type]

    def runs(self) -> list[Key]:
        """Return all runs, backbone by backbone."""
        return [Key(b, m, s) for b in self.backbones for m in self.methods for s in self.seeds]


@dataclass(frozen=True)
class Source:
    """Where examples come from (the arguments of `data.fetch.Files`), for worker processes."""

    cache: str = ".cache"
    mirror: str | None = None
    offline: bool = False

    @classmethod
    def of(cls, runtime: Runtime) -> Source:
        """Return the source that a configuration names."""
        return cls(runtime.cache_dir, runtime.data_mirror, runtime.offline)

    def files(self) -> Files:
        """Return the access to its files."""
        return Files(self.cache, self.mirror, self.offline)


@dataclass(frozen=True)
class Run:
    """One finished run: its scores by protocol and test set, and its record."""

    key: Key
    scores: dict[str, dict[str, dict[str, Any]]]
    record: dict[str, Any]

    def counts(self, column: str, protocol: str) -> list[tuple[float, int]]:
        """Return (correct, n) of a test set, or of all for an average."""
        sets = self.scores[protocol]
        chosen = sets.values() if column in AVERAGES else [sets[column]]
        return [(row["correct"], row["n"]) for row in chosen]

    def accuracy(self, column: str, protocol: str) -> float:
        """Return a test set's accuracy, or `micro` or `macro`, in percent."""
        counts = self.counts(column, protocol)
        return macro(counts) if column == "macro" else micro(counts)

    def published_params(self) -> float | None:
        """Return Param(%) by the published accounting, if the record has it."""
        return published_params(self.record)

    def right(self, testset: str, protocol: str) -> np.ndarray:
        """Return one bool per example of a test set, in its order: was the answer right."""
        row = self.scores[protocol][testset]
        return unpack(row["bits"], row["n"])


def is_rehearsal(backbone: str) -> bool:
    """Whether runs on this backbone are a rehearsal: nano models are no result of the paper's models."""
    return backbone.startswith("nano")


def published_params(record: dict[str, Any]) -> float | None:
    """Return a record's Param(%) by the published accounting, None before its parameters are counted."""
    counts = record.get("parameters")
    return 100 * counts["published_trained"] / counts["published_total"] if counts else None


def micro(counts: Iterable[tuple[float, int]]) -> float:
    """Return Σ correct / Σ samples in percent."""
    correct, n = (sum(values) for values in zip(*counts, strict=True))
    return 100 * correct / n


def macro(counts: Iterable[tuple[float, int]]) -> float:
    """Return the mean of the test sets' accuracies in percent."""
    return float(np.mean([100 * correct / n for correct, n in counts]))


@dataclass
class Collection:
    """The runs of a grid, those that are missing with the reason, and notes that every table must show."""

    grid: Grid
    suite: Suite | None
    runs: dict[Key, Run]
    missing: dict[Key, str]
    notes: list[str] = field(default_factory=list)

    def by_seed(self, backbone: str, method: str, column: str, protocol: str) -> dict[int, float]:
        """Return the accuracy in percent by seed, of the seeds that are there."""
        keys = (Key(backbone, method, seed) for seed in self.grid.seeds)
        return {key.seed: self.runs[key].accuracy(column, protocol) for key in keys if key in self.runs}

    def any_run(self, backbone: str | None = None, method: str | None = None) -> Run | None:
        """Return some run of a backbone or method, for what all of them share (labels, counts)."""
        found = (
            r for k, r in self.runs.items() if backbone in (None, k.backbone) and method in (None, k.method)
        )
        return next(found, None)


def collect(
    grid: Grid, results: Path | str, source: Source = Source(), *, workers: int = 2, store: bool = True
) -> Collection:
    """Score and gather the runs of a grid.

    Args:
        grid: which runs.
        results: the folder that holds `runs/<suite>/<backbone>/<method>/seed<k>`.
        source: where the test sets' examples come from.
        workers: processes that score; 1 scores in this one.
        store: keep new scores as `scores.json` of runs that nobody works on.

    Raises:
        ConfigError: runs that may not stand in one table, naming them and what differs.
        DataError: a test set cannot be loaded.
    """
    root = Path(results) / "runs" / grid.suite
    folders = {key: root / str(key) for key in grid.runs()}
    folders |= {key: Path(run.run_dir) for key, run in grid.asked.items()}
    records, missing = {}, {}
    for key in grid.runs():
        record, why = _finished(folders[key], grid.asked.get(key))
        if record is None:
            missing[key] = why
        else:
            _check_place(key, record["identity"])
            records[key] = record
    notes = mixtures.refuse(records)
    tasks = [(folders[key], record["identity"]["suite"], source, store) for key, record in records.items()]
    runs = {}
    for (key, record), outcome in zip(records.items(), _scored(tasks, workers), strict=True):
        if isinstance(outcome, str):
            missing[key] = outcome
        else:
            runs[key] = Run(key, outcome, record)
    first = next(iter(records.values()), None)
    suite = suite_of(first["identity"]["suite"]) if first else None
    return Collection(grid, suite, runs, missing, notes)


def suite_of(recorded: dict[str, Any]) -> Suite:
    """Return the suite that a run's identity holds."""
    suite = Suite(**recorded)
    return replace(suite, tests={name: TestSet(**test) for name, test in recorded["tests"].items()})


def _finished(run_dir: Path, asked: RunConfig | None) -> tuple[dict[str, Any] | None, str]:
    """Return the record of a finished run without its losses (most of a long one), or None and the reason."""
    try:
        record = read_record(run_dir)
    except FileError as error:
        return None, str(error)
    if record is None:
        return None, "not started"
    if asked and (others := differences(record["identity"], as_json(asked.identity()))):
        return None, f"{run_dir} holds a run with another configuration ({'; '.join(others[:3])})"
    record.pop("losses", None)
    if record["status"] == "finished":
        return record, ""
    return None, f"failed: {record['error']}" if record["status"] == "failed" else str(record["status"])


def _scored(tasks: list[tuple[Path, dict[str, Any], Source, bool]], workers: int) -> Iterable[Any]:
    if workers < 2 or len(tasks) < 2:
        return map(_score, tasks)
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context) as pool:
        return list(pool.map(_score, tasks))


_files: dict[Source, Files] = {}


def _score(task: tuple[Path, dict[str, Any], Source, bool]) -> dict[str, Any] | str:
    """Return a run's scores by protocol, or the reason why there are none."""
    run_dir, suite, source, store = task
    files = _files.setdefault(source, source.files())
    try:
        scores = score_run(run_dir, suite_of(suite), files, write=False)
    except (ScoreError, FileError) as error:
        return f"not scored: {error}"
    if store and scores != ready_scores(run_dir):
        with suppress(LeaseHeld, FileError, OSError), Lease.acquire(run_dir, wait=0.1) as lease:
            write_json(run_dir / "scores.json", scores, lease.guard)
    protocols: dict[str, Any] = scores["protocols"]
    return protocols


def _check_place(key: Key, identity: dict[str, Any]) -> None:
    found = Key.recorded(identity)
    if found != key:
        raise ConfigError(f"the directory of run {key} holds run {found}: move it to its own place.")
