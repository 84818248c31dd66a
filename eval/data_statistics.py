"""Tables 4 to 6: what the data files hold, counted, beside the published numbers.

A file that cannot be had stays a visibly missing cell, with the reason.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.collate import encode
from data.examples import LABELS, TEMPLATE, load
from data.fetch import DataError, Files
from dypam.config import ConfigError, Suite
from eval.layout import Cell, Column, Layout, Line, Table
from eval.render import MISSING

COUNTED = ("training", "text")
"""Tokens of all that training reads (template, BOS, EOS), or of instruction and response alone."""

SAMPLES = Column("samples", "Samples", "measure", digits=0)
TEST_COLUMNS = [SAMPLES, Column("answer_format", "Answers", "measure")]
TRAINING_COLUMNS = [
    SAMPLES,
    Column("total_tokens", "Total tokens", "measure", digits=0),
    Column("avg_tokens", "Tokens / sample", "measure", digits=2),
]
NO_NUMBER = {"answer_format"}

_BEFORE, _AFTER = TEMPLATE.split("{instruction}")


@dataclass
class Counted:
    """One data set: its label, its cells by column, and why some of them are missing."""

    label: str
    cells: dict[str, Cell] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def test_sets(suite: Suite, files: Files) -> dict[str, Counted]:
    """Count the examples of every test set of a suite, and read the format off their answers."""
    found = {}
    for name, test in suite.tests.items():
        found[name] = one = Counted(test.label)
        try:
            answers = list(load(test.source, files)["answer"])
        except DataError as error:
            one.missing.append(str(error))
            continue
        one.cells = {"samples": _number(len(answers)), "answer_format": Cell(text=answer_format(answers))}
    return found


def training_sets(
    suites: Iterable[Suite], files: Files, tokenizer: Callable[[], Any], *, bos: str, tokens: str = "training"
) -> dict[str, Counted]:
    """Count the examples of every suite's training set, and their tokens.

    Args:
        suites: their training sets are counted.
        files: where files come from.
        tokenizer: called once a data set is there; it may raise `ConfigError`.
        bos: as in `data.collate.encode`.
        tokens: one of `COUNTED`.
    """
    if tokens not in COUNTED:
        raise ConfigError(f"datasets.tokens is {tokens!r}; give one of {', '.join(COUNTED)}.")
    found = {}
    for suite in suites:
        found[suite.name] = one = Counted(suite.label)
        try:
            rows = load(suite.train, files)
            one.cells["samples"] = _number(len(rows))
            tool = tokenizer()
        except (DataError, ConfigError) as error:
            one.missing.append(str(error))
            continue
        pairs = zip(rows["prompt"], rows["response"], strict=True)
        total = sum(_tokens(tool, prompt, response, bos, tokens) for prompt, response in pairs)
        one.cells |= {"total_tokens": _number(total), "avg_tokens": _number(total / len(rows))}
    return found


def _number(value: float) -> Cell:
    return Cell(value, runs=1)


def _tokens(tokenizer: Any, prompt: str, response: str, bos: str, tokens: str) -> int:
    if tokens == "training":
        # longer than any example: what training would cut off is a part of the data
        return len(encode(tokenizer, prompt, response, bos=bos, max_length=1 << 30)["input_ids"])
    instruction = prompt.removeprefix(_BEFORE).removesuffix(_AFTER)
    return sum(
        len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (instruction, response)
    )


def answer_format(answers: Iterable[str]) -> str:
    """Return the format of normalised answers, as `table5_6_test_sets.csv` names it (numeric, answer1-4)."""
    seen = set(answers)
    fitting = [labels for labels in LABELS.values() if seen <= set(labels)]
    if not fitting:
        return "numeric"
    labels = min(fitting, key=len)
    stem = labels[0].removesuffix("1")
    if labels == tuple(f"{stem}{i}" for i in range(1, len(labels) + 1)):
        return f"{labels[0]}-{len(labels)}"
    return f"{labels[0]}-{labels[-1]}" if len(labels[0]) == 1 else "/".join(labels)


def table(layout: Layout, columns: list[Column], counted: Mapping[str, Counted], notes: list[str]) -> Table:
    """Return the counts, where `layout.published` is set with published values and differences beside."""
    published = _published(layout.published) if layout.published and not layout.rehearsal else None
    lines = []
    for name, one in counted.items():
        ours = {column.key: one.cells.get(column.key, Cell()) for column in columns}
        shown = {"counted": ours}
        if published is not None:
            printed = {c.key: published.get(name, {}).get(c.key, Cell()) for c in columns}
            shown |= {"published": printed, "difference": {k: _apart(ours[k], printed[k]) for k in ours}}
        for kind, cells in shown.items():
            lines.append(Line("", one.label, kind if published is not None else "", kind, cells))
    missing = {one.label: "; ".join(one.missing) for one in counted.values() if one.missing}
    caption = layout.caption.rstrip(".") + "."
    if missing:
        caption += f" {len(missing)} of {len(counted)} data sets are missing or incomplete ({MISSING})."
    return Table(layout, columns, lines, caption, notes, missing, heads=("Suite", "Dataset", "Shown"))


def _published(name: str) -> dict[str, dict[str, Cell]]:
    path = Path(__file__).parent / "published" / Path(name).name
    if not path.is_file():
        raise ConfigError(f"table.published is {name!r}, which does not exist; give a CSV of eval/published.")
    with open(path, newline="") as lines:
        rows = csv.DictReader(lines)
        if "dataset" not in (rows.fieldnames or ()):
            raise ConfigError(f"table.published is {name!r}, which counts no data sets; give one that does.")
        return {
            row.pop("dataset"): {
                key: Cell(text=value) if key in NO_NUMBER else _number(float(value))
                for key, value in row.items()
                if key != "suite"
            }
            for row in rows
        }


def _apart(ours: Cell, printed: Cell) -> Cell:
    if ours.text is not None and printed.text is not None:
        return Cell(text="same" if ours.text == printed.text else "differs")
    if ours.value is None or printed.value is None:
        return Cell()
    return _number(ours.value - printed.value)
