"""DyPAM as a PEFT tuner."""

from __future__ import annotations

import torch
from torch import nn

from dypam.attention import Geometry
from dypam.tuner.base import RotaryTuner
from dypam.tuner.config import DyPAMConfig
from dypam.tuner.modulation import Modulation


class DyPAMModel(RotaryTuner):
    """The backbone with dynamic positional attention modulation in every self-attention layer."""

    prefix = "dypam_"

    def make(
        self, config: DyPAMConfig, geometry: Geometry, attention: nn.Module, device: torch.device
    ) -> Modulation:
        """Return the layer's modulation; without per-head norms both of their sides are the same place."""
        at_projection = config.modulate == "before_norm" and hasattr(attention, "q_norm")
        return Modulation(config, geometry, at_projection, device)
