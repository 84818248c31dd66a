"""FourierFT, from PEFT."""

from __future__ import annotations

from peft import FourierFTConfig

from dypam.peft_method import PeftMethod


class FourierFT(PeftMethod):
    """Weight updates as sparse spectra (Gao et al., 2024).

    PEFT's spectrum starts at random, so the adapted model does not start as the backbone.  The frequencies
    come from PEFT's fixed seed 777, or with `seeded` from the run's; the seed is saved with the adapter.
    """

    config_class = FourierFTConfig
    seed_field = "random_loc_seed"
