"""DyPAM as a PEFT tuner; importing this package registers the type `DYPAM` with PEFT."""

from dypam.tuner.config import DyPAMConfig
from dypam.tuner.digest import weights_digest
from dypam.tuner.model import DyPAMModel
from dypam.tuner.registry import extend_peft_type, register

extend_peft_type("DYPAM")
register("dypam", DyPAMConfig, DyPAMModel)

__all__ = ["DyPAMConfig", "DyPAMModel", "weights_digest"]
