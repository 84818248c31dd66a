"""VeRA, from PEFT."""

from __future__ import annotations

from peft import VeraConfig

from dypam.peft_method import PeftMethod


class VeRA(PeftMethod):
    """Learned scales round shared random projections (Kopiczko et al., 2024).

    The projections come from PEFT's fixed seed 0, or with `seeded` from the run's; they are saved with the
    adapter.
    """

    config_class = VeraConfig
    seed_field = "projection_prng_key"
