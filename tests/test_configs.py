"""Every Hydra file composes into a checked run whose `_target_`s exist and take their arguments."""

import itertools

import pytest

from dypam.config import RunConfig
from dypam.validate import check_targets
from scripts import compose, override

BACKBONES = {
    "bloom-560m": 559_214_592,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-4b": 3_880_263_168,
    "gemma3-270m": 268_098_176,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-3b": 3_212_749_824,
    "opt-350m": 331_196_416,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
}
CHOICES = [
    f"{group}={name}"
    for group in ("backbone", "method", "suite", "train", "decode", "experiment")
    for name in override.choices(group)
]


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_makes_a_checked_run(choice):
    by_all_but_seed = {
        tuple(o for o in job if not o.startswith("seed=")): job for job in compose.grid([choice])
    }
    for job in by_all_but_seed.values():
        config = compose.run_config(job)
        assert isinstance(config, RunConfig)
        check_targets(config)


def test_every_file_is_reached():
    """No YAML lies about that no run can name."""
    known = {
        f"{group}/{name}"
        for group in [*override.groups(), "hydra/launcher"]
        for name in override.choices(group)
    }
    files = {str(p.relative_to(compose.CONFIGS).with_suffix("")) for p in compose.CONFIGS.rglob("*.yaml")}
    assert files == known | {"config"}


@pytest.mark.parametrize("group", ["backbone", "method", "suite", "testset"])
def test_the_name_in_a_file_is_unique_in_its_group(group):
    names = []
    for choice in override.choices(group):
        if group == "testset":
            names.append(compose.compose([f"+testset@t={choice}"]).t.name)
        else:
            names.append(compose.run_config([f"{group}={choice}"]).__dict__[group])
    names = [n if isinstance(n, str) else n["name"] if isinstance(n, dict) else n.name for n in names]
    twice = {a for a, b in itertools.pairwise(sorted(names)) if a == b}
    assert not twice


@pytest.mark.parametrize("launcher", override.choices("hydra/launcher"))
def test_every_launcher_composes(launcher):
    assert compose.launcher([f"hydra/launcher={launcher}"]) == launcher
    config = compose.compose([f"hydra/launcher={launcher}"], with_hydra=True)
    assert config.hydra.launcher._target_


def test_all_backbones_are_there():
    assert BACKBONES.keys() <= set(override.choices("backbone"))


@pytest.mark.parametrize("name", BACKBONES)
def test_a_backbones_numbers_give_its_parameter_count(name):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    backbone = compose.run_config([f"backbone={name}"]).backbone
    assert backbone.name == name
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**backbone.architecture))
    assert sum(p.numel() for p in model.parameters()) == BACKBONES[name]


def test_gemma_3_4b_is_published_inside_a_vision_language_model():
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    whole = compose.run_config(["backbone=gemma-3-4b"]).backbone.whole_checkpoint
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**whole))
    assert type(model).__name__ == "Gemma3ForConditionalGeneration"
    assert sum(p.numel() for p in model.parameters()) == 4_300_079_472
