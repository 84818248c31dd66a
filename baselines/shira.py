"""SHiRA, from PEFT, with its sparse update applied in FP32 beside the backbone's weight."""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftConfig, ShiraConfig
from peft.tuners.shira.layer import Linear
from torch import nn
from torch.nn.functional import linear

from dypam.method import RunContext
from dypam.peft_method import PeftMethod


class SHiRA(PeftMethod):
    """Trains a random sparse part of each weight (Bhardwaj et al., 2024).

    PEFT's mask does not depend on the run's seed unless `seeded`; it is saved with the adapter.  PEFT adds
    the update into a copy of the backbone's weight, where BF16 swallows small ones; here W x + ΔW x, ΔW in
    FP32.
    """

    config_class = ShiraConfig
    seed_field = "random_seed"

    def config(self, model: nn.Module, run: RunContext) -> PeftConfig:
        """Return PEFT's configuration; on the meta device without a mask, which cannot be drawn there."""
        config = super().config(model, run)
        if next(model.parameters()).is_meta:
            config.mask_fn = None
        return config

    def prepare(self, model: nn.Module) -> None:
        """Give PEFT's layers the forward described above."""
        for module in model.modules():
            if type(module) is Linear:
                module.__class__ = SparseUpdateLinear


class SparseUpdateLinear(Linear):
    """PEFT's SHiRA layer with the update applied beside the frozen weight."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return W x + ΔW x in the dtype of W x; x is [..., in_features]."""
        active = [name for name in self.active_adapters if name in self.shira_weight]
        if self.disable_adapters or self.merged or not active:
            return super().forward(x, *args, **kwargs)
        result = self.base_layer(x, *args, **kwargs)
        for name in active:
            self.shira_indices[name] = self.shira_indices[name].to(x.device)
            values = self.shira_weight[name] * self.scaling[name]
            update = _SparseProduct.apply(x, values, self.shira_indices[name], self.out_features)
            result = (result + update).to(result.dtype)
        return result


class _SparseProduct(torch.autograd.Function):
    """x ΔWᵀ for ΔW given by values at indices; keeps no dense matrix between forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, out_features: int
    ) -> torch.Tensor:
        kind = x.device.type
        ctx.dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype
        ctx.shape = (out_features, x.shape[-1])
        ctx.save_for_backward(x, values, indices)
        return linear(x.to(ctx.dtype), _dense(values, indices, ctx.shape).to(ctx.dtype))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, values, indices = ctx.saved_tensors
        grad = grad.to(ctx.dtype)
        grad_x = grad_values = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad @ _dense(values, indices, ctx.shape).to(ctx.dtype)).to(x.dtype)
        if ctx.needs_input_grad[1]:
            full = grad.flatten(0, -2).T @ x.to(ctx.dtype).flatten(0, -2)
            grad_values = full[indices[0].long(), indices[1].long()].to(values.dtype)
        return grad_x, grad_values, None, None


def _dense(values: torch.Tensor, indices: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    dense = torch.zeros(shape, dtype=values.dtype, device=values.device)
    dense[indices[0].long(), indices[1].long()] = values
    return dense
