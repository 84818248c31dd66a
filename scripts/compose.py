"""From overrides on the command line to checked run configurations, by Hydra; no torch, no model."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dypam.config import ConfigError, RunConfig
from scripts.configs import CONFIGS, chosen
from scripts.override import SCALED, check_choices, fixed, groups, is_choice, last, like, parse

FULL = "full"
"""The scale that changes nothing."""
NOT_OF_A_RUN = ("table", "figure", "draws", "runs", "scale", "datasets", "bench")
"""Top-level keys that say what is done with many runs, and belong to none."""
ONE = ("experiment", "scale", "hydra/launcher")
"""What a grid has one of: an experiment brings a grid of its own."""


def run_config(overrides: list[str]) -> RunConfig:
    """Return the checked configuration of one run; raise `ConfigError` on anything wrong."""
    return validated(compose(overrides))


def validated(config: DictConfig) -> RunConfig:
    """Return a composed configuration as a checked `RunConfig`."""
    with _telling():
        plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return RunConfig.from_resolved({str(key): plain[key] for key in plain if key not in NOT_OF_A_RUN})


@contextmanager
def _telling() -> Iterator[None]:
    """Turn what OmegaConf cannot resolve into a sentence that names it."""
    try:
        yield
    except OmegaConfBaseException as error:
        where, what = getattr(error, "full_key", None) or "A value", _first_line(error)
        _, unset, key = what.partition("Missing mandatory value: ")
        fault = f"{key} is ??? (not set): give it a value." if unset else f"{where}: {what}."
        raise ConfigError(fault) from error


def table(overrides: list[str]) -> dict[str, Any]:
    """Return how the table of an experiment is drawn; no published numbers at another scale than the full."""
    given = section(overrides, "table")
    if scale(overrides) != FULL:
        shown = [line for line in given["show"] if line not in ("published", "difference")]
        given |= {"published": None, "show": shown or ["mean"], "rehearsal": True}
    return given


def figure(overrides: list[str]) -> dict[str, Any]:
    """Return how the figure of an experiment is drawn."""
    return section(overrides, "figure")


def experiment(overrides: list[str]) -> dict[str, Any]:
    """Return what scripts/reproduce.py does for an experiment: `runs` and `draws`."""
    check_choices(overrides)
    config = _compose(_choosing(overrides, "runs", "draws"), with_hydra=False)
    with _telling():
        return {"runs": bool(config.runs), "draws": list(config.draws)}


def section(overrides: list[str], name: str) -> dict[str, Any]:
    """Return one of the top-level keys that belong to no run (`NOT_OF_A_RUN`)."""
    with _telling():
        given = compose(overrides)[name]
        if not OmegaConf.is_dict(given):
            raise ConfigError(f"{name} is {given}; give a mapping of its fields.")
        plain = OmegaConf.to_container(given, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def compose(overrides: list[str], *, with_hydra: bool = False) -> DictConfig:
    """Compose `configs/config.yaml` with overrides at their scale; raise only `ConfigError`."""
    for override in parse(overrides):
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line} names several runs: add -m to do them all.")
    check_choices(overrides)
    return _compose(expanded(overrides), with_hydra)


def _compose(overrides: list[str], with_hydra: bool) -> DictConfig:
    """Compose as Hydra does: the chosen files, once for all runs that share them, then the values."""
    parsed = parse(overrides)
    values = [item for item in parsed if not is_choice(item)]
    if not with_hydra:
        values = [item for item in values if not item.key_or_group.startswith("hydra.")]
    try:
        choices = tuple(item.input_line or "" for item in parsed if is_choice(item))
        config = copy.deepcopy(chosen(choices, with_hydra))
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error, overrides)) from error
    return config


def scale(overrides: list[str]) -> str:
    """Return the scale that overrides choose: `full`, or the name of a rehearsal."""
    return str(last(parse(overrides), "scale") or FULL)


def expanded(overrides: list[str]) -> list[str]:
    """Return what the overrides of one run mean to Hydra: the experiment by name, and the scale carried out.

    A scale puts other choices in the places of backbone and suite; its settings, and those it has for a
    method or for the folder that the method lies in, come before the given values, so that these win.
    """
    parsed = parse(overrides)
    experiment = last(parsed, "experiment")
    named = [f"runtime.experiment={experiment}"] if experiment else []
    if (name := scale(overrides)) == FULL:
        return named + overrides
    rule = OmegaConf.to_container(chosen((f"scale={name}",), False).scale)
    assert isinstance(rule, dict)
    others = tuple(i.input_line or "" for i in parsed if is_choice(i) and i.key_or_group not in SCALED)
    default = chosen(others, True).hydra.runtime.choices
    places = {group: str(last(parsed, group) or default[group]) for group in SCALED}
    for group in ("backbone", "suite"):
        places[group] = _in_place_of(places[group], group, rule[group], name)
    own = rule["method"].get(places["method"], rule["method"].get(places["method"].partition("/")[0], []))
    asked = {item.key_or_group for item in parsed}
    own = [setting for setting in own if parse([setting])[0].key_or_group not in asked]
    given = [item.input_line or "" for item in parsed if item.key_or_group not in SCALED]
    return [*named, *(f"{group}={choice}" for group, choice in places.items()), *rule["set"], *own, *given]


def _choosing(overrides: list[str], *keys: str) -> list[str]:
    """Return the choices that all runs of a grid share, Hydra's own settings and the values of `keys`.

    Other values may be of keys that are there only when a scale is carried out.
    """
    return [
        item.input_line or ""
        for item in parse(fixed(overrides))
        if is_choice(item) or item.key_or_group.startswith("hydra.") or item.key_or_group in keys
    ]


def _in_place_of(choice: str, group: str, known: dict[str, str], name: str) -> str:
    if choice not in known and choice not in known.values():
        raise ConfigError(
            f"scale={name} has no {group} in the place of {choice}: name one in configs/scale/{name}.yaml, "
            f"or choose another {group} ({', '.join(known)})."
        )
    return known.get(choice, choice)


def grid(overrides: list[str]) -> list[list[str]]:
    """Return the overrides of every run that `-m` means, an experiment's own grid included.

    A scale stays among them; it takes effect when a run is composed.
    """
    check_choices(overrides)
    params = _compose(_choosing(overrides), with_hydra=True).hydra.sweeper.get("params") or {}
    whole = [f"{key}={value}" for key, value in params.items() if not key.startswith("hydra.")]
    parsed = parse(whole + overrides)
    for override in parsed:
        if override.is_sweep_override() and override.key_or_group in ONE:
            raise ConfigError(f"{override.input_line} names several: give one, and a command to each.")
    try:
        batches = BasicSweeper.split_arguments(parsed, None)
    except HydraException as error:  # interval, glob
        raise ConfigError(f"{_first_line(error)}: list the values, as in seed=1,2 or range(1,3).") from error
    jobs = [
        [item for item in job if not item.lstrip("+~").startswith("hydra")]
        for batch in batches
        for job in batch
    ]
    if not jobs:
        raise ConfigError(f"{' '.join(overrides)} names no run: give at least one value to each key.")
    return jobs


def single(overrides: list[str]) -> list[str]:
    """Return the overrides of the one run that is meant without `-m`; raise `ConfigError` for a grid."""
    if any(override.is_sweep_override() for override in parse(overrides)):
        return overrides  # refused, by its name, when it is composed
    jobs = grid(overrides)
    if len(jobs) > 1:
        raise ConfigError(
            f"experiment={last(parse(overrides), 'experiment')} means {len(jobs)} runs: add -m to do them "
            f"all, or choose one by {', '.join(sorted(_varying(jobs)))}."
        )
    return jobs[0]


def _varying(jobs: list[list[str]]) -> set[str]:
    """Return the keys in which runs of a grid differ."""
    own = set().union(*jobs) - set(jobs[0]).intersection(*jobs)
    return {override.key_or_group for override in parse(sorted(own))}


def run_dirs(overrides: list[str]) -> list[str]:
    """Return the directories of all runs that `-m` means, composing each only if it must be."""
    given = grid(overrides)
    jobs = [expanded(job) for job in given]
    if _varying(given) - {*SCALED, "seed"}:
        return [validated(_compose(job, with_hydra=False)).run_dir for job in jobs]
    config, found = _compose(jobs[0], with_hydra=False), []
    for job in jobs:
        check_choices(job)
        parsed = parse(job)
        for group in SCALED:
            if choice := last(parsed, group):
                config[group].name = _name(group, choice)
        if (seed := last(parsed, "seed")) is not None:
            config.seed = seed
        with _telling():
            found.append(str(config.run_dir))
    return found


@cache
def _name(group: str, choice: str) -> str:
    """Return the name that the file of a choice gives, most of them in a line of their own."""
    own = re.search(r"^name: (\S+)$", (CONFIGS / group / f"{choice}.yaml").read_text(), re.MULTILINE)
    return own[1] if own else str(chosen((f"{group}={choice}",))[group].name)


def launcher(overrides: list[str]) -> str:
    """Return the name of the Hydra launcher that the overrides choose."""
    return str(_compose(_choosing(overrides), with_hydra=True).hydra.runtime.choices["hydra/launcher"])


def _explain(error: Exception, overrides: list[str]) -> str:
    """Return one sentence for an error of Hydra's that an override caused."""
    keys, parsed = _keys(), parse(overrides)
    for override in [item for item in parsed if f"'{item.key_or_group}'" in str(error)] or parsed:
        key = override.key_or_group
        if key not in keys and not override.is_add() and not override.is_force_add() and "/" not in key:
            beside = [name for name in keys if name.rpartition(".")[0] == key.rpartition(".")[0]]
            advice = like(key, keys, beside or [name for name in keys if "." not in name])
            return f"{override.input_line} sets {key}, which is no known key; {advice}"
    known = ", ".join(getattr(error, "options", None) or [])
    return f"{_first_line(error)}; {f'there are {known}' if known else 'see --help'}."


@cache
def _keys() -> tuple[str, ...]:
    """Return every dotted key of the default configuration, and the groups."""
    config = chosen(())

    def walk(value: Any, prefix: str) -> list[str]:
        found = []
        for key in value:
            found.append(f"{prefix}{key}")
            if OmegaConf.is_dict(value._get_node(key)):
                found += walk(value._get_node(key), f"{prefix}{key}.")
        return found

    return tuple(dict.fromkeys([*groups(), *walk(config, "")]))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
