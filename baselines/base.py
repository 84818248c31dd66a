"""The backbone as it is: no parameters, no training."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from dypam.method import Method, RunContext


class Base(Method):
    """The frozen pretrained backbone, evaluated without any adapter."""

    trainable = False

    def attach(self, model: nn.Module, run: RunContext) -> nn.Module:
        """Return `model` with every parameter frozen."""
        return model.requires_grad_(False)

    def save(self, model: nn.Module, directory: Path) -> None:
        """Write nothing: there is nothing to save."""

    def load(self, model: nn.Module, directory: Path) -> nn.Module:
        """Return `model` frozen; nothing is read."""
        return model.requires_grad_(False)
