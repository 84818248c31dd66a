"""A method that the PEFT library implements: attach, save, load strictly, merge with a check.

PEFT itself only warns when an adapter's keys do not match, follows the backbone's dtype in places, and
reaches into a vision tower; `PeftMethod` refuses, keeps adapters in FP32, and stays in the text model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
from peft import PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners._buffer_dict import BufferDict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file
from torch import nn

from dypam.adapter import DESCRIPTION, check_backbone
from dypam.config import ConfigError, closest
from dypam.files import write_json
from dypam.method import Method, RunContext
from dypam.tuner.digest import weights_digest

NOT_TEXT = re.compile(r"(.*\.)?(vision_tower|vision_model|visual|audio_tower|multi_modal_projector)(\..*)?")
"""Names of the modules of a multimodal checkpoint that no text ever passes through."""

MERGE_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest change of the logits by merging, relative to their maximum, by the backbone's dtype."""

WEIGHTS = "adapter_model.safetensors"
ADAPTER = "default"


class PeftMethod(Method):
    """A method given by a PEFT configuration class and values for its fields.

    Subclasses set `config_class`; `fields` are passed on as they are, PEFT's defaults fill the rest.  With
    `seed_field`, `seeded=True` puts the run's seed into that field where PEFT has a fixed one.

    Raises:
        ConfigError: a field that the PEFT class does not have, or a value that it refuses.
    """

    config_class: ClassVar[type[PeftConfig]]
    seed_field: ClassVar[str | None] = None
    mergeable = True
    everywhere = False
    """Adapt a vision tower too, where it is inert for text: only published counts need it."""

    def __init__(
        self,
        name: str,
        label: str | None = None,
        *,
        target_modules: str | list[str] | None = "all-linear",
        seeded: bool = False,
        **fields: Any,
    ) -> None:
        super().__init__(name, label)
        known = {field.name for field in dataclasses.fields(self.config_class) if field.init}
        for field in sorted(set(fields) - known):
            like = closest(field, known)
            advice = f"did you mean {like}?" if like else "remove it."
            raise ConfigError(f"method.{field}: {self.config_class.__name__} has no such field; {advice}")
        if seeded and self.seed_field is None:
            raise ConfigError(f"method.seeded=true: {name} has no fixed seed of its own; remove the key.")
        self.target_modules = (
            list(target_modules) if isinstance(target_modules, (list, tuple)) else target_modules
        )
        self.seeded = seeded
        self.fields = fields

    def targets(self, model: nn.Module) -> str | list[str] | None:
        """Return PEFT's `target_modules` for this backbone; full names where it is more than a text model."""
        wanted = self.target_modules
        if (
            self.everywhere
            or wanted is None
            or not any(NOT_TEXT.fullmatch(n) for n, _ in model.named_modules())
        ):
            return wanted
        return [name for name, module in model.named_modules() if self._is_target(model, name, module)]

    def _is_target(self, model: nn.Module, name: str, module: nn.Module) -> bool:
        if NOT_TEXT.fullmatch(name):
            return False
        if self.target_modules == "all-linear":
            return isinstance(module, nn.Linear) and module is not model.get_output_embeddings()
        if isinstance(self.target_modules, str):
            return re.fullmatch(self.target_modules, name) is not None
        return any(name == suffix or name.endswith(f".{suffix}") for suffix in self.target_modules or ())

    def config(self, model: nn.Module, run: RunContext) -> PeftConfig:
        """Return the PEFT configuration for this backbone and run."""
        fields = dict(self.fields)
        if self.seeded and self.seed_field:
            fields[self.seed_field] = run.seed
        try:
            return self.config_class(task_type="CAUSAL_LM", target_modules=self.targets(model), **fields)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"method {self.name}: PEFT refuses the configuration: {error}") from error

    def prepare(self, model: nn.Module) -> None:
        """Change the adapted model in place, after creation and after loading alike (dtypes, hooks)."""

    def attach(self, model: nn.Module, run: RunContext) -> nn.Module:
        """Return `model` wrapped by PEFT, its adapters initialised from the run's seed alone."""
        return self._adapt(model, self.config(model, run), run.seed)

    def save(self, model: nn.Module, directory: Path) -> None:
        """Write the adapter in PEFT's own format (`PeftModel.from_pretrained` reads it), and whose it is."""
        _peft(model).save_pretrained(str(directory), save_embedding_layers=False)
        write_json(directory / DESCRIPTION, {"weights_digest": weights_digest(model)})

    def load(self, model: nn.Module, directory: Path) -> nn.Module:
        """Attach a saved adapter to a bare backbone.

        Raises:
            ConfigError: another method's adapter, another backbone's, or keys or shapes that do not fit.
        """
        check_backbone(weights_digest(model), directory)
        config = PeftConfig.from_pretrained(str(directory))
        if not isinstance(config, self.config_class):
            raise ConfigError(
                f"{directory}: holds a {config.peft_type} adapter, not one of method {self.name}; "
                "load it with the method that wrote it."
            )
        config.inference_mode = True
        if targets := self.targets(model):
            # A saved list of modules would leave what a deeper backbone has besides without an adapter.
            config.target_modules = targets
        adapted = self._adapt(model, config, seed=0)
        saved = load_file(str(directory / WEIGHTS))
        check_match(saved, get_peft_model_state_dict(adapted, save_embedding_layers=False), directory)
        unread = set_peft_model_state_dict(adapted, saved).unexpected_keys
        # PEFT 0.18 saves VeRA's projections and does not read them back.
        rest = {f"{key}.{ADAPTER}": saved[key] for key in unread}
        if rest and adapted.load_state_dict(rest, strict=False).unexpected_keys:
            raise ConfigError(f"{directory}: PEFT does not know {unread[0]}; use the release that wrote it.")
        return adapted

    def merge(self, model: nn.Module) -> nn.Module:
        """Fold the adapter into the backbone and return the bare backbone.

        Raises:
            ConfigError: the logits of a probe change by more than `MERGE_TOLERANCE`.
        """
        if not self.mergeable:
            return super().merge(model)
        before = probe_logits(model)
        merged = _peft(model).merge_and_unload(safe_merge=True)
        after = probe_logits(merged)
        change = ((after - before).abs().max() / before.abs().max()).item()
        limit = MERGE_TOLERANCE[next(merged.parameters()).dtype]
        if not change <= limit:
            raise ConfigError(
                f"method {self.name}: merging changes the logits by {change:.2g} of their maximum, more than "
                f"{limit:g}; set decode.merge=false."
            )
        return merged

    def _adapt(self, model: nn.Module, config: PeftConfig, seed: int) -> PeftModel:
        device = next(model.parameters()).device
        with _seeded(seed, device):
            try:
                with mock.patch.object(BaseTunerLayer, "_move_adapter_to_device_of_base_layer", _move_only):
                    adapted = get_peft_model(model, config, autocast_adapter_dtype=True)
            except ValueError as error:
                raise ConfigError(f"method {self.name}: does not fit this backbone: {error}") from error
            self.prepare(adapted)
        for name, parameter in adapted.named_parameters():
            # PEFT 0.18's OFT takes Gemma 3's `mm_soft_emb_norm` for its own, by the prefix `oft_`.
            if not self.everywhere and NOT_TEXT.fullmatch(name):
                parameter.requires_grad_(False)
        return adapted


def check_match(saved: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], source: Path) -> None:
    """Raise `ConfigError` unless both have the same keys with the same shapes."""
    missing, unexpected = sorted(wanted.keys() - saved.keys()), sorted(saved.keys() - wanted.keys())
    shapes = [key for key in wanted.keys() & saved.keys() if wanted[key].shape != saved[key].shape]
    for problem, keys in (("lacks", missing), ("has unknown", unexpected), ("has other shapes of", shapes)):
        if keys:
            raise ConfigError(
                f"{source}: the adapter {problem} {len(keys)} weights that this backbone's would have "
                f"({keys[0]}, …); load it on the backbone that it was trained on."
            )


@torch.no_grad()
def probe_logits(model: nn.Module) -> torch.Tensor:
    """Return FP32 logits [1, 16, vocabulary] of a fixed token sequence in evaluation mode."""
    device = next(model.parameters()).device
    tokens = (torch.arange(16, device=device)[None] * 7 + 3) % model.config.vocab_size
    was_training = model.training
    model.eval()
    logits = model(input_ids=tokens, use_cache=False).logits.float()
    model.train(was_training)
    return logits


def _peft(model: nn.Module) -> PeftModel:
    if not isinstance(model, PeftModel):
        raise TypeError(f"expected a PeftModel, got {type(model).__name__}")
    return model


def _move_only(layer: BaseTunerLayer, adapter_name: str, device: torch.device | None = None) -> None:
    """Move new adapter weights to the backbone's device; PEFT would round them to its dtype as well."""
    device = device or layer.get_base_layer().weight.device
    for name in layer.adapter_layer_names + layer.other_param_names:
        held = getattr(layer, name, None)
        if isinstance(held, (nn.ModuleDict, nn.ParameterDict, BufferDict)) and adapter_name in held:
            held[adapter_name] = held[adapter_name].to(device)


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed inside, leave the global generators as they were; on the meta device create everything there."""
    cuda = [device] if device.type == "cuda" else []
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        if device.type == "meta":
            stack.enter_context(torch.device("meta"))
        torch.manual_seed(seed)
        yield
