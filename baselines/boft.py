"""BOFT, from PEFT, with its rotation applied block by block and in FP32."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from peft import BOFTConfig, PeftConfig, PeftModel
from peft.tuners.boft import layer
from torch import nn

from dypam.config import ConfigError
from dypam.peft_method import PeftMethod


class BOFT(PeftMethod):
    """Orthogonal rotations of the inputs, scales of the outputs (Liu et al., 2024); one butterfly factor.

    PEFT multiplies dense matrices, permutations among them, and rounds them to the input's dtype; with one
    factor there is nothing to permute.  Here blocks stay blocks, in FP32, and only the frozen product runs in
    the backbone's dtype.
    """

    config_class = BOFTConfig

    def __init__(self, name: str, label: str | None = None, **fields: Any) -> None:
        super().__init__(name, label, **fields)
        if fields.get("boft_n_butterfly_factor", 1) != 1:
            raise ConfigError("method.boft_n_butterfly_factor: needs PEFT's CUDA extension; set it to 1.")

    def _adapt(self, model: nn.Module, config: PeftConfig, seed: int) -> PeftModel:
        # PEFT would compile its CUDA extension, once a layer; one factor is the same function without it.
        with (
            mock.patch.object(layer, "get_fbd_cuda", return_value=None),
            mock.patch.object(layer.BOFTLayer, "perm2mat", lambda self, indices: torch.eye(len(indices))),
        ):
            return super()._adapt(model, config, seed)

    def prepare(self, model: nn.Module) -> None:
        """Give PEFT's layers the forward described above."""
        for module in model.modules():
            if type(module) is layer.Linear:
                module.__class__ = BlockLinear
                module.boft_P = torch.empty(0, device=module.boft_P.device)


class BlockLinear(layer.Linear):
    """PEFT's BOFT layer with its rotation applied block by block."""

    def blocks(self, name: str) -> torch.Tensor:
        """Return the orthogonal blocks [n, c, c] of an adapter, in FP32."""
        return self.boft_dropout[name](self.cayley_batch(self.boft_R[name][0].float())[None])[0]

    def get_delta_weight(self, adapter: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the dense rotation and the scales, for merging."""
        return torch.block_diag(*self.blocks(adapter)), self.boft_s[adapter]

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return s ⊙ W (x R) in W's dtype; x is [..., in_features], R block-diagonal."""
        active = [name for name in self.active_adapters if name in self.boft_R]
        if self.disable_adapters or self.merged or not active:
            return super().forward(x, *args, **kwargs)
        scale = torch.ones((), device=x.device)
        rotated = x.float()
        for name in active:
            blocks = self.blocks(name)
            rotated = torch.einsum(
                "...nk,nkc->...nc", rotated.unflatten(-1, blocks.shape[:2]), blocks
            ).flatten(-2)
            scale = scale * self.boft_s[name].squeeze(-1)
        base = self.get_base_layer()
        result = base(rotated.to(base.weight.dtype), *args, **kwargs)
        bias = 0.0 if base.bias is None else base.bias
        return ((result - bias) * scale + bias).to(result.dtype)
