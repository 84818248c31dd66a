"""A digest of a backbone's weights, so that an adapter knows what it was trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import nn

SAMPLES = 64
"""Values hashed of each tensor, evenly spaced from its first to its last."""


def base_parameters(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the backbone's own parameters by their unadapted names: PEFT's wrapping and adapters left out."""
    if isinstance(module, PeftModel):
        inner: nn.Module | None = module.get_base_model()
    elif isinstance(module, BaseTuner):
        inner = module.model
    elif isinstance(module, AuxiliaryTrainingWrapper):
        inner = module.original_module
    elif isinstance(module, BaseTunerLayer):
        inner = module.base_layer
    else:
        inner = None
    if inner is not None:
        yield from base_parameters(inner, name)
        return
    for key, parameter in module._parameters.items():
        if parameter is not None:
            yield _join(name, key), parameter
    for key, child in module._modules.items():
        if child is not None:
            yield from base_parameters(child, _join(name, key))


def weights_digest(model: nn.Module) -> str:
    """Return a SHA-256 (hex) of the backbone's parameter names, shapes and sampled values.

    Values are rounded to BF16 first, so an FP32 checkpoint and its BF16 copy have the same digest.  Adapters,
    buffers and the second name of a tied weight do not count.

    Raises:
        ValueError: a weight is on the meta device, where it has no values.
    """
    digest, seen = hashlib.sha256(), set()
    for name, parameter in base_parameters(model):
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        if parameter.device.type == "meta":
            raise ValueError(f"{name} is on the meta device and has no values; load the weights first.")
        digest.update(f"{name} {tuple(parameter.shape)}\n".encode())
        digest.update(_sample(parameter).numpy().tobytes())
    return digest.hexdigest()


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """Return up to SAMPLES values as the bit patterns (int16) of their BF16 roundings."""
    flat = parameter.detach().reshape(-1)
    count = min(SAMPLES, flat.numel())
    index = torch.arange(count, device=flat.device) * (flat.numel() - 1) // max(count - 1, 1)
    return flat[index].to(torch.bfloat16).cpu().view(torch.int16)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
