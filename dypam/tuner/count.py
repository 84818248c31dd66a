"""What a rotary tuner costs: parameters and multiplications, also on the meta device."""

from __future__ import annotations

from torch import nn

from dypam.tuner.layers import AttentionLayer, NormLayer


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """Return (trainable, backbone + adapters), as published Param(%) has them.

    A trained copy of a norm stands for the norm itself: it counts as trainable, and once in the sum.
    """
    copies = {
        parameter
        for module in model.modules()
        if isinstance(module, NormLayer)
        for parameter in getattr(module, module.slot).parameters()
    }
    parameters = list(model.parameters())
    trainable = sum(p.numel() for p in parameters if p.requires_grad)
    return trainable, sum(p.numel() for p in parameters if p not in copies)


def flops_per_token(model: nn.Module) -> int:
    """Return the floating-point operations that the active adapters add to a token's forward pass.

    Two an element of every matrix product, nothing for what is done element by element: the reading under which
    LLaMA-3.2-3B costs the printed 66.1 MFLOP for DyPAM and 34.9 for RoSA.
    """
    layers = (module for module in model.modules() if isinstance(module, AttentionLayer))
    return 2 * sum(adapter.macs() for layer in layers for adapter in layer.active())
