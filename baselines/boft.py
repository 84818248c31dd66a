"""BOFT, from PEFT, with its rotation in FP32 over a backbone of any dtype."""

from __future__ import annotations

from typing import Any

import torch
from peft import BOFTConfig
from peft.tuners.boft.layer import Linear
from torch import nn

from dypam.peft_method import PeftMethod


class BOFT(PeftMethod):
    """Butterfly-factorised orthogonal rotations of the inputs, and output scales (Liu et al., 2024).

    PEFT rounds the rotation to the input's dtype; here the layer is entered and left through casts, so that
    rotation and scales act in FP32 and the frozen product alone runs in the backbone's dtype.
    """

    config_class = BOFTConfig

    def prepare(self, model: nn.Module) -> None:
        """Register the casts on every BOFT layer that needs them."""
        for module in model.modules():
            if isinstance(module, Linear) and module.get_base_layer().weight.dtype != torch.float32:
                module.register_forward_pre_hook(_to_float)
                module.get_base_layer().register_forward_pre_hook(_to_weight)
                module.register_forward_hook(_to_base)


def _to_float(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    return (inputs[0].float(), *inputs[1:])


def _to_weight(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    return (inputs[0].to(module.weight.dtype), *inputs[1:])


def _to_base(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> Any:
    return output.to(module.get_base_layer().weight.dtype)
