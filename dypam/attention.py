"""The seam of every backbone family: where a tuner reaches query and key, before and after RoPE.

Llama, Qwen2, Qwen3, Gemma2 and Gemma3 attention call their module's global `apply_rotary_pos_emb(q, k, cos,
sin)` once a layer, with q [batch, H, tokens, d_h] and k [batch, K, tokens, d_h], after the per-head norms
and before the cache.  That global is wrapped once a module.  What a tuner wants done rides into the call on
the cosine table (`Carrier`), so there is no state outside the call: threads, gradient checkpointing and
several adapted models do not meet, and a call without a carrier is the original one.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

from dypam.config import ConfigError

FAMILIES = {
    "llama": "LlamaAttention",
    "qwen2": "Qwen2Attention",
    "qwen3": "Qwen3Attention",
    "gemma2": "Gemma2Attention",
    "gemma3": "Gemma3Attention",
}
"""Transformers' model module → its attention class, for every family whose attention is known to fit."""

Rotate = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

_LOCK = threading.Lock()


@dataclass(frozen=True)
class Geometry:
    """Sizes of one attention layer: d, H, K, d_h."""

    hidden: int
    query_heads: int
    key_heads: int
    head_dim: int

    @classmethod
    def of(cls, attention: nn.Module) -> Geometry:
        """Read the sizes off an attention module's projections."""
        head_dim = attention.head_dim
        query, key = attention.q_proj, attention.k_proj
        return cls(query.in_features, query.out_features // head_dim, key.out_features // head_dim, head_dim)

    @property
    def pairs(self) -> int:
        """Number of RoPE pairs in a head; pair i is (i, i + d_h/2)."""
        return self.head_dim // 2


class Carrier:
    """The cosine table of one attention call, with what to do to (q, k) before and after the rotation."""

    __slots__ = ("after", "before", "calls", "cos")

    def __init__(self, cos: Any, before: Rotate | None, after: Rotate | None) -> None:
        self.cos = cos
        self.before = before
        self.after = after
        self.calls = 0


def is_rotary_attention(module: nn.Module) -> bool:
    """Tell whether `module` is, exactly, one of Transformers' attention classes in `FAMILIES`."""
    kind = type(module)
    family = kind.__module__.rpartition(".modeling_")[2]
    return (
        FAMILIES.get(family) == kind.__name__
        and kind.__module__ == f"transformers.models.{family}.modeling_{family}"
    )


def rotary_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention layers that can be adapted, by name, in the order of the layers.

    Raises:
        ConfigError: there is none (no RoPE, an attention that is not known, remote code), or RoPE rotates
            only a part of each head.
    """
    found = {name: module for name, module in model.named_modules() if is_rotary_attention(module)}
    if not found:
        raise ConfigError(_refusal(model))
    if _rotates_partly(model):
        raise ConfigError(
            f"{_class_name(model)} rotates only a part of each head (partial_rotary_factor below 1), where "
            "pairs (i, i + d_h/2) do not hold; use a backbone that rotates whole heads."
        )
    return found


def install(attention: nn.Module) -> None:
    """Let calls of this attention's rotary function carry hooks; a second call changes nothing."""
    modeling = sys.modules[type(attention).__module__]
    with _LOCK:
        if not getattr(modeling.apply_rotary_pos_emb, "carries", False):
            _wrap(modeling)


def call(attention: nn.Module, args: tuple, kwargs: dict, before: Rotate | None, after: Rotate | None) -> Any:
    """Call an attention (`install` first), applying `before` and `after` round its rotation of (q, k)."""
    kwargs = named_arguments(attention, args, kwargs)
    cos, sin = kwargs["position_embeddings"]
    carrier = Carrier(cos, before, after)
    output = attention(**{**kwargs, "position_embeddings": (carrier, sin)})
    if carrier.calls != 1:
        raise RuntimeError(
            f"{type(attention).__name__} rotated query and key {carrier.calls} times through "
            "apply_rotary_pos_emb, once was expected; this version of Transformers is not supported."
        )
    return output


def named_arguments(attention: nn.Module, args: tuple, kwargs: dict) -> dict[str, Any]:
    """Return a call's arguments by name, whichever way they were given."""
    return {**dict(zip(_parameters(attention.__class__), args, strict=False)), **kwargs}


@functools.cache
def _parameters(kind: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kind.forward).parameters)[1:]


def _wrap(modeling: ModuleType) -> None:
    original = modeling.apply_rotary_pos_emb

    @functools.wraps(original)
    def apply_rotary_pos_emb(
        q: torch.Tensor, k: torch.Tensor, cos: Any, sin: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not isinstance(cos, Carrier):
            return original(q, k, cos, sin, *args, **kwargs)
        carriers = list(_unpack(cos))
        cos = carriers[-1].cos
        if cos.shape[-1] != q.shape[-1]:
            raise ConfigError(
                f"RoPE rotates {cos.shape[-1]} of {q.shape[-1]} dimensions of a head; it must be all."
            )
        for carrier in carriers:
            carrier.calls += 1
            if carrier.before is not None:
                q, k = carrier.before(q, k)
        q, k = original(q, k, cos, sin, *args, **kwargs)
        for carrier in carriers:
            if carrier.after is not None:
                q, k = carrier.after(q, k)
        return q, k

    apply_rotary_pos_emb.carries = True  # type: ignore[attr-defined]
    modeling.apply_rotary_pos_emb = apply_rotary_pos_emb  # type: ignore[attr-defined]


def _unpack(cos: Any) -> Iterator[Carrier]:
    """Yield the carriers on a cosine table, innermost call first (a wrapped layer may be wrapped again)."""
    while isinstance(cos, Carrier):
        yield cos
        cos = cos.cos


def _class_name(model: nn.Module) -> str:
    return type(model.get_base_model() if hasattr(model, "get_base_model") else model).__name__


def _refusal(model: nn.Module) -> str:
    """Say in one sentence why no layer of `model` can be adapted."""
    kinds = [type(module) for module in model.modules()]
    attention = next((kind for kind in kinds if kind.__name__.endswith("Attention")), None)
    name = attention.__name__ if attention else "none"
    if any(kind.__module__.startswith("transformers_modules") for kind in kinds):
        why = f"{_class_name(model)} runs remote code (attention: {name})"
    elif any("Rotary" in kind.__name__ for kind in kinds):
        why = f"{_class_name(model)} has an attention that is not known here ({name})"
    else:
        why = f"{_class_name(model)} has no rotary position embeddings (attention: {name})"
    return f"{why}; use a backbone whose attention is one of {', '.join(FAMILIES.values())}."


def _rotates_partly(model: nn.Module) -> bool:
    """Tell whether the text model's config names a `partial_rotary_factor` other than 1, at any depth."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    pending: list[Any] = [text.to_dict() if hasattr(text, "to_dict") else {}]
    while pending:
        entry = pending.pop()
        if entry.get("partial_rotary_factor") not in (None, 1, 1.0):
            return True
        pending += [value for value in entry.values() if isinstance(value, dict)]
    return False
