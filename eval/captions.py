"""The words of a table: its caption, and the notes under it."""

from __future__ import annotations

from typing import Any

from eval.aggregate import Collection
from eval.layout import Column, Layout

REHEARSAL = (
    "Rehearsal on nano models: no result of the paper's models, and not comparable with published numbers."
)


def words(
    collection: Collection, layout: Layout, columns: list[Column], tests: list[dict[str, Any]]
) -> tuple[str, list[str]]:
    """Return the caption, and the notes under the table."""
    grid = collection.grid
    caption = layout.caption.rstrip(".") + "."
    if collection.missing:
        total = len(grid.runs())
        caption += f" {len(collection.missing)} of {total} runs are missing (—)."
    notes = [REHEARSAL] if layout.rehearsal else []
    seeds = f"seed{'s' * (len(grid.seeds) > 1)} {', '.join(map(str, grid.seeds))}"
    total = max((c.n or 0 for c in columns if c.kind == "average"), default=0)
    total = total or sum(c.n or 0 for c in columns)
    notes.append(f"Accuracy in %, {total} examples in all; {seeds}.")
    notes.append(f"Protocol: {', '.join(layout.protocols)}. Best in bold, second underlined; ties share.")
    if any("star" in test for test in tests) and len(grid.seeds) > 1:
        name = {"student": "Student", "welch": "Welch", "paired": "paired"}[layout.test]
        adjusted = ", Holm-adjusted" if layout.holm else ""
        notes.append(f"* above the best baseline: two-sided t-test ({name}) over seeds, p < 0.05{adjusted}.")
        if incomplete := dict.fromkeys(test["backbone"] for test in tests if not test.get("complete", True)):
            notes.append(f"No star on {', '.join(incomplete)}, where runs are missing.")
    for test in tests:
        if test["test"] == "mcnemar":
            pair = f"{layout.ours} against {test['best_baseline']} ({test['protocol']}, n = {test['n']})"
            split = f"only one right on {test['only_a']} and {test['only_b']}, p = {test['p']:.2g}"
            notes.append(f"McNemar's test, {pair}: {split}.")
    notes += _chance_notes(tests)
    if layout.cut:
        decimals = "decimal" if layout.digits == 1 else "decimals"
        notes.append(f"Seed {layout.seed} is cut after {layout.digits} {decimals}, as published numbers are.")
    dirty = [f"{c.label}: {c.contaminated}" for c in columns if c.contaminated]
    if dirty:
        notes.append(f"† contaminated by training data. {'; '.join(dirty)}.")
    return caption, notes + collection.notes


def _chance_notes(tests: list[dict[str, Any]]) -> list[str]:
    counted: dict[tuple[str, str, str], list[float]] = {}
    for test in tests:
        if test["test"] == "above_chance":
            key = (test["backbone"], test["method"], test["protocol"])
            counted.setdefault(key, []).append(test["p"])
    if not counted:
        return []
    several = len({key[0] for key in counted}) > 1
    each = []
    for (backbone, method, protocol), ps in counted.items():
        name = f"{backbone} {method}" if several else method
        sets = "test set" if len(ps) == 1 else "test sets"
        each.append(f"{name} ({protocol}) on {sum(p < 0.01 for p in ps)} of {len(ps)} {sets}")
    return [f"Above chance (exact binomial, p < 0.01): {', '.join(each)}."]
