"""LN-Tuning, from PEFT, with FP32 norms over a backbone of any dtype."""

from __future__ import annotations

from typing import Any

import torch
from peft import LNTuningConfig
from peft.tuners.ln_tuning.layer import LNTuningLayer
from torch import nn

from dypam.peft_method import NOT_TEXT, PeftMethod


class LNTuning(PeftMethod):
    """Trains copies of the norms (Zhao et al., 2024).

    `target_modules`: "every-norm", names, or null for PEFT's list for the architecture.  PEFT leaves the
    copies in the backbone's dtype, where a BF16 weight near 1 does not move at small learning rates; here
    they are FP32, and what they return is cast back to the dtype that they were given.
    """

    config_class = LNTuningConfig

    def targets(self, model: nn.Module) -> str | list[str] | None:
        """Return the names of all norms for "every-norm", else as the base class does."""
        if self.target_modules != "every-norm":
            return super().targets(model)
        norms = [name for name, module in model.named_modules() if "Norm" in type(module).__name__]
        return [name for name in norms if self.everywhere or not NOT_TEXT.fullmatch(name)]

    def prepare(self, model: nn.Module) -> None:
        """Cast the copies to FP32 and their output back."""
        for layer in _layers(model):
            layer.ln_tuning_layers.float()
            layer.register_forward_hook(_like_input)

    def merge(self, model: nn.Module) -> nn.Module:
        """Put the copies in place of the norms, rounded to the backbone's dtype."""
        for layer in _layers(model):
            layer.ln_tuning_layers.to(layer.base_layer.weight.dtype)
        return super().merge(model)


def _layers(model: nn.Module) -> list[LNTuningLayer]:
    return [module for module in model.modules() if isinstance(module, LNTuningLayer)]


def _like_input(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> Any:
    return output.to(inputs[0].dtype)
