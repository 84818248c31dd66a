"""DyPAM through the trainer's contract: counts, start, saving, strictness, every YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from dypam.backbone import meta_model
from dypam.config import ConfigError
from dypam.method import RunContext
from dypam.peft_method import PeftMethod
from dypam.tuner.count import flops_per_token
from dypam.tuner.method import DyPAM
from tests.tiny import tiny, tokens
from tests.tuner.support import CONFIGS, configured, logits, move, percent, trainable

VARIANTS = ["dypam", *sorted(f"dypam/{path.stem}" for path in (CONFIGS / "method" / "dypam").glob("*.yaml"))]
RUN = RunContext(seed=1, total_steps=10)
SMALL = {"d_e": 6, "rank": 4}


@pytest.mark.parametrize(
    ("backbone", "frozen", "norms"),
    [("llama-3.2-3b", 0.9145, 0.9199), ("qwen3-8b", 0.6060, 0.6097), ("gemma-3-4b", 0.6066, 0.6151)],
)
def test_parameter_counts_are_the_decoded_ones(backbone: str, frozen: float, norms: float) -> None:
    assert percent("method=dypam", f"backbone={backbone}") == frozen
    assert percent("method=dypam/train_norms", f"backbone={backbone}") == norms


def test_shared_projection_and_flops() -> None:
    assert round(percent("method=dypam/shared", "backbone=llama-3.2-3b"), 2) == 0.52
    method, backbone = configured("method=dypam", "backbone=llama-3.2-3b")
    model = method.attach(meta_model(backbone), RUN)
    assert flops_per_token(model) == 66_060_288
    assert sum(p.numel() for p in trainable(model).values()) == 29_650_432


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_yaml_starts_as_the_backbone_and_survives_saving(variant: str, tmp_path: Path) -> None:
    method, _ = configured(f"method={variant}", *(f"method.{key}={value}" for key, value in SMALL.items()))
    ids = tokens()
    model = method.attach(tiny("qwen3"), RUN)
    assert torch.equal(logits(model, ids), logits(tiny("qwen3"), ids))
    method.save(move(model), tmp_path)
    loaded = method.load(tiny("qwen3"), tmp_path).train(model.training)
    assert torch.equal(logits(loaded, ids), logits(model, ids))


def test_every_yaml_has_its_own_name() -> None:
    names = [OmegaConf.load(CONFIGS / "method" / f"{variant}.yaml").name for variant in VARIANTS]
    assert len(set(names)) == len(VARIANTS)


def test_the_runs_seed_is_the_starts_seed() -> None:
    starts = [trainable(DyPAM("dypam", **SMALL).attach(tiny(), RunContext(s, 1))) for s in (1, 1, 2)]
    assert all(torch.equal(starts[0][name], starts[1][name]) for name in starts[0])
    assert any(not torch.equal(starts[0][name], starts[2][name]) for name in starts[0])


def test_loading_is_strict(tmp_path: Path) -> None:
    method: PeftMethod = DyPAM("dypam", **SMALL)
    method.save(method.attach(tiny(), RUN), tmp_path)
    with pytest.raises(ConfigError, match="other weights"):
        method.load(tiny(seed=1), tmp_path)
    with pytest.raises(ConfigError, match=r"other weights"):
        method.load(tiny("qwen3"), tmp_path)


def test_wrong_fields_and_merging_are_refused() -> None:
    with pytest.raises(ConfigError, match="ranks"):
        DyPAM("dypam", ranks=3)
    with pytest.raises(ConfigError, match=r"decode\.merge=false"):
        DyPAM("dypam").merge(tiny())
