"""What is computed in which number format.

fp32           everything in FP32.
bf16           the frozen backbone in BF16; adapters and trained norms in FP32, in the forward pass as well.
bf16_autocast  the same weights, but matrix products of the adapters in BF16, from their FP32 weights.
bf16_engine    DeepSpeed's BF16 engine as it is: it rounds adapters (and, in some releases, rotary buffers) to
               BF16 for the forward pass and keeps FP32 masters in the optimizer only.

Rotary buffers stay FP32 in all but the last.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn


def resolve(precision: str, device: str) -> str:
    """Return the precision that `auto` stands for: bf16 on a GPU, fp32 on a CPU; any other as it is."""
    if precision != "auto":
        return precision
    return "fp32" if device == "cpu" else "bf16"


def backbone_dtype(precision: str) -> torch.dtype:
    """Return the dtype in which the frozen backbone is loaded."""
    return torch.float32 if precision == "fp32" else torch.bfloat16


def forward_context(precision: str, device: str) -> AbstractContextManager[Any]:
    """Return the context in which the forward pass runs, in training and in generation alike."""
    if precision == "bf16_autocast":
        return torch.autocast(device.split(":")[0], dtype=torch.bfloat16)
    return nullcontext()


def keep_trained_in_fp32(model: nn.Module) -> None:
    """Make every trained parameter FP32, and let norms that have one return the dtype they were given.

    For methods that unfreeze weights of the backbone itself; a BF16 weight near 1 does not move at a small
    learning rate.  Calling it again changes nothing.
    """
    for module in model.modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        for parameter in own:
            parameter.data = parameter.data.float()
        if own and "Norm" in type(module).__name__ and _like_input not in module._forward_hooks.values():
            module.register_forward_hook(_like_input)


def rounded_by(model: nn.Module, before: dict[str, torch.dtype]) -> dict[str, int | list[str]]:
    """Say what has left FP32 since `dtypes(model)` was `before`: trained weights counted, buffers named."""
    lost = {name for name, dtype in dtypes(model).items() if before[name] == torch.float32 != dtype}
    weights = {name: p.numel() for name, p in model.named_parameters() if name in lost}
    return {"weights": sum(weights.values()), "buffers": sorted(lost - weights.keys())}


def dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    """Return the dtype of every parameter and buffer by name."""
    return {name: tensor.dtype for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def _like_input(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
    return output.to(inputs[0].dtype)
