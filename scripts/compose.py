"""From overrides on the command line to checked run configurations, by Hydra; no torch, no model."""

from __future__ import annotations

import difflib
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dypam.config import ConfigError, RunConfig

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
NOT_OF_A_RUN = ("table", "figure")
"""Top-level keys that say what is done with many runs, and belong to none."""


def run_config(overrides: list[str]) -> RunConfig:
    """Return the checked configuration of one run; raise `ConfigError` on anything wrong."""
    for override in _parse(overrides):
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line} names several runs: add -m to do them all.")
    return validated(compose(overrides))


def validated(config: DictConfig) -> RunConfig:
    """Return a composed configuration as a checked `RunConfig`."""
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        where, what = getattr(error, "full_key", None) or "A value", _first_line(error)
        _, unset, key = what.partition("Missing mandatory value: ")
        fault = f"{key} is ??? (not set): give it a value." if unset else f"{where}: {what}."
        raise ConfigError(fault) from error
    assert isinstance(plain, dict)
    return RunConfig.from_resolved({str(key): plain[key] for key in plain if key not in NOT_OF_A_RUN})


def table(overrides: list[str]) -> dict[str, Any]:
    """Return how the table of an experiment is drawn."""
    return _section(overrides, "table")


def figure(overrides: list[str]) -> dict[str, Any]:
    """Return how the figure of an experiment is drawn."""
    return _section(overrides, "figure")


def _section(overrides: list[str], name: str) -> dict[str, Any]:
    plain = OmegaConf.to_container(compose(overrides)[name], resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def compose(overrides: list[str], *, with_hydra: bool = False) -> DictConfig:
    """Compose `configs/config.yaml` with overrides; raise `ConfigError` instead of Hydra's errors."""
    _check_choices(overrides)
    try:
        with _hydra():
            return hydra_compose("config", overrides, return_hydra_config=with_hydra)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error, overrides)) from error


def grid(overrides: list[str]) -> list[list[str]]:
    """Return the overrides of every run that `-m` means, an experiment's own grid included."""
    parsed = _parse(overrides)
    fixed = [override.input_line or "" for override in parsed if not override.is_sweep_override()]
    params = compose(fixed, with_hydra=True).hydra.sweeper.get("params") or {}
    whole = [f"{key}={value}" for key, value in params.items() if not key.startswith("hydra.")]
    return [
        [item for item in job if not item.startswith("hydra")]
        for batch in BasicSweeper.split_arguments(_parse(whole + overrides), None)
        for job in batch
    ]


def launcher(overrides: list[str]) -> str:
    """Return the name of the Hydra launcher that the overrides choose."""
    fixed = [item.input_line or "" for item in _parse(overrides) if not item.is_sweep_override()]
    return str(compose(fixed, with_hydra=True).hydra.runtime.choices["hydra/launcher"])


def choices(group: str) -> list[str]:
    """Return the names that a configuration group offers, those in its folders with the folder's name."""
    folder = CONFIGS / group
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def groups() -> list[str]:
    """Return the configuration groups that a run is made of."""
    return sorted(path.name for path in CONFIGS.iterdir() if path.is_dir() and path.name != "hydra")


def help_text(doc: str) -> str:
    """Return a script's help: its own text, the choices of every group, all single values with defaults."""
    lines = [doc.strip(), "", "Choices (each one file, configs/GROUP/NAME.yaml):"]
    for group in groups():
        if group != "testset":
            lines.append(
                textwrap.fill(" | ".join(choices(group)), 100, initial_indent=f"  {group}=", **_WRAP)
            )
    lines += ["", "Single values and their defaults:"]
    for group in ("train", "decode"):
        lines += _values((CONFIGS / group / "default.yaml").read_text(), f"{group}.")
    body = (CONFIGS / "config.yaml").read_text().partition("\nseed:")[2].partition("\n# Hydra")[0]
    lines += _values("seed:" + body, "")
    lines += ["", "Exit codes: 0 done, 1 failed, 2 wrong input, 3 another worker has the run."]
    return "\n".join(
        [*lines, "Hydra's flags: -m (a grid of runs), --cfg job (print the configuration), --info."]
    )


_WRAP: dict[str, Any] = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}


def _values(text: str, prefix: str) -> list[str]:
    """Return the lines `key=value   # comment` of a YAML file of plain values, at most two levels deep."""
    lines, section = [], prefix
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        if not value.strip():
            section = f"{key}."
        else:
            section = section if line.startswith(" ") else prefix
            lines.append(f"  {section}{key.strip()}={value.strip()}")
    return lines


def _hydra() -> Any:
    GlobalHydra.instance().clear()
    return initialize_config_dir(str(CONFIGS), version_base="1.3")


def _parse(overrides: list[str]) -> list[Override]:
    parser, parsed = OverridesParser.create(), []
    for item in overrides:
        try:
            parsed += parser.parse_overrides([item])
        except HydraException as error:
            why = "quote its value, as in 'KEY=\"[1, 2]\"'" if "=" in item else "write KEY=VALUE"
            raise ConfigError(f"{item} is no override that can be read: {why}.") from error
    return parsed


def _check_choices(overrides: list[str]) -> None:
    """Refuse a group's unknown choice, with the closest one."""
    for override in _parse(overrides):
        group = override.key_or_group
        if override.is_delete() or not (CONFIGS / group).is_dir() or group.startswith("hydra"):
            continue
        value = override.value()
        known = choices(group)
        if isinstance(value, str) and value not in known:
            raise ConfigError(f"{group}={value} is no choice; {_like(value, known)}")


def _explain(error: Exception, overrides: list[str]) -> str:
    """Return one sentence for an error of Hydra's that an override caused."""
    keys = _keys()
    for override in _parse(overrides):
        key = override.key_or_group
        if key not in keys and not override.is_add() and not override.is_force_add() and "/" not in key:
            return f"{override.input_line} sets {key}, which is no known key; {_like(key, keys)}"
    known = ", ".join(getattr(error, "options", None) or [])
    return f"{_first_line(error)}; {f'there are {known}' if known else 'see --help'}."


@cache
def _keys() -> tuple[str, ...]:
    """Return every dotted key of the default configuration, and the groups."""
    with _hydra():
        config = hydra_compose("config")

    def walk(value: Any, prefix: str) -> list[str]:
        found = []
        for key in value:
            found.append(f"{prefix}{key}")
            if OmegaConf.is_dict(value._get_node(key)):
                found += walk(value._get_node(key), f"{prefix}{key}.")
        return found

    return tuple(dict.fromkeys([*groups(), *walk(config, "")]))


def _like(word: str, known: list[str] | tuple[str, ...]) -> str:
    last = {name.rpartition(".")[2]: name for name in known}
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6) or [
        last[name]
        for name in difflib.get_close_matches(word.rpartition(".")[2], list(last), n=1, cutoff=0.75)
    ]
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}."


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
