"""Counts on the meta device against the published ones, and the audit that prints them."""

import pytest

from dypam.config import Backbone
from dypam.count import count
from dypam.method import RunContext
from dypam.validate import check_targets
from scripts import compose, params
from tests.methods.cases import V5, make, variants_late
from tests.tiny import tiny, tiny_config

# PEFT 0.18 by itself counts 1,152 more for OFT on Gemma: the projector's mm_soft_emb_norm has "oft_" in it.
TABLE = {
    "lora": (36_470_784, 65_470_464, 57_746_688),
    "adalora": (72_950_976, 130_953_024, 115_512_576),
    "oft": (23_482_368, 41_803_776, 32_639_688),
    "bone": (37_158_912, 67_239_936, 61_506_816),
    "ia3": (774_144, 1_400_832, 1_281_392),
    "ln_tuning": (175_104, 308_224, 496_000),
    "fourierft": (23_520_000, 30_240_000, 48_000_000),
    "shira": (36_470_784, 65_470_464, 57_746_688),
}
BACKBONES = ("llama-3.2-3b", "qwen3-8b", "gemma-3-4b")


@pytest.mark.parametrize(
    "place",
    [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)],
    ids=BACKBONES,
)
@pytest.mark.parametrize("method", TABLE)
def test_published_counts_are_met(method, place):
    counts = params.count_of(f"backbone={BACKBONES[place]}", f"method={method}")
    assert counts.published_trained == TABLE[method][place]
    if BACKBONES[place] != "gemma-3-4b":
        assert (counts.trained, counts.total) == (counts.published_trained, counts.published_total)
    else:
        assert counts.trained < counts.published_trained


def test_gemmas_vision_tower_is_counted_and_not_trained():
    """Adapters on the tower are in the published number; the model that trains has none of them."""
    run = compose.run_config(["backbone=gemma-3-4b", "method=lora"])
    counts = count(check_targets(run), run.backbone)
    assert counts.published_total == 4_300_079_472 + counts.published_trained
    assert counts.total == 3_880_263_168 + counts.trained


@pytest.mark.slow
@pytest.mark.skipif(not V5, reason="the paper's stack has no need to count the chapter")
def test_every_printed_percentage_agrees_or_has_a_reason(capsys):
    assert params.audit() == 0
    printed = capsys.readouterr().out
    assert "DISAGREES" not in printed
    assert len(printed.splitlines()) == len(params.published()) + 2


def test_printed_digits_decide():
    row = params.Printed("Table 1", "llama-3.2-3b", "lora", "1.12")
    assert row.agrees(1.1224)
    assert not row.agrees(1.1251)


@pytest.mark.parametrize("name", variants_late())
def test_every_method_counts_what_it_trains(name):
    """On the meta device as with weights: small sizes, both ways."""
    method = make(name)
    real = method.parameter_counts(method.attach(tiny("qwen3"), RunContext(seed=1, total_steps=10)))
    architecture = {key: value for key, value in tiny_config("qwen3").to_dict().items() if value is not None}
    counts = count(make(name), Backbone("tiny", "Tiny", "", architecture))
    assert (counts.trained, counts.total) == real


def test_the_script_counts_any_pair(capsys):
    params.main(["backbone=qwen3-0.6b", "method=lora", "method.r=8"])
    assert "published accounting      5,046,272 of 601,096,192 = 0.8395 %" in capsys.readouterr().out
