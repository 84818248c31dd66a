"""The contract between a PEFT method and the trainer: attach, groups, hooks round the optimizer step, state.

The trainer knows no method's name.  A method is one class with the hooks below; `configs/method/NAME.yaml`
names it by `_target_` and gives its constructor arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dypam.config import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class RunContext:
    """What a method may know of the run it is attached for."""

    seed: int
    total_steps: int


class StepView(Protocol):
    """One optimizer step, seen the same way under plain torch and under ZeRO-1 on any number of processes.

    `step` counts optimizer steps from 1.  Gradients are those of the whole accumulated global batch, after
    the mean over processes and before clipping; weights are the FP32 ones that the optimizer updates.
    """

    step: int
    total_steps: int

    def grad(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """Return the full accumulated gradient (valid in `before_step` only)."""

    def set_grad(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Replace the gradient that clipping and the optimizer will see (in `before_step` only)."""

    def weight(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return a copy of the full FP32 master weight."""

    def set_weight(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Write a weight: the FP32 master and the copy that the forward uses."""

    def hold(self, parameters: list[nn.Parameter]) -> None:
        """Keep these parameters' weights and Adam moments as they are, bit for bit, through this step."""


class Method(ABC):
    """One PEFT method.

    Class attributes: `trainable` (false for the bare backbone), `mergeable` (whether `merge` exists).
    """

    trainable: bool = True
    mergeable: bool = False

    def __init__(self, name: str, label: str | None = None) -> None:
        self.name = name
        self.label = label or name

    @abstractmethod
    def attach(self, model: nn.Module, run: RunContext) -> nn.Module:
        """Return `model` with the method's parameters added and everything else frozen.

        Adapters are created in FP32 whatever the backbone's dtype.  Must also work on the meta device.
        """

    @abstractmethod
    def save(self, model: nn.Module, directory: Path) -> None:
        """Write all that `load` needs into an existing empty directory."""

    @abstractmethod
    def load(self, model: nn.Module, directory: Path) -> nn.Module:
        """Attach what `save` wrote to a bare backbone; keys or shapes that do not match are an error."""

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return the optimizer's parameter groups; one group of all trainable parameters by default."""
        return [{"params": [p for p in model.parameters() if p.requires_grad]}]

    def penalty(self, model: nn.Module) -> torch.Tensor | None:
        """Return a differentiable scalar to add to the training loss (once per global batch), or None."""
        return None

    def parameter_counts(self, model: nn.Module) -> tuple[int, int]:
        """Return (trained, backbone + adapter) of an adapted model, as published Param(%) has them."""
        groups = self.parameter_groups(model)
        trained = sum(p.numel() for group in groups for p in group["params"])
        return trained, sum(p.numel() for p in model.parameters())

    def before_step(self, model: nn.Module, step: StepView) -> None:
        """Run after the last backward of an accumulation window, before clipping and the optimizer."""

    def after_step(self, model: nn.Module, step: StepView) -> None:
        """Run after the optimizer has updated the weights."""

    def metrics(self, model: nn.Module) -> dict[str, Any]:
        """Return what the method wants in the run's log (called at each evaluation)."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what `after_step` and `before_step` carry from step to step, for checkpoints."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""

    def merge(self, model: nn.Module) -> nn.Module:
        """Fold the adapter into the backbone's weights, where the method allows it."""
        raise ValueError(f"method {self.name}: cannot be merged into the backbone; set decode.merge=false.")


def attached(method: Method, model: nn.Module, run: RunContext) -> nn.Module:
    """Return what `method.attach` returns; raise `ConfigError` if that is no model."""
    from torch import nn

    adapted = method.attach(model, run)
    if not isinstance(adapted, nn.Module):
        raise ConfigError(
            f"method {method.name}: attach returned {adapted!r}; let it return the adapted model."
        )
    return adapted
