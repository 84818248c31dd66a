"""C3A, from PEFT."""

from __future__ import annotations

from peft import C3AConfig

from dypam.peft_method import PeftMethod


class C3A(PeftMethod):
    """Block-circular convolutions (Chen et al., 2024).

    PEFT's kernels start at random, so the adapted model does not start as the backbone.
    """

    config_class = C3AConfig
