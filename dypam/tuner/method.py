"""DyPAM as a method of the trainer."""

from __future__ import annotations

from typing import Any, ClassVar

from peft import PeftConfig
from torch import nn

from dypam.config import ConfigError
from dypam.method import RunContext
from dypam.peft_method import PeftMethod
from dypam.tuner.base import RotaryConfig
from dypam.tuner.config import DyPAMConfig
from dypam.tuner.count import norm_copies


class RotaryMethod(PeftMethod):
    """A rotary tuner: its configuration has no target modules, and it cannot be merged."""

    config_class: ClassVar[type[RotaryConfig]]  # type: ignore[assignment]
    mergeable = False

    def __init__(self, name: str, label: str | None = None, **fields: Any) -> None:
        super().__init__(name, label, target_modules=None, **fields)

    def config(self, model: nn.Module, run: RunContext) -> PeftConfig:
        """Return the tuner's configuration (checked here, whatever the backbone)."""
        return self.config_class(task_type="CAUSAL_LM", **self.fields)

    def parameter_counts(self, model: nn.Module) -> tuple[int, int]:
        """Return (trained, backbone + adapter); a norm and its trained copy are one in the sum."""
        trained, total = super().parameter_counts(model)
        return trained, total - norm_copies(model)

    def merge(self, model: nn.Module) -> nn.Module:
        """Refuse, with the reason."""
        raise ConfigError(
            f"method {self.name}: cannot be merged, as its factors depend on the input and no fixed weight "
            "does; set decode.merge=false."
        )


class DyPAM(RotaryMethod):
    """Dynamic positional attention modulation; `fields` are those of `DyPAMConfig`."""

    config_class = DyPAMConfig
