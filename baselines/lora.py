"""LoRA and DoRA, from PEFT."""

from __future__ import annotations

from peft import LoraConfig

from dypam.peft_method import PeftMethod


class LoRA(PeftMethod):
    """Low-rank updates of linear layers (Hu et al., 2022); with `use_dora`, DoRA (Liu et al., 2024)."""

    config_class = LoraConfig
