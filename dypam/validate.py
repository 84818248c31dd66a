"""The validation behind `RunConfig.from_resolved`: keys and types by the dataclasses, values by one table.

No torch, no file is read: a wrong config costs a fraction of a second.  `check_targets` goes one step
further and imports what the `_target_`s name.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from dypam.config import ConfigError, RunConfig, closest

if TYPE_CHECKING:
    from dypam.method import Method

# the formats that eval/extract.py reads; said again, as the wheel has no `data`
ANSWERS = ("number", "letter5", "boolean", "solution2", "answer3", "answer4", "answer5", "ending4", "option2")
TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PLAIN = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a mapping"}

Rule = tuple[Callable[[Any], bool], str]


def _one_of(*choices: str) -> Rule:
    return lambda value: value in choices, f"one of {', '.join(choices)}"


_above_zero: Rule = (lambda value: value > 0, "a number above 0")
_not_negative: Rule = (lambda value: value >= 0, "0 or a number above it")
_count: Rule = (lambda value: value >= 1, "a whole number of at least 1")
_filled: Rule = (lambda value: bool(value.strip()), "some text")
_name: Rule = (
    lambda value: NAME.fullmatch(value) is not None,
    "a name of at most 100 letters, digits, dots, hyphens and underscores that starts with a letter or digit "
    "(it becomes part of a path)",
)
_target: Rule = (
    lambda value: isinstance(value.get("_target_"), str) and TARGET.fullmatch(value["_target_"]) is not None,
    "a mapping whose _target_ is the dotted path of a class or function, such as package.module.Name",
)
_architecture: Rule = (
    lambda value: isinstance(value.get("model_type"), str) and bool(value["model_type"]),
    "a mapping of Transformers config fields with model_type",
)

RULES: dict[str, Rule] = {
    "backbone.name": _name,
    "backbone.path": _filled,
    "backbone.architecture": _architecture,
    "backbone.whole_checkpoint": _architecture,
    "backbone.convert": _target,
    "method": _target,
    "method.name": _name,
    "suite.name": _name,
    "suite.train": _target,
    "suite.tests": (bool, "a mapping of at least one test set"),
    "suite.tests.*.name": _name,
    "suite.tests.*.source": _target,
    "suite.tests.*.answer": _one_of(*ANSWERS),
    "suite.tests.*.rows": _count,
    "suite.tests.*.chance": (lambda value: 0 <= value <= 1, "a fraction from 0 to 1"),
    "prompt.bos": _one_of("tokenizer", "literal", "none"),
    "train.lr": _above_zero,
    "train.warmup_ratio": (lambda value: 0 <= value <= 1, "a fraction from 0 to 1"),
    "train.weight_decay": _not_negative,
    "train.betas": (
        lambda value: len(value) == 2 and all(0 <= beta < 1 for beta in value),
        "two numbers from 0 to below 1, such as [0.9, 0.999]",
    ),
    "train.eps": _above_zero,
    "train.micro_batch": _count,
    "train.global_batch": _count,
    "train.epochs": _above_zero,
    "train.max_steps": _count,
    "train.max_length": (lambda value: value >= 2, "a whole number of at least 2 tokens"),
    "train.validation_size": _count,
    "train.eval_every": _count,
    "train.checkpoint_every": _count,
    "train.keep_checkpoints": _count,
    "train.precision": _one_of("auto", "fp32", "bf16", "bf16_autocast", "bf16_engine"),
    "train.loss_on": _one_of("response", "all"),
    "train.loss_normalization": _one_of("step", "micro_batch"),
    "train.clip_grad": _above_zero,
    "train.logit_rows": _count,
    "train.attn_implementation": _one_of("sdpa", "eager", "flash_attention_2"),
    "decode.max_new_tokens": _count,
    "decode.batch_size": _count,
    "decode.precision": _one_of("auto", "fp32", "bf16", "bf16_autocast"),
    "runtime.device": (
        lambda value: re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is not None,
        "auto, cpu, cuda, or one GPU such as cuda:0",
    ),
    "runtime.threads": _count,
    "runtime.workers": _count,
    "runtime.cache_dir": _filled,
    "runtime.data_mirror": _filled,
    "runtime.wandb": _one_of("auto", "online", "offline", "off"),
    "runtime.wandb_project": _filled,
    "runtime.lease_ttl": _above_zero,
    "seed": (lambda value: 0 <= value < 2**32, "a whole number from 0 to 4294967295"),
    "results": _filled,
    "run_dir": _filled,
}


def run_config(resolved: dict[str, Any]) -> RunConfig:
    """Return the typed configuration; raises `ConfigError`, one sentence with field, value and fix."""
    config: RunConfig = _build(RunConfig, resolved, "")
    if "name" not in config.method:
        raise ConfigError("method.name is missing; add it to the configuration.")
    _convert(str, config.method["name"], "method.name")
    _check_combinations(config)
    return config


def _dotted(prefix: str, key: Any) -> str:
    return f"{prefix}.{key}" if prefix else str(key)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _like(word: str, known: Iterable[str]) -> str:
    """Return the advice for an unknown key."""
    close = closest(word, known)
    return f"use {close} instead." if close else f"remove it, or use one of {', '.join(known)}."


def _build(cls: type, value: Any, where: str) -> Any:
    """Return the dataclass `cls` from a mapping, checking keys, types and values on the way down."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where or 'the configuration'} is {_show(value)}; give a mapping of its fields.")
    hints, known = typing.get_type_hints(cls), {field.name: field for field in fields(cls)}
    for key in value:
        if key not in known:
            name = _dotted(where, key)
            raise ConfigError(
                f"{name} (value {_show(value[key])}) is not a known key; {_like(str(key), known)}"
            )
    built = {}
    for key, field in known.items():
        name = _dotted(where, key)
        if key in value:
            built[key] = _convert(hints[key], value[key], name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{name} is missing; add it to the configuration.")
    return cls(**built)


def _convert(hint: Any, value: Any, name: str) -> Any:
    """Return `value` as the type `hint` says, checked against the rule of `name`."""
    if value == "???":
        raise ConfigError(f"{name} is ??? (not set); give it on the command line or in its YAML file.")
    if hint is Any:
        return _convert(dict[str, Any], value, name) if isinstance(value, dict) else value
    optional = isinstance(hint, types.UnionType)
    if optional:
        if value is None:
            return None
        hint = typing.get_args(hint)[0]
    if is_dataclass(hint):
        return _build(typing.cast(type, hint), value, name)
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is list and isinstance(value, list | tuple):
        value = [_convert(arguments[0], item, f"{name}[{place}]") for place, item in enumerate(value)]
    elif origin is dict and isinstance(value, dict):
        value = {str(key): _convert(arguments[1], item, _dotted(name, key)) for key, item in value.items()}
    elif origin is float and type(value) is int:
        value = float(value)
    elif name == "runtime.wandb" and value is False:  # YAML's own reading of `off`
        value = "off"
    if type(value) is not origin or (origin is float and not math.isfinite(value)):
        wanted = PLAIN.get(origin, "a list of numbers") + (" or null" if optional else "")
        raise ConfigError(f"{name} is {_show(value)}; give {wanted}.")
    _check_rule(name, value)
    return value


def _check_rule(name: str, value: Any) -> None:
    good, wanted = RULES.get(re.sub(r"^suite\.tests\.[^.]+\.", "suite.tests.*.", name), (lambda _: True, ""))
    if not good(value):
        raise ConfigError(f"{name} is {_show(value)}; give {wanted}.")


def _check_combinations(config: RunConfig) -> None:
    train, runtime = config.train, config.runtime
    if train.global_batch % train.micro_batch:
        raise ConfigError(
            f"train.global_batch is {train.global_batch}, which train.micro_batch={train.micro_batch} "
            "does not divide; give a multiple of it."
        )
    if train.attn_implementation == "flash_attention_2":
        if runtime.device == "cpu":
            raise ConfigError(
                "train.attn_implementation is 'flash_attention_2', which needs a GPU, and runtime.device is "
                "'cpu'; set train.attn_implementation=sdpa."
            )
        if "fp32" in (train.precision, config.decode.precision):
            raise ConfigError(
                "train.attn_implementation is 'flash_attention_2', which cannot work in fp32; set "
                "train.precision and decode.precision to bf16, or train.attn_implementation=sdpa."
            )
    for key, test in config.suite.tests.items():
        if key != test.name:
            raise ConfigError(
                f"suite.tests.{key}.name is {test.name!r}; use one word for both, such as tests.{test.name}."
            )


def check_targets(config: RunConfig) -> Method:
    """Check that every `_target_` exists and takes the arguments given; return the method, built.

    Loads no data and no model, but may import torch (a method's module does).  Raises `ConfigError`.
    """
    from dypam.method import Method

    check_call(config.suite.train, "suite.train", "files")
    for name, test in config.suite.tests.items():
        check_call(test.source, f"suite.tests.{name}.source", "files")
    target = check_call(config.method, "method")
    if not (isinstance(target, type) and issubclass(target, Method)):
        raise ConfigError(
            f"method._target_ is {config.method['_target_']!r}; give a subclass of dypam.method.Method."
        )
    if config.decode.merge and target.trainable and not target.mergeable:
        raise ConfigError(
            f"decode.merge is true, but the method {config.method['name']} cannot be merged into the "
            "backbone; set decode.merge=false."
        )
    return _build_method(config.method)


def _build_method(call: dict[str, Any]) -> Method:
    """Return the method; a value that its constructor refuses is a `ConfigError`."""
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        method: Method = instantiate(call, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        reason = _first_line(error.__cause__ or error)
        raise ConfigError(f"method {call['name']} refuses its arguments ({reason}); correct them.") from error
    return method


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _locate(path: str, name: str) -> Any:
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        fault = f"cannot be imported ({_first_line(error)})"
        raise ConfigError(f"{name}._target_ is {path!r}, which {fault}; correct it.") from error


def check_call(call: dict[str, Any], name: str, *extra: str) -> Any:
    """Return the object that `call` names, if it takes the arguments of `call` and `extra`.

    `name` is where the call stands in the configuration; `ConfigError` names it.
    """
    target = _locate(call["_target_"], name)
    parameters = inspect.signature(target).parameters
    given = [key for key in call if key != "_target_"] + list(extra)
    known = [key for key, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in given:
            if key not in known:
                shown = f" (value {_show(call[key])})" if key in call else ""
                raise ConfigError(
                    f"{name}.{key}{shown} is unknown to {call['_target_']}; {_like(key, known)}"
                )
    for key in known:
        if key not in given and parameters[key].default is inspect.Parameter.empty:
            raise ConfigError(f"{name}.{key} is missing; {call['_target_']} needs it.")
    return target
