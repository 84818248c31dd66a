"""The published numbers as tables need them; they were typed from the paper and its two thesis chapters."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from dypam.config import ConfigError, TestSet
from eval.layout import Layout


def read_published(path: str | Path) -> dict[tuple[str, str], dict[str, float]]:
    """Return the numbers of a published table by (backbone, method) and column; blank cells are left out."""
    file = Path(path)
    if not file.is_absolute():
        file = Path(__file__).parent / file.name
    if not file.exists():
        raise ConfigError(f"table.published is {path!r}, which does not exist; give a CSV of eval/published.")
    with open(file, newline="") as lines:
        rows = list(csv.DictReader(lines))
    # one file says "variant", as it lists settings of one method
    return {
        (row.pop("backbone", ""), row.pop("method", None) or row.pop("variant")): {
            key: float(value) for key, value in row.items() if value
        }
        for row in rows
    }


def published_beside(layout: Layout, sets: Mapping[str, TestSet]) -> dict[tuple[str, str], dict[str, float]]:
    """Return published numbers by (backbone, method), under the names that methods have here.

    Raises:
        ConfigError: ours are of other test sets, or `published_names` names what the file does not have.
    """
    if not layout.published:
        return {}
    found, sizes = _renamed(read_published(layout.published), layout), published_sizes()
    for name, test in sets.items():
        if {"published", "difference"} & set(layout.show) and test.rows != sizes.get(name, test.rows):
            raise ConfigError(
                f"suite.tests.{name}.rows is {test.rows}, the published test set has {sizes[name]}: their "
                "numbers are not to be compared; remove published and difference from table.show."
            )
    if any(backbone for backbone, _ in found):
        return found
    if layout.published_backbone:
        return {(layout.published_backbone, method): row for (_, method), row in found.items()}
    # one average, with the backbones as columns
    average = "macro_avg" if "macro" in Path(layout.published).stem else "micro_avg"
    return {(b, m): {average: value} for (_, m), row in found.items() for b, value in row.items()}


def _renamed(
    found: Mapping[tuple[str, str], dict[str, float]], layout: Layout
) -> dict[tuple[str, str], dict[str, float]]:
    ours = {theirs: name for name, theirs in layout.published_names.items()}
    if len(ours) < len(layout.published_names):
        raise ConfigError("table.published_names gives one published name to two methods; leave one out.")
    if unknown := sorted(set(ours) - {method for _, method in found}):
        raise ConfigError(
            f"table.published_names has {unknown[0]!r}, which {layout.published} does not; "
            f"it has {', '.join(dict.fromkeys(method for _, method in found))}."
        )
    return {(backbone, ours.get(method, method)): row for (backbone, method), row in found.items()}


def published_sizes() -> dict[str, int]:
    """Return the number of examples of every published test set (Tables 5 and 6)."""
    return {name: size for suite in published_suites() for name, size in suite.items()}


@cache
def published_suites() -> list[dict[str, int]]:
    """Return the number of examples of every published test set, suite by suite."""
    suites: dict[str, dict[str, int]] = {}
    with open(Path(__file__).parent / "table5_6_test_sets.csv", newline="") as lines:
        for row in csv.DictReader(lines):
            suites.setdefault(row["suite"], {})[row["dataset"]] = int(row["samples"])
    return list(suites.values())
