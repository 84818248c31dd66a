"""What a rotary tuner puts round an attention layer, or round a norm whose copy it trains."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from dypam.attention import call, install, named_arguments

Side = Literal["Q", "K"]


class CannotMergeError(ValueError):
    """Asked to merge an adapter whose effect depends on the input."""


class Adapter(nn.Module):
    """One adapter of one attention layer; subclasses override the place where they act.

    hidden [batch, tokens, d] is what enters q_proj and k_proj.
    """

    def after_projection(self, side: Side, hidden: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return q_proj's or k_proj's output [batch, tokens, heads · d_h], before the per-head norm."""
        return states

    def before_rope(
        self, hidden: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return q [batch, H, tokens, d_h] and k [batch, K, tokens, d_h], after the per-head norm."""
        return q, k

    def after_rope(
        self, hidden: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rotated q and k, before the cache."""
        return q, k

    def reset(self, generator: torch.Generator | None) -> None:
        """Give the parameters their initial values."""
        raise NotImplementedError

    def macs(self) -> int:
        """Return the multiplications of the adapter's matrices for one token."""
        raise NotImplementedError


def draw_uniform(parameter: nn.Parameter, bound: float, generator: torch.Generator | None) -> None:
    """Fill with values uniform in ± bound; nothing on the meta device.

    Drawn on the CPU whatever the device, so that the same seed gives the same start everywhere.
    """
    if not parameter.is_meta:
        drawn = torch.rand(parameter.shape, generator=generator, device="cpu")
        parameter.data.copy_((2 * drawn - 1) * bound)


class AdapterLayer(nn.Module, BaseTunerLayer):
    """A wrapped module and its adapters by name, in the ModuleDict called `slot`; attributes pass through."""

    def __init__(self, base_layer: nn.Module, slot: str) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.slot = slot
        self.adapter_layer_names = (slot,)
        self.add_module(slot, nn.ModuleDict())
        self._disable_adapters = False
        self.merged_adapters: list[str] = []

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base_layer":
                raise
            return getattr(super().__getattr__("base_layer"), name)

    def active(self) -> list[Any]:
        """Return the adapters of this layer that are switched on."""
        if self.disable_adapters:
            return []
        adapters = getattr(self, self.slot)
        return [adapters[name] for name in self.active_adapters if name in adapters]

    def add(self, name: str, adapter: nn.Module) -> None:
        """Add an adapter, trainable if it is active, and in the wrapped module's mode (`training`)."""
        adapter.requires_grad_(name in self.active_adapters).train(self.base_layer.training)
        getattr(self, self.slot)[name] = adapter

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Refuse: there are no weights that it could be merged into."""
        raise CannotMergeError(
            f"a {self.slot.partition('_')[0]} adapter cannot be merged: what it multiplies query and key by "
            "depends on the input, and no fixed weight does; use the model with its adapter."
        )

    def unmerge(self) -> None:
        """Do nothing: nothing was merged."""

    def unload_and_optionally_merge_module(
        self, merge: bool, safe_merge: bool = False, adapter_names: list[str] | None = None
    ) -> nn.Module:
        """Return the backbone's module, freed of all that was put on it."""
        if merge:
            self.merge()
        return self.base_layer

    def _move_adapter_to_device_of_base_layer(
        self, adapter_name: str, device: torch.device | None = None
    ) -> None:
        """Follow the backbone's device, never its dtype."""
        adapters = getattr(self, self.slot)
        if adapter_name in adapters and not any(p.is_meta for p in adapters[adapter_name].parameters()):
            adapters[adapter_name].to(device or next(self.base_layer.parameters()).device)


class NormLayer(AdapterLayer):
    """A norm whose trained copy, in FP32, takes its place; the original stays for the other adapters."""

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the normalised states in the dtype they came in."""
        active = self.active()
        if not active:
            return self.base_layer(hidden, *args, **kwargs)
        return active[-1](hidden, *args, **kwargs).to(hidden.dtype)

    def add_copy(self, name: str) -> None:
        """Add a trainable FP32 copy of the norm."""
        self.add(name, copy.deepcopy(self.base_layer).float())


class AttentionLayer(AdapterLayer):
    """An attention layer, with adapters before its norms, before its rotation and after it."""

    def __init__(self, base_layer: nn.Module, slot: str) -> None:
        super().__init__(base_layer, slot)
        install(base_layer)
        self._hooks = [
            projection.register_forward_hook(_ProjectionHook(self, side))
            for side, projection in self._projections(base_layer)
        ]

    @staticmethod
    def _projections(attention: nn.Module) -> tuple[tuple[Side, nn.Module], ...]:
        """Return the projections that a per-head norm follows; without one, its two sides are the same."""
        return (("Q", attention.q_proj), ("K", attention.k_proj)) if hasattr(attention, "q_norm") else ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the wrapped attention with every active adapter in turn."""
        active = self.active()
        if not active:
            return self.base_layer(*args, **kwargs)
        hidden = named_arguments(self.base_layer, args, kwargs)["hidden_states"]

        def before(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            for adapter in active:
                q, k = adapter.before_rope(hidden, q, k)
            return q, k

        def after(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            for adapter in active:
                q, k = adapter.after_rope(hidden, q, k)
            return q, k

        return call(self.base_layer, args, kwargs, before, after)

    def add_norm_copies(self, name: str, slot: str) -> None:
        """Give the per-head norms, where there are any, a trainable copy."""
        for key in ("q_norm", "k_norm"):
            norm = getattr(self.base_layer, key, None)
            if norm is None:
                continue
            if not isinstance(norm, NormLayer):
                norm = NormLayer(norm, slot)
                norm.set_adapter(self.active_adapters)
                setattr(self.base_layer, key, norm)
            norm.add_copy(name)

    def unload_and_optionally_merge_module(
        self, merge: bool, safe_merge: bool = False, adapter_names: list[str] | None = None
    ) -> nn.Module:
        """Return the backbone's attention without hooks and with its own norms."""
        attention = super().unload_and_optionally_merge_module(merge)
        for hook in self._hooks:
            hook.remove()
        for key in ("q_norm", "k_norm"):
            if isinstance(getattr(attention, key, None), NormLayer):
                setattr(attention, key, getattr(attention, key).base_layer)
        return attention


class _ProjectionHook:
    """Forward hook of q_proj or k_proj: lets the active adapters act before the per-head norm."""

    def __init__(self, layer: AttentionLayer, side: Side) -> None:
        self.layer = layer
        self.side = side

    def __call__(
        self, module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor:
        for adapter in self.layer.active():
            output = adapter.after_projection(self.side, args[0], output)
        return output
