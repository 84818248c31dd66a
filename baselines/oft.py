"""OFT, from PEFT, with its distance from orthogonality in the log."""

from __future__ import annotations

from typing import Any

import torch
from peft import OFTConfig
from torch import nn

from dypam.peft_method import PeftMethod


class OFT(PeftMethod):
    """Block-diagonal orthogonal rotations of the inputs (Qiu et al., 2023).

    PEFT's default approximates the Cayley transform by five Neumann terms, which leaves the orthogonal
    group as weights grow; `use_cayley_neumann=false` solves exactly.
    """

    config_class = OFTConfig

    def metrics(self, model: nn.Module) -> dict[str, Any]:
        """Return the largest Frobenius norm of RᵀR − I over all blocks."""
        return {"orthogonality_error": orthogonality_error(model)}


@torch.no_grad()
def orthogonality_error(model: nn.Module) -> float:
    """Return max over blocks of ‖RᵀR − I‖_F, R as the forward computes it."""
    worst = 0.0
    for module in model.modules():
        if type(module).__name__ != "OFTRotationModule":
            continue
        R = module._cayley_batch(
            module.weight, module.block_size, module.use_cayley_neumann, module.num_cayley_neumann_terms
        )
        eye = torch.eye(module.block_size, device=R.device, dtype=R.dtype)
        worst = max(worst, torch.linalg.matrix_norm(R.mT @ R - eye).max().item())
    return worst
