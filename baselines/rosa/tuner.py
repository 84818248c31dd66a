"""RoAE, the RoPE-aware attention enhancement of RoSA, as a PEFT tuner."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from peft import PeftType
from torch import nn
from torch.nn.functional import pad, silu

from dypam.attention import Geometry
from dypam.config import ConfigError
from dypam.tuner.base import RotaryConfig, RotaryTuner
from dypam.tuner.layers import Adapter, draw_uniform
from dypam.tuner.registry import extend_peft_type, register


@dataclass
class RoSAConfig(RotaryConfig):
    """Configuration of RoAE for `peft.get_peft_model`; the defaults are the RoSA chapter's.

    Raises:
        ConfigError: a value that is out of range.
    """

    rank: int = field(
        default=128, metadata={"help": "Rank of the signal's projection, and of its own to key heads"}
    )
    r_low: float = field(
        default=0.25, metadata={"help": "Share of a head's dimensions, the slowest, to enhance"}
    )
    alpha: float = field(default=0.1, metadata={"help": "Strength of the enhancement"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType["ROSA"]
        self.require("rank", isinstance(self.rank, int) and self.rank > 0, "must be a positive integer")
        self.require("r_low", 0 < self.r_low <= 1, "must be above 0 and at most 1")
        self.require("alpha", self.alpha > 0, "must be positive")


class RoAE(Adapter):
    """Enhances the slow dimensions of rotated query and key by a signal made from the hidden states.

    With n = d_h · r_low / 2, the last n dimensions of each half of a head: z ← z + z ⊙ α S, where
    S_Q = SiLU(h W) and, where there are fewer key heads, S_K = S_Q W_GQA; both matrices are of low rank.
    Parameters (FP32): down [d, r], up [r, H · 2n], gqa_down [H · 2n, r], gqa_up [r, K · 2n].
    """

    def __init__(self, config: RoSAConfig, geometry: Geometry, device: torch.device) -> None:
        super().__init__()
        self.config = config
        self.geometry = geometry
        self.slow = round(geometry.pairs * config.r_low)
        if abs(self.slow - geometry.pairs * config.r_low) > 1e-9 or self.slow == 0:
            raise ConfigError(
                f"r_low={config.r_low}: {geometry.pairs} dimensions of half a head have no such share; "
                f"choose a multiple of 1/{geometry.pairs}."
            )
        query, key = (2 * self.slow * heads for heads in (geometry.query_heads, geometry.key_heads))
        shapes = {"down": (geometry.hidden, config.rank), "up": (config.rank, query)}
        if key != query:
            shapes |= {"gqa_down": (query, config.rank), "gqa_up": (config.rank, key)}
        for name, shape in shapes.items():
            self.register_parameter(
                name, nn.Parameter(torch.zeros(shape, dtype=torch.float32, device=device))
            )

    def reset(self, generator: torch.Generator | None) -> None:
        """Start as the identity: `up` zero, so S = 0 with SiLU's slope 1/2; the rest as `nn.Linear`'s."""
        for name, parameter in self.named_parameters():
            if name != "up":
                draw_uniform(parameter, parameter.shape[0] ** -0.5, generator)

    def after_rope(
        self, hidden: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return query and key with their slow dimensions enhanced."""
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        signal = silu(hidden.to(dtype) @ self.down.to(dtype) @ self.up.to(dtype))
        key_signal = signal
        if hasattr(self, "gqa_down"):
            key_signal = signal @ self.gqa_down.to(dtype) @ self.gqa_up.to(dtype)
        return self._enhance(q, signal), self._enhance(k, key_signal)

    def _enhance(self, states: torch.Tensor, signal: torch.Tensor) -> torch.Tensor:
        """Return states [batch, heads, tokens, d_h] enhanced by a signal [batch, tokens, heads · 2n]."""
        heads = signal.unflatten(-1, (states.shape[1], 2, self.slow)).transpose(1, 2)
        change = pad(self.config.alpha * heads, (self.geometry.pairs - self.slow, 0)).flatten(-2)
        return (states + states * change).to(states.dtype)

    def macs(self) -> int:
        """Return the multiplications of all matrices for one token."""
        return sum(parameter.numel() for parameter in self.parameters())


class RoSAModel(RotaryTuner):
    """The backbone with RoAE in every self-attention layer."""

    prefix = "rosa_"

    def make(
        self, config: RoSAConfig, geometry: Geometry, attention: nn.Module, device: torch.device
    ) -> RoAE:
        """Return the layer's enhancement."""
        return RoAE(config, geometry, device)


extend_peft_type("ROSA")
register("rosa", RoSAConfig, RoSAModel)
