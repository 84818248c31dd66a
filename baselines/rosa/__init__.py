"""RoSA: RoPE-aware selective adaptation; importing this package registers the type `ROSA` with PEFT."""

from baselines.rosa.method import RoSA, RoSALoRA
from baselines.rosa.tuner import RoSAConfig, RoSAModel

__all__ = ["RoSA", "RoSAConfig", "RoSALoRA", "RoSAModel"]
