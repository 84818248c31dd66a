"""RoSA's published counts and cost, and its YAMLs."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from baselines.rosa import RoSA, RoSALoRA
from dypam.backbone import meta_model
from dypam.method import RunContext
from dypam.tuner.count import flops_per_token
from tests.tuner.support import CONFIGS, configured, percent

VARIANTS = [
    "rosa",
    "rosa_chapter/rosa",
    *sorted(f"rosa/{p.stem}" for p in CONFIGS.glob("method/rosa/*.yaml")),
]


@pytest.mark.parametrize(
    ("backbone", "frozen", "norms"),
    [("llama-3.2-3b", 0.5397, 0.5451), ("qwen3-8b", 0.3588, 0.3625), ("gemma-3-4b", 0.3871, 0.3957)],
)
def test_parameter_counts_are_the_decoded_ones(backbone: str, frozen: float, norms: float) -> None:
    assert percent("method=rosa", f"backbone={backbone}") == frozen
    assert percent("method=rosa/train_norms", f"backbone={backbone}") == norms


@pytest.mark.parametrize(
    ("backbone", "printed"), [("qwen2.5-7b", 0.261), ("llama-3.1-8b", 0.329), ("gemma-2-9b", 0.363)]
)
def test_the_chapters_counts_have_the_norms_in_blocks(backbone: str, printed: float) -> None:
    assert round(percent("method=rosa_chapter/rosa", f"backbone={backbone}"), 3) == printed


def test_flops_are_the_printed_ones() -> None:
    method, backbone = configured("method=rosa", "backbone=llama-3.2-3b")
    model = method.attach(meta_model(backbone), RunContext(0, 100))
    assert flops_per_token(model) == 34_865_152


def test_every_yaml_is_a_method_of_its_own() -> None:
    methods = [configured(f"method={variant}")[0] for variant in VARIANTS]
    assert len({method.name for method in methods}) == len(VARIANTS)
    assert {type(method) for method in methods} == {RoSA, RoSALoRA}
    sweep = [OmegaConf.load(CONFIGS / f"method/{v}.yaml").get("k_ratio") for v in VARIANTS if "k_ratio" in v]
    assert sweep == [0.25, 0.75, 1.0]
