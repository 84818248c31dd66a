"""Which runs may not stand in one table, and what a table must say of those that do.

Runs whose configuration or backbone differs where it must not are refused by name; code states and settings
that may differ are noted, and the notes stand under every table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dypam.config import ConfigError, differences

if TYPE_CHECKING:
    from eval.aggregate import Key

_Part = Callable[[dict[str, Any]], dict[str, Any]]
"""What of a run's identity is compared."""

# What must be the same in all runs of a table, what only over the seeds of one cell, and what is noted.
_EVERYWHERE = ("suite", "prompt")
_DECODE = ("max_new_tokens", "precision")


def refuse(records: Mapping[Key, dict[str, Any]]) -> list[str]:
    """Raise `ConfigError` on runs that must not stand in one table; return notes on what may differ."""
    first_of_cell: dict[tuple[str, str], Key] = {}
    first_of_backbone: dict[str, Key] = {}
    varying: set[str] = set()
    first = next(iter(records), None)
    for key, record in records.items():
        assert first is not None
        same = first_of_cell.setdefault((key.backbone, key.method), key)
        _compare(records, same, key, lambda i: {**i, "seed": None})
        same = first_of_backbone.setdefault(key.backbone, key)
        _compare(records, same, key, lambda i: {"backbone": i["backbone"]})
        _compare(records, first, key, _shared)
        for phrase in differences(_may_vary(records[first]["identity"]), _may_vary(record["identity"])):
            varying.add(phrase.split(" is ")[0])
    _refuse_other_weights(records)
    varying |= _precisions(records.values())
    notes = [f"Settings that differ between rows: {', '.join(sorted(varying))}."] if varying else []
    return notes + _code_states(records.values())


def _shared(identity: dict[str, Any]) -> dict[str, Any]:
    decode = {name: identity["decode"][name] for name in _DECODE}
    return {**{name: identity[name] for name in _EVERYWHERE}, "decode": decode}


def _may_vary(identity: dict[str, Any]) -> dict[str, Any]:
    decode = {name: value for name, value in identity["decode"].items() if name not in _DECODE}
    return {"train": identity["train"], "decode": decode}


def _precisions(records: Iterable[dict[str, Any]]) -> set[str]:
    """Return the precisions that were not the same in fact, as `auto` is another one on another device."""
    found: dict[str, set[str]] = {"train.precision": set(), "decode.precision": set()}
    for record in records:
        found["train.precision"].add(record.get("precision", {}).get("mode"))
        found["decode.precision"].add(record.get("generation", {}).get("precision"))
    return {name for name, values in found.items() if len(values - {None}) > 1}


def _compare(records: Mapping[Key, dict[str, Any]], one: Key, other: Key, part: _Part) -> None:
    phrases = differences(part(records[one]["identity"]), part(records[other]["identity"]))
    if phrases:
        raise _cannot_mix(one, other, phrases[:3])


def _refuse_other_weights(records: Mapping[Key, dict[str, Any]]) -> None:
    """Raise `ConfigError` where one backbone's runs had different weights: its folder was filled anew."""
    known: dict[str, tuple[Key, str]] = {}
    for key, record in records.items():
        trained, answered = record.get("backbone", {}), record.get("generation", {})
        digest = trained.get("weights_digest") or answered.get("weights_digest")
        if digest:
            one, first = known.setdefault(key.backbone, (key, digest))
            if digest != first:
                raise _cannot_mix(one, key, [f"backbone weights are {first[:12]} there, {digest[:12]} here"])


def _cannot_mix(one: Key, other: Key, phrases: list[str]) -> ConfigError:
    return ConfigError(
        f"runs {one} and {other} cannot stand in one table ({'; '.join(phrases)}): "
        "remove the folder of one and run it again like the other, or leave it out of the grid."
    )


def _code_states(records: Iterable[dict[str, Any]]) -> list[str]:
    """Return a note if the runs come from more than one code state, or from one that no commit holds."""
    states: Counter[str] = Counter()
    for record in records:
        found = [attempt.get("git") for attempt in record.get("attempts", [])] or [record.get("git")]
        states.update({_state(git) for git in found})
    if not states or (len(states) == 1 and not next(iter(states)).endswith("changes")):
        return []
    listed = ", ".join(f"{state} ({count})" for state, count in states.most_common())
    return [f"Code states, with their number of runs: {listed}."]


def _state(git: dict[str, Any] | None) -> str:
    if not git:
        return "unknown"
    return f"{git['commit'][:7]}{' with uncommitted changes' if git['dirty'] else ''}"
