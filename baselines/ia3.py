"""IA3, from PEFT."""

from __future__ import annotations

from typing import Any

from peft import IA3Config

from dypam.peft_method import PeftMethod


class IA3(PeftMethod):
    """Learned scales of activations (Liu et al., 2022).

    The published counts scale every targeted layer's output: no layer is a "feedforward" one, whose input
    PEFT would scale instead.
    """

    config_class = IA3Config

    def __init__(self, name: str, label: str | None = None, **fields: Any) -> None:
        super().__init__(name, label, **{"feedforward_modules": [], **fields})
