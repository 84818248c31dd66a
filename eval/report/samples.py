"""Single examples for the results page: prompt, gold, each run's response, what each protocol reads in it."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from data.fetch import Files
from eval import extract
from eval.report.gather import Found, Gathered
from eval.score import Expected, expected, prediction_rows

MOST_PREDICTIONS = 100_000
MOST_BYTES = 30_000_000
"""Limits on what the page holds, in rows and in bytes after compression (a third more as text)."""


@dataclass(frozen=True)
class Sheet:
    """One test set of one suite, with the runs whose predictions are shown."""

    suite: str
    rehearsal: bool
    test: str
    runs: list[int]
    rows: int


def sheets(gathered: Gathered) -> list[Sheet]:
    """Return every test set that has valid predictions, rehearsals apart."""
    found = []
    for name, suite in gathered.suites.items():
        for rehearsal in (False, True):
            runs = [i for i, run in enumerate(gathered.runs) if _belongs(run, name, rehearsal)]
            found += [Sheet(name, rehearsal, t.name, runs, t.rows) for t in suite.tests.values() if runs]
    return found


def _belongs(run: Found, suite: str, rehearsal: bool) -> bool:
    return run.suite == suite and run.rehearsal is rehearsal and run.run is not None


def share(all_sheets: list[Sheet], most: int) -> float:
    """Return the fraction of examples that fits `most` predictions, 1 if all do."""
    total = sum(len(sheet.runs) * sheet.rows for sheet in all_sheets)
    return min(1.0, most / total) if total else 1.0


def chosen(rows: int, fraction: float) -> list[int]:
    """Return which of a test set's examples are shown: all, or a random sample, always the same one."""
    count = max(1, int(rows * fraction))
    return list(range(rows)) if count >= rows else sorted(random.Random(0).sample(range(rows), count))


def read_sheet(gathered: Gathered, sheet: Sheet, files: Files, fraction: float) -> dict[str, Any]:
    """Return a sheet's examples and, by run, the responses, extracted answers and verdicts."""
    test = gathered.suites[sheet.suite].tests[sheet.test]
    places = chosen(sheet.rows, fraction)
    wanted = _expected(gathered, sheet, files)
    runs = {}
    for i in sheet.runs:
        path = gathered.runs[i].directory / "predictions" / f"{sheet.test}.jsonl"
        texts = _responses(path, places, [wanted.ids[place] for place in places])
        gold = [wanted.gold[place] for place in places]
        runs[i] = {"responses": texts, **_read(test.answer, texts, gold)}
    return {
        "ids": [wanted.ids[place] for place in places],
        "prompts": [wanted.prompts[place] for place in places],
        "gold": [_shown(wanted.gold[place]) for place in places],
        "runs": runs,
    }


def _expected(gathered: Gathered, sheet: Sheet, files: Files) -> Expected:
    return expected(gathered.suites[sheet.suite].tests[sheet.test], files)


def _responses(path: Path, places: list[int], ids: list[str]) -> list[str]:
    """Return the responses to some examples; only their lines are parsed where the file is in order."""
    with open(path, "rb") as lines:
        wanted = set(places)
        picked = [line for i, line in enumerate(itertools.islice(lines, places[-1] + 1)) if i in wanted]
    rows = [orjson.loads(line) for line in picked]
    if [row["id"] for row in rows] != ids:
        by_id = {row["id"]: row for _, row in prediction_rows(path) if row}
        rows = [by_id[name] for name in ids]
    return [row["response"] for row in rows]


def _read(answer: str, texts: list[str], gold: list[str | float]) -> dict[str, Any]:
    """Return by protocol the extracted answers and a string of 1 (right) and 0 (wrong)."""
    answers, right = {}, {}
    for protocol in extract.PROTOCOLS:
        found = [extract.extract(protocol, answer, text) for text in texts]
        answers[protocol] = [_shown(value) for value in found]
        verdicts = (extract.agrees(value, correct) for value, correct in zip(found, gold, strict=True))
        right[protocol] = "".join("01"[verdict] for verdict in verdicts)
    return {"answers": answers, "right": right}


def _shown(value: extract.Answer) -> str | None:
    return f"{value:.12g}" if isinstance(value, float) else value
