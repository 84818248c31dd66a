"""What DyPAM and RoSA share as PEFT tuners: what they wrap, strict loading, no merging, the digest."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from torch import nn

from dypam.attention import Geometry, is_rotary_attention, rotary_attentions
from dypam.config import ConfigError
from dypam.tuner.digest import weights_digest
from dypam.tuner.layers import Adapter, AdapterLayer, AttentionLayer, NormLayer


@dataclass
class RotaryConfig(PeftConfig):
    """Options of every rotary tuner; it adapts all self-attention layers of the text model, only those."""

    train_norms: bool | str = field(
        default=False,
        metadata={
            "help": "Train FP32 copies of the norms: true = all of them; blocks = all but the final one"
        },
    )
    init_seed: int | None = field(
        default=None,
        metadata={"help": "Seed of the adapter's own initial weights; null = torch's global generator"},
    )
    backbone_digest: str | None = field(
        default=None,
        metadata={"help": "Digest of the weights adapted; other weights are refused. Null = fill in"},
    )
    modules_to_save: list[str] | None = field(
        default=None, metadata={"help": "Names of further modules to train and to save with the adapter"}
    )
    target_modules = None  # no field: PEFT reads it, and there is nothing to choose

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            "train_norms", self.train_norms in (False, True, "blocks"), "must be false, true or 'blocks'"
        )

    def require(self, name: str, holds: bool, fix: str) -> None:
        """Raise `ConfigError`, naming the field and its value, unless `holds`."""
        if not holds:
            raise ConfigError(f"{name}={getattr(self, name)!r}: {fix}.")


class RotaryTuner(BaseTuner):
    """A PEFT model that wraps every rotary self-attention layer of the text model.

    Subclasses set `prefix` and make their `Adapter`.
    """

    tuner_layer_cls = AdapterLayer
    target_module_mapping: dict[str, list[str]] = {}  # noqa: RUF012 (PEFT's own declaration)

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        self.register_load_state_dict_pre_hook(check_keys)

    def make(self, config: Any, geometry: Geometry, attention: nn.Module, device: torch.device) -> Adapter:
        """Return a new adapter for one attention layer, to be `reset` before use."""
        raise NotImplementedError

    def inject_adapter(self, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        """Add an adapter; its config is copied first, as this backbone's digest is written into it."""
        self.peft_config[adapter_name] = copy.copy(self.peft_config[adapter_name])
        super().inject_adapter(model, adapter_name, *args, **kwargs)

    def _prepare_adapter_config(self, peft_config: RotaryConfig, model_config: dict) -> RotaryConfig:
        return peft_config

    def _prepare_model(self, peft_config: RotaryConfig, model: nn.Module) -> None:
        attentions = list(rotary_attentions(model))
        _check_digest(peft_config, model)
        # PEFT's walk meets an adapted layer under the name that the bare attention had.
        names = {name.removesuffix(".base_layer"): None for name in attentions}
        self._targets = set(names) | set(_norm_names(model, list(names), peft_config.train_norms))
        self._generator = None
        if peft_config.init_seed is not None:
            self._generator = torch.Generator("cpu").manual_seed(peft_config.init_seed)

    def _check_target_module_exists(self, peft_config: RotaryConfig, key: str) -> bool:  # type: ignore[override]
        return key in self._targets

    def _create_and_replace(
        self,
        peft_config: RotaryConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        **_: Any,
    ) -> None:
        norm_slot = f"{self.prefix}norm"
        if not isinstance(target, AdapterLayer):
            wrapped = is_rotary_attention(target)
            target = (
                AttentionLayer(target, f"{self.prefix}attention") if wrapped else NormLayer(target, norm_slot)
            )
            target.set_adapter(self.active_adapters)
            self._replace_module(parent, target_name, target, target.base_layer)
        if isinstance(target, NormLayer):
            target.add_copy(adapter_name)
            return
        attention = target.base_layer
        device = next(attention.parameters()).device
        adapter = self.make(peft_config, Geometry.of(attention), attention, device)
        target.add(adapter_name, adapter)
        adapter.reset(self._generator)
        if peft_config.train_norms:
            target.add_norm_copies(adapter_name, norm_slot)

    def _replace_module(
        self, parent: nn.Module, child_name: str, new_module: nn.Module, child: nn.Module
    ) -> None:
        setattr(parent, child_name, new_module)

    def _check_merge_allowed(self) -> None:
        next(module for module in self.model.modules() if isinstance(module, AdapterLayer)).merge()


def check_keys(tuner: RotaryTuner, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Refuse a state dict with keys that this model lacks, or with only a part of an adapter (load hook).

    Raises:
        ConfigError: where PEFT would warn, or say nothing.
    """
    known = {prefix + key for key in tuner.state_dict()}
    given = {key for key in state_dict if key.startswith(prefix)}
    rest, complete = set(given), False
    for keys in _adapter_keys(tuner, prefix).values():
        if keys & given:
            _refuse("lacks", keys - given)
            complete = True
        rest -= keys
    _refuse("has unknown", rest - known)
    if not complete and not rest:
        raise ConfigError("the adapter file has no weights of this model's adapters; load the right file.")


def _refuse(problem: str, keys: set[str]) -> None:
    if keys:
        raise ConfigError(
            f"the adapter {problem} {len(keys)} weights ({min(keys)}, …); load it on the backbone that "
            "it was trained on, with its own configuration."
        )


def _adapter_keys(tuner: RotaryTuner, prefix: str) -> dict[str, set[str]]:
    """Return the full keys of each adapter's weights."""
    keys: dict[str, set[str]] = {name: set() for name in tuner.peft_config}
    for name, module in tuner.named_modules():
        if isinstance(module, AdapterLayer):
            for adapter, inner in getattr(module, module.slot).items():
                keys[adapter] |= {
                    f"{prefix}{name}.{module.slot}.{adapter}.{key}" for key in inner.state_dict()
                }
    return keys


def _norm_names(model: nn.Module, attentions: list[str], train_norms: bool | str) -> list[str]:
    """Return the text model's RMS norms outside attention; its layers see to those inside."""
    if not train_norms:
        return []
    layers = {name.rpartition("layers.")[0] for name in attentions}
    inside = tuple(f"{name}." for name in attentions)
    names = []
    for name, module in model.named_modules():
        kind = type(module.base_layer if isinstance(module, NormLayer) else module).__name__
        decoder = next((layer for layer in layers if name.startswith(layer)), None)
        if (
            not kind.endswith("RMSNorm")
            or decoder is None
            or name.startswith(inside)
            or _is_inner(model, name)
        ):
            continue
        if train_norms is True or name.startswith(f"{decoder}layers."):
            names.append(name)
    return names


def _is_inner(model: nn.Module, name: str) -> bool:
    """Tell whether a module lies inside a norm's wrapper (its original, or a copy)."""
    parent = name.rpartition(".")[0]
    while parent:
        if isinstance(model.get_submodule(parent), BaseTunerLayer):
            return True
        parent = parent.rpartition(".")[0]
    return False


def _check_digest(config: RotaryConfig, model: nn.Module) -> None:
    """Write the backbone's digest into the config, or refuse a backbone with another one."""
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    digest = weights_digest(model)
    if config.backbone_digest is None:
        config.backbone_digest = digest
    elif config.backbone_digest != digest:
        raise ConfigError(
            f"the adapter was trained on other weights of {type(model).__name__} (digest "
            f"{config.backbone_digest[:12]}, not {digest[:12]}); load the backbone that it was trained on."
        )
