"""Adapted tiny models, with adapters far from their start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from peft import PeftModel, get_peft_model
from torch import nn

from dypam import DyPAMConfig
from dypam.config import Backbone
from dypam.count import count
from dypam.method import Method
from dypam.tuner.layers import AttentionLayer
from tests.tiny import FAMILIES, tiny

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SMALL: dict[str, Any] = {"d_e": 6, "rank": 4, "init_seed": 3}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "shared": {"projection": "shared"},
    "before_norm": {"modulate": "before_norm"},
    "no_dim_mod": {"dim_mod": False},
    "no_head_bias": {"head_bias": False},
    "no_layer_bias": {"layer_bias": False},
    "no_bias": {"head_bias": False, "layer_bias": False},
    "raw_centered": {"normalize": "raw_centered"},
    "raw": {"normalize": "raw"},
    "raw_head": {"normalize": "raw", "layer_bias": False},
    "train_norms": {"train_norms": True},
    "folded": {"fold": "always"},
}
EVERYWHERE = ("default", "shared", "before_norm", "train_norms")
CASES = [
    (variant, family)
    for variant in VARIANTS
    for family in FAMILIES
    if variant in EVERYWHERE or family in ("llama", "qwen3")
]
"""The variants that meet a family's structure on all of them, the others with and without per-head norms."""


def adapted(family: str = "llama", *, dtype: torch.dtype = torch.float32, **fields: Any) -> PeftModel:
    """Return a tiny model with DyPAM at its start."""
    return get_peft_model(
        tiny(family, dtype=dtype), DyPAMConfig(task_type="CAUSAL_LM", **{**SMALL, **fields})
    )


def moved(family: str = "llama", *, seed: int = 5, **kwargs: Any) -> PeftModel:
    """Return a tiny model with DyPAM, its trainable weights far from their start."""
    return move(adapted(family, **kwargs), seed)


def move(model: nn.Module, seed: int = 5) -> Any:
    """Add normal noise to every trainable weight; evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trainable(model).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    return model.eval()


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    return [module for module in model.modules() if isinstance(module, AttentionLayer)]


def logits(model: nn.Module, ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, **kwargs).logits


def configured(*overrides: str) -> tuple[Method, Backbone]:
    """Return the method and backbone that Hydra overrides choose."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("config", overrides=list(overrides))
    backbone = OmegaConf.to_container(config, resolve=True)["backbone"]
    return instantiate(config.method, _convert_="all"), Backbone(**backbone)


def percent(*overrides: str) -> float:
    """Return Param(%) by the published accounting, to four decimals."""
    return round(count(*configured(*overrides)).percent, 4)
