"""What overrides of a command line say, one by one, before anything is composed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from dypam.config import ConfigError, closest
from scripts.configs import CONFIGS

SCALED = ("backbone", "suite", "method")
"""The groups whose choices a scale replaces or, of methods, changes."""


def parse(overrides: list[str]) -> list[Override]:
    """Return overrides as Hydra reads them; raise `ConfigError` for one that it cannot read."""
    return [override for item in overrides for override in _parse_one(item)]


@cache
def _parse_one(item: str) -> tuple[Override, ...]:
    try:
        return tuple(OverridesParser.create().parse_overrides([item]))
    except HydraException as error:
        why = "quote its value, as in 'KEY=\"[1, 2]\"'" if "=" in item else "write KEY=VALUE"
        raise ConfigError(f"{item} is no override that can be read: {why}.") from error


def last(parsed: list[Override], key: str) -> Any:
    """Return the value that the last override of a key gives; None without one."""
    values = [item.value() for item in parsed if item.key_or_group == key and not item.is_delete()]
    return values[-1] if values else None


def fixed(overrides: list[str]) -> list[str]:
    """Return the overrides that all runs of a grid share."""
    return [item.input_line or "" for item in parse(overrides) if not item.is_sweep_override()]


def is_choice(override: Override) -> bool:
    """Whether an override chooses a file of a group; the others set a value."""
    key = override.key_or_group
    return override.package is not None or "/" in key or (CONFIGS / key).is_dir()


def choices(group: str) -> list[str]:
    """Return the names that a configuration group offers, those in its folders with the folder's name."""
    return list(_files(group))


@cache
def _files(group: str) -> tuple[str, ...]:
    folder = CONFIGS / group
    return tuple(sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml")))


def groups() -> list[str]:
    """Return the configuration groups that a run is made of."""
    return sorted(path.name for path in CONFIGS.iterdir() if path.is_dir() and path.name != "hydra")


def check_choices(overrides: list[str]) -> None:
    """Refuse a group's unknown choice, with the closest one, and a group that is left out."""
    for override in parse(overrides):
        group = override.key_or_group
        if not (CONFIGS / group).is_dir() or group.startswith("hydra"):
            continue
        if override.is_delete() and group in SCALED:
            raise ConfigError(f"{override.input_line} leaves no {group}; choose one, as {group}=NAME.")
        if override.is_delete() or override.is_sweep_override() or isinstance(override.value(), dict):
            continue
        known, value = choices(group), override.get_value_string()
        if override.value() not in known:
            raise ConfigError(f"{group}={value} is no choice; {like(value, known, known)}")


def like(word: str, known: Sequence[str], instead: Sequence[str]) -> str:
    """Return advice for an unknown name: the known one that is meant, or all that may stand there."""
    close = closest(word, known)
    return f"did you mean {close}?" if close else f"there are {', '.join(instead)}."
