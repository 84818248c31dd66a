"""RoSA as a method of the trainer: RoAE with dynamic layer selection, and LoRA in RoAE's place."""

from __future__ import annotations

from typing import Any

from peft import LoraConfig
from torch import nn

from baselines.rosa.dls import LayerSelection
from baselines.rosa.tuner import RoSAConfig
from dypam.method import RunContext, StepView
from dypam.peft_method import PeftMethod
from dypam.tuner.method import RotaryMethod


class Selective(PeftMethod):
    """A PEFT method of which only some layers train at a time; the options are those of `LayerSelection`."""

    def __init__(
        self,
        name: str,
        label: str | None = None,
        *,
        dls: str = "freeze",
        k_ratio: float = 0.5,
        exploit: float = 0.8,
        interval: int = 40,
        warmup: int = 0,
        **fields: Any,
    ) -> None:
        super().__init__(name, label, **fields)
        self.selection = LayerSelection(dls, k_ratio, exploit, interval, warmup)

    def attach(self, model: nn.Module, run: RunContext) -> nn.Module:
        """Return the adapted model, its layers known to the selection."""
        adapted = super().attach(model, run)
        self.selection.bind(adapted, run.seed, run.total_steps)
        return adapted

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return one group of all that trains; frozen norms that are scored are not in it."""
        scored = self.selection.scored_only()
        return [{"params": [p for p in model.parameters() if p.requires_grad and id(p) not in scored]}]

    def before_step(self, model: nn.Module, step: StepView) -> None:
        """Choose the layers that train, and keep the others still."""
        self.selection.before_step(step)

    def after_step(self, model: nn.Module, step: StepView) -> None:
        """Make ready for the next choice."""
        self.selection.after_step()

    def metrics(self, model: nn.Module) -> dict[str, Any]:
        """Return the choices of layers since the last call, with their scores."""
        return {"selections": self.selection.news()}

    def state_dict(self) -> dict[str, Any]:
        """Return the selection's state."""
        return self.selection.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.selection.load_state_dict(state)


class RoSA(Selective, RotaryMethod):
    """RoAE on the layers that DLS selects; further `fields` are those of `RoSAConfig`."""

    config_class = RoSAConfig


class RoSALoRA(Selective):
    """LoRA in RoAE's place, for the chapter's ablation; further `fields` are those of PEFT's `LoraConfig`."""

    config_class = LoraConfig
