"""Making a tuner known to PEFT from outside: its type, its prefix, and clean files with several adapters."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import peft
from peft import PeftConfig, PeftType
from peft.tuners.tuners_utils import BaseTuner
from peft.utils import register_peft_method

_OURS: set[str] = set()


def register(name: str, config_cls: type[PeftConfig], model_cls: type[BaseTuner]) -> None:
    """Register a tuner: type `name.upper()`, prefix `name_`; a second call changes nothing."""
    if name.upper() in _OURS:
        return
    extend_peft_type(name.upper())
    register_peft_method(name=name, config_cls=config_cls, model_cls=model_cls)
    _OURS.add(name.upper())
    if not hasattr(BaseTuner, "_get_adapter_state_dict"):
        _save_one_adapter_only()


def extend_peft_type(name: str) -> PeftType:
    """Return the member `name` of the enumeration `PeftType`, added if it is not there."""
    if name in PeftType.__members__:
        return PeftType[name]
    member = str.__new__(PeftType, name)
    member._name_ = name
    member._value_ = name
    setattr(PeftType, name, member)
    PeftType._member_names_.append(name)
    PeftType._member_map_[name] = member
    PeftType._value2member_map_[name] = member
    return member


def _save_one_adapter_only() -> None:
    """Mend PEFT 0.18, which writes all adapters of a tuner unknown to it into each adapter's file."""
    original = peft.utils.save_and_load.get_peft_model_state_dict
    if getattr(original, "one_adapter_only", False):
        return

    @functools.wraps(original)
    def get_peft_model_state_dict(
        model: Any, state_dict: dict | None = None, adapter_name: str = "default", **kwargs: Any
    ) -> dict:
        if model.peft_config[adapter_name].peft_type in _OURS:
            others = tuple(f".{name}" for name in model.peft_config if name != adapter_name)
            state_dict = model.state_dict() if state_dict is None else state_dict
            state_dict = {
                key: value
                for key, value in state_dict.items()
                if not any(f"{other}." in key or key.endswith(other) for other in others)
            }
        return original(model, state_dict, adapter_name, **kwargs)

    get_peft_model_state_dict.one_adapter_only = True  # type: ignore[attr-defined]
    modules: list[ModuleType] = [peft, peft.peft_model, peft.utils, peft.utils.save_and_load]
    for module in modules:
        module.get_peft_model_state_dict = get_peft_model_state_dict  # type: ignore[attr-defined]
