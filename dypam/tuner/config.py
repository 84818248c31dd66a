"""DyPAM's options."""

from __future__ import annotations

from dataclasses import dataclass, field

from peft import PeftType

from dypam.tuner.base import RotaryConfig


@dataclass
class DyPAMConfig(RotaryConfig):
    """Configuration of DyPAM for `peft.get_peft_model`; the defaults are the paper's.

    Raises:
        ConfigError: a value that is out of range, or a combination that cannot start as the identity.
    """

    d_e: int = field(default=64, metadata={"help": "Feature size of a head (Eq. 6)"})
    rank: int = field(default=128, metadata={"help": "Rank r of the feature projection A B (Eq. 6)"})
    alpha: float = field(
        default=0.3, metadata={"help": "Strength: factors lie in [1 − α/2, 1 + α/2] (Eq. 13)"}
    )
    projection: str = field(
        default="separate",
        metadata={"help": "separate = query and key have their own A, B | shared = Eq. 6 as written"},
    )
    modulate: str = field(
        default="after_norm",
        metadata={"help": "Side of the per-head norm, where there is one: after_norm | before_norm"},
    )
    dim_mod: bool = field(default=True, metadata={"help": "Input-conditioned scores (Eq. 8)"})
    head_bias: bool = field(default=True, metadata={"help": "A bias for each head and pair (Eqs. 11, 12)"})
    layer_bias: bool = field(default=True, metadata={"help": "A bias for each pair (Eqs. 11, 12)"})
    normalize: str = field(
        default="sigmoid",
        metadata={"help": "sigmoid = Eq. 13 | raw_centered: s = 1 + α g | raw: s = g, biases start at 1"},
    )
    fold: str = field(
        default="never",
        metadata={"help": "Compute with C = B Eᵀ instead of B and E: never | eval | always"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType["DYPAM"]
        for name in ("d_e", "rank"):
            value = getattr(self, name)
            self.require(name, isinstance(value, int) and value > 0, "must be a positive integer")
        self.require("alpha", self.alpha > 0, "must be positive")
        for name, allowed in (
            ("projection", ("separate", "shared")),
            ("modulate", ("after_norm", "before_norm")),
            ("normalize", ("sigmoid", "raw_centered", "raw")),
            ("fold", ("never", "eval", "always")),
        ):
            self.require(name, getattr(self, name) in allowed, f"must be one of {', '.join(allowed)}")
        biased = self.head_bias or self.layer_bias
        self.require(
            "dim_mod", self.dim_mod or biased, "without head_bias and layer_bias too nothing is left to train"
        )
        self.require(
            "normalize", self.normalize != "raw" or biased, "needs head_bias or layer_bias, which start at 1"
        )
