"""Bone, through PEFT's MiSS: with the same rank it is the same model, bit for bit."""

from __future__ import annotations

from peft import MissConfig

from dypam.peft_method import PeftMethod


class Bone(PeftMethod):
    """One trainable block shared along the input (Kang and Yin, 2024).

    Newer PEFT has no Bone; older PEFT has both, and there they agree bitwise.
    """

    config_class = MissConfig
