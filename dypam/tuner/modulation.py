"""DyPAM's parameters of one layer, and where they act."""

from __future__ import annotations

import torch
from torch import nn

from dypam.attention import Geometry
from dypam.ops import folded, reference
from dypam.tuner.config import DyPAMConfig
from dypam.tuner.layers import Adapter, Side, draw_uniform


class Modulation(Adapter):
    """Factors for query and key pairs, from the hidden states and from biases (Eqs. 6–14).

    Parameters (FP32), X in {Q, K}: A_X [d, r], B_X [r, heads · d_e], E_X [d_h/2, d_e], head_bias_X [heads,
    d_h/2], layer_bias_X [d_h/2]; with a shared projection A_Q and B_Q serve both.  `at_projection` says
    that the factors act before the per-head norm.
    """

    def __init__(
        self, config: DyPAMConfig, geometry: Geometry, at_projection: bool, device: torch.device
    ) -> None:
        super().__init__()
        self.config = config
        self.geometry = geometry
        self.at_projection = at_projection
        self._folded: dict[Side, tuple[tuple, torch.Tensor]] = {}
        shared = config.projection == "shared"
        d, r, pairs = geometry.hidden, config.rank, geometry.pairs
        for side, heads in (("Q", geometry.query_heads), ("K", geometry.key_heads)):
            if config.dim_mod and not (shared and side == "K"):
                self._add(f"A_{side}", device, d, r)
                self._add(f"B_{side}", device, r, heads * config.d_e)
            if config.dim_mod:
                self._add(f"E_{side}", device, pairs, config.d_e)
            if config.head_bias:
                self._add(f"head_bias_{side}", device, heads, pairs)
            if config.layer_bias:
                self._add(f"layer_bias_{side}", device, pairs)

    def _add(self, name: str, device: torch.device, *shape: int) -> None:
        self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=torch.float32, device=device)))

    def reset(self, generator: torch.Generator | None) -> None:
        """Start as the identity, with a gradient for all within two steps: B zero, A and E as `nn.Linear`'s.

        Where the score itself is the factor, the layer bias starts at 1 (the head bias where there is no
        other).
        """
        for name, parameter in self.named_parameters():
            if name.startswith("A_"):
                draw_uniform(parameter, parameter.shape[0] ** -0.5, generator)
            elif name.startswith("E_"):
                draw_uniform(parameter, parameter.shape[1] ** -0.5, generator)
            elif self.config.normalize == "raw" and name.startswith(self._last_bias()):
                nn.init.ones_(parameter)

    def _last_bias(self) -> str:
        return "layer_bias" if self.config.layer_bias else "head_bias"

    def factors(self, side: Side, hidden: torch.Tensor) -> torch.Tensor:
        """Return s [batch, tokens, heads, d_h/2], or [heads, d_h/2] without dimension modulation, in FP32."""
        return reference.factors(self.scores(side, hidden), self.config.alpha, self.config.normalize)

    def scores(self, side: Side, hidden: torch.Tensor) -> torch.Tensor:
        """Return g, shaped as the factors."""
        bias = self._bias(side)
        if not self.config.dim_mod:
            return bias
        hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        A, B, E = self._matrices(side, hidden.dtype)
        if self._folds():
            return folded.scores(hidden, A, self._fold(side, B, E), bias)
        m = reference.features(hidden, A, B, B.shape[1] // self.config.d_e)
        if self._is_grouped(side):
            m = reference.group_mean(m, self.geometry.key_heads)
        return reference.scores(m, E, bias)

    def after_projection(self, side: Side, hidden: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Scale q_proj's or k_proj's output, where the factors act before the per-head norm."""
        if not self.at_projection:
            return states
        heads = states.unflatten(-1, (-1, self.geometry.head_dim))
        return reference.scale_pairs(heads, self.factors(side, hidden)).flatten(-2)

    def before_rope(
        self, hidden: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale query and key right before RoPE (Eq. 14)."""
        if self.at_projection:
            return q, k
        return self._scale("Q", hidden, q), self._scale("K", hidden, k)

    def _scale(self, side: Side, hidden: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        s = self.factors(side, hidden)
        return reference.scale_pairs(states, s.transpose(1, 2) if s.dim() == 4 else s.unsqueeze(1))

    def macs(self) -> int:
        """Return the multiplications of A, B and E for one token (65,536 · 18 a layer of LLaMA-3.2-3B)."""
        if not self.config.dim_mod:
            return 0
        projections = sum(p.numel() for name, p in self.named_parameters() if name[:2] in ("A_", "B_"))
        heads = self.geometry.query_heads + self.geometry.key_heads
        return projections + heads * self.geometry.pairs * self.config.d_e

    def train(self, mode: bool = True) -> Modulation:
        """Switch the mode; what was folded is forgotten."""
        self._folded.clear()
        return super().train(mode)

    def _is_grouped(self, side: Side) -> bool:
        return side == "K" and self.config.projection == "shared"

    def _bias(self, side: Side) -> torch.Tensor:
        """Return head bias + layer bias: [heads, d_h/2]; [d_h/2] of zeros where there is neither."""
        parts = [getattr(self, f"{kind}_bias_{side}") for kind in ("head", "layer") if self._has(kind)]
        if not parts:
            return self.get_parameter(f"E_{side}").new_zeros(self.geometry.pairs)
        heads = self.geometry.query_heads if side == "Q" else self.geometry.key_heads
        return sum(parts[1:], parts[0]).expand(heads, -1)

    def _has(self, kind: str) -> bool:
        return self.config.head_bias if kind == "head" else self.config.layer_bias

    def _matrices(self, side: Side, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        projection = "Q" if self._is_grouped(side) else side
        names = (f"A_{projection}", f"B_{projection}", f"E_{side}")
        A, B, E = (getattr(self, name).to(dtype) for name in names)
        return A, B, E

    def _folds(self) -> bool:
        return self.config.fold == "always" or (self.config.fold == "eval" and not self.training)

    def _fold(self, side: Side, B: torch.Tensor, E: torch.Tensor) -> torch.Tensor:
        """Return C; kept over calls in evaluation without gradients, until a weight or the mode changes."""
        keep = not self.training and not torch.is_grad_enabled()
        key = (B.data_ptr(), B._version, E.data_ptr(), E._version) if keep else ()
        if keep and side in self._folded and self._folded[side][0] == key:
            return self._folded[side][1]
        if self._is_grouped(side):
            B = folded.group_mean(B, self.geometry.query_heads, self.geometry.key_heads)
        C = folded.fold(B, E)
        if keep:
            self._folded[side] = (key, C)
        return C
