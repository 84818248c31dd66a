"""From prediction files to counts of right answers, under every protocol; files only, no torch.

A test set is scored only if its file holds each example exactly once, with the prompt, answer and adapter of
this run: anything else is an error that names the rows.  `scores.json` remembers the digests of all it was
made from and is made again when one differs.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from data.examples import digest, load
from data.fetch import DataError, Files
from dypam.config import Suite, TestSet
from dypam.files import read_json, sha256_file, write_json
from eval import extract

SHOWN = 5
NO_ADAPTER = "none"


class ScoreError(ValueError):
    """Predictions that cannot be scored; `problems` names each row, the message the first few."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.path, self.problems = path, problems
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        super().__init__(
            f"{path}: {'; '.join(problems[:SHOWN])}{more}. Run the generate stage of this run again."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.problems)


@dataclass(frozen=True)
class Expected:
    """What a test set's prediction file must hold: one row for each id, with these prompts and digests."""

    answer_format: str
    ids: list[str]
    prompts: list[str]
    prompt_digests: list[str]
    target_digests: list[str]
    gold: list[str | float]
    digest: str


def expected(testset: TestSet, files: Files) -> Expected:
    """Load a test set's examples (kept in memory).

    Raises:
        DataError: they cannot be had, are not as many as `rows` says, or an answer is of another format.
    """
    return _expected(json.dumps(asdict(testset), sort_keys=True), files)


@lru_cache(maxsize=64)
def _expected(key: str, files: Files) -> Expected:
    testset = TestSet(**json.loads(key))
    rows = load(testset.source, files)
    answers, prompts = list(rows["answer"]), list(rows["prompt"])
    if len(answers) != testset.rows:
        raise DataError(
            f"test set {testset.name}: rows is {testset.rows}, and it has {len(answers)} examples: "
            "set rows to that number, or look for the right file."
        )
    try:
        values = [extract.gold(testset.answer, text) for text in answers]
    except ValueError as error:
        raise DataError(
            f"test set {testset.name}: answer is {testset.answer!r}, and the examples' are not such: {error} "
            f"Set answer to their format, one of {', '.join(extract.FORMATS)}."
        ) from error
    whole = hashlib.sha256(orjson.dumps([list(rows["id"]), prompts, answers, testset.answer])).hexdigest()
    return Expected(
        testset.answer,
        list(rows["id"]),
        prompts,
        [digest(text) for text in prompts],
        [digest(text) for text in answers],
        values,
        whole,
    )


def prediction_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield (line number from 1, row) of a JSONL file; the row is None where the line is no JSON object."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                row = None
            yield number, row if isinstance(row, dict) else None


def responses(path: Path, wanted: Expected, adapter_digest: str) -> list[str]:
    """Return the responses of a finished prediction file in the order of the test set.

    Raises:
        ScoreError: rows are missing, duplicated, damaged, or belong to another prompt, answer or adapter.
    """
    if not path.is_file():
        raise ScoreError(path, ["the file is missing"])
    position = {name: index for index, name in enumerate(wanted.ids)}
    found: list[str | None] = [None] * len(position)
    problems = []
    for number, row in prediction_rows(path):
        index = position.get(row.get("id", "")) if row else None
        if row is None:
            problems.append(f"line {number} is damaged")
        elif index is None:
            problems.append(f"foreign row {row.get('id')!r} (line {number}) is none of the test set's")
        elif found[index] is not None:
            problems.append(f"duplicated row {row['id']!r} (line {number})")
        elif why := mismatch(row, index, wanted, adapter_digest):
            problems.append(f"foreign row {row['id']!r} (line {number}) has {why}")
            found[index] = ""
        else:
            found[index] = row["response"]
    problems += [
        f"missing row {name!r}" for name, text in zip(wanted.ids, found, strict=True) if text is None
    ]
    if problems:
        raise ScoreError(path, problems)
    return [text for text in found if text is not None]


def mismatch(row: dict[str, Any], index: int, wanted: Expected, adapter_digest: str) -> str | None:
    """Say why a prediction row is not one of example `index` of this run; None if it is."""
    if row.get("prompt_digest") != wanted.prompt_digests[index] or row.get("prompt") != wanted.prompts[index]:
        return "another prompt"
    if row.get("target_digest") != wanted.target_digests[index]:
        return "another answer"
    if row.get("adapter_digest") != adapter_digest:
        return f"adapter {row.get('adapter_digest')!r} instead of {adapter_digest!r}"
    return None if isinstance(row.get("response"), str) else "no response"


def adapter_digest(run_dir: Path) -> str:
    """Return the digest of a run's adapter as `adapter/backbone.json` has it, "none" without an adapter."""
    try:
        return str(read_json(run_dir / "adapter" / "backbone.json")["adapter_digest"])
    except FileNotFoundError:
        return NO_ADAPTER


def pack(right: np.ndarray) -> str:
    """Return one bit per example, in base64."""
    return base64.b64encode(np.packbits(right).tobytes()).decode()


def unpack(bits: str, n: int) -> np.ndarray:
    """Return what `pack` packed: a bool array of length n."""
    return np.unpackbits(np.frombuffer(base64.b64decode(bits), np.uint8), count=n).astype(bool)


def score_run(
    run_dir: Path,
    suite: Suite,
    files: Files,
    *,
    guard: Callable[[], AbstractContextManager[Any]] | None = None,
    write: bool = True,
    protocols: Iterable[str] = tuple(extract.PROTOCOLS),
) -> dict[str, Any]:
    """Score every test set of a run under every protocol, and write `scores.json`.

    Returns `{"suite", "protocols": {protocol: {test set: {"n", "correct", "bits"}}}, "inputs"}`, where `bits`
    tells example by example who was right (see `unpack`).  Ready scores with the same inputs are used.

    Raises:
        ScoreError: a prediction file is not exactly the test set's, naming the rows of all the files.
    """
    run_dir, adapter = Path(run_dir), adapter_digest(Path(run_dir))
    sets = {name: expected(testset, files) for name, testset in suite.tests.items()}
    paths = {name: _predictions(run_dir, name) for name in sets}
    inputs = {
        "extraction": sha256_file(Path(extract.__file__)),
        "adapter": adapter,
        "examples": {name: wanted.digest for name, wanted in sets.items()},
        "predictions": {name: _sha256(path) for name, path in paths.items()},
    }
    ready = ready_scores(run_dir)
    if ready and ready["inputs"] == inputs and set(ready["protocols"]) == set(protocols):
        return ready
    counts: dict[str, Any] = {protocol: {} for protocol in protocols}
    failures: list[ScoreError] = []
    for name, wanted in sets.items():
        try:
            texts = responses(paths[name], wanted, adapter)
        except ScoreError as error:
            failures.append(error)
            continue
        for protocol in counts:
            right = extract.judge(protocol, wanted.answer_format, texts, wanted.gold)
            counts[protocol][name] = {"n": len(right), "correct": int(right.sum()), "bits": pack(right)}
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ScoreError(
            run_dir, [f"{error.path.name}: {what}" for error in failures for what in error.problems]
        )
    scores = {"suite": suite.name, "protocols": counts, "inputs": inputs}
    if write:
        write_json(run_dir / "scores.json", scores, guard)
    return scores


def ready_scores(run_dir: Path) -> dict[str, Any] | None:
    """Return what `scores.json` of a run holds, whatever it was made from; None if missing or damaged."""
    try:
        found: dict[str, Any] = orjson.loads((run_dir / "scores.json").read_bytes())
        made_from = set(found["inputs"]["predictions"].keys())
        whole = bool(found["protocols"]) and all(s.keys() == made_from for s in found["protocols"].values())
    except (FileNotFoundError, orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return None
    return found if whole else None


def are_current(run_dir: Path) -> bool:
    """Tell whether `scores.json` is there and was made from the prediction files as they are now."""
    ready = ready_scores(run_dir)
    if ready is None:
        return False
    digests = ready["inputs"]["predictions"]
    return all(_sha256(_predictions(run_dir, name)) == digest for name, digest in digests.items())


def _predictions(run_dir: Path, name: str) -> Path:
    return run_dir / "predictions" / f"{name}.jsonl"


def _sha256(path: Path) -> str | None:
    return sha256_file(path) if path.is_file() else None
