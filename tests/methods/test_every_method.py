"""What every method keeps, on every family; the engine's part is in `test_every_method_on_the_engine.py`."""

import pytest
import torch

from dypam.config import ConfigError
from dypam.method import RunContext
from dypam.peft_method import MERGE_TOLERANCE, NOT_TEXT
from dypam.tuner.digest import base_parameters
from tests.methods.cases import NOT_IDENTITY, cases, logits_of, loss_of, make, trained, variants_late
from tests.tiny import tiny, tokens

BF16 = torch.bfloat16


def is_identity(name: str) -> bool:
    return type(make(name)).__name__ not in NOT_IDENTITY


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("name", "family"), cases())
def test_it_starts_as_the_backbone_bit_for_bit(name, family, dtype):
    backbone = tiny(family, dtype=dtype)
    want = logits_of(backbone)
    model = make(name).attach(backbone, RunContext(seed=1, total_steps=10)).eval()
    got = logits_of(model)
    assert got.dtype == want.dtype == dtype
    assert torch.equal(got, want) == is_identity(name)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}


@pytest.mark.parametrize(("name", "family"), cases())
def test_the_loss_falls(name, family):
    losses = trained(name, family).losses
    assert losses[-1] < losses[0] - 0.02


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("name", "family"), cases())
def test_the_backbone_is_unchanged_bit_for_bit(name, family, dtype):
    run = trained(name, family, dtype)
    after = dict(base_parameters(run.model))
    assert after.keys() == run.before.keys()
    assert all(torch.equal(after[key], run.before[key]) for key in after)


@pytest.mark.parametrize(("name", "family"), cases())
def test_a_gradient_reaches_every_trainable_weight_within_three_steps(name, family):
    run = trained(name, family)
    assert run.reached.keys() == run.start.keys()
    for key, hit in run.reached.items():
        if "boft_R" in key:  # only the skew part of a block counts, and a diagonal has none
            hit = hit | torch.eye(hit.shape[-1], dtype=torch.bool)
        assert hit.all(), key


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("name", "family"), cases())
def test_saved_and_reloaded_it_gives_the_same_logits(name, family, dtype, tmp_path):
    run = trained(name, family, dtype)
    run.method.save(run.model, tmp_path)
    random = torch.random.get_rng_state()
    again = make(name).load(tiny(family, dtype=dtype), tmp_path).eval()
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.equal(logits_of(again), logits_of(run.model))
    assert not torch.equal(logits_of(again), logits_of(tiny(family, dtype=dtype)))


@pytest.mark.parametrize(("name", "family"), cases())
def test_other_weights_of_the_same_shape_are_refused(name, family, tmp_path):
    run = trained(name, family)
    run.method.save(run.model, tmp_path)
    with pytest.raises(ConfigError, match="weights"):
        make(name).load(tiny(family, seed=1), tmp_path)


@pytest.mark.parametrize(("name", "family"), cases())
def test_generation_with_cache_equals_generation_without(name, family):
    model = trained(name, family).model
    ask = {"input_ids": tokens(2, 12), "attention_mask": torch.ones(2, 12, dtype=torch.long)}
    given = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    cached, whole = (model.generate(**ask, **given, use_cache=use) for use in (True, False))
    assert torch.equal(cached, whole)


@pytest.mark.parametrize(("name", "family"), cases())
def test_merged_logits_stay_within_the_tolerance_or_merging_is_refused(name, family, tmp_path):
    run = trained(name, family)
    run.method.save(run.model, tmp_path)
    method = make(name)
    model = method.load(tiny(family), tmp_path).eval()
    if not method.mergeable:
        with pytest.raises(ValueError, match="cannot be merged"):
            method.merge(model)
        return
    want = logits_of(model)
    merged = method.merge(model)
    change = (logits_of(merged) - want).abs().max() / want.abs().max()
    assert change <= MERGE_TOLERANCE[torch.float32]
    assert merged.state_dict().keys() == tiny(family).state_dict().keys()


@pytest.mark.parametrize("name", variants_late())
def test_no_adapter_is_on_the_vision_tower(name):
    method, whole = make(name), tiny("gemma3")
    if name == "rosa_chapter/ln_tuning":  # PEFT's list has the text models only
        with pytest.raises(ConfigError, match="does not fit"):
            method.attach(whole, RunContext(seed=1, total_steps=10))
        return
    model = method.attach(whole, RunContext(seed=1, total_steps=10))
    names = [key for key, p in model.named_parameters() if p.requires_grad]
    assert names
    assert not [key for key in names if any(NOT_TEXT.fullmatch(part) for part in key.split("."))]


@pytest.mark.parametrize(("name", "family"), cases())
def test_the_runs_seed_alone_decides_the_start(name, family):
    first = trained(name, family).start
    torch.manual_seed(99)
    model = make(name).attach(tiny(family), RunContext(seed=7, total_steps=12))
    again = {key: p for key, p in model.named_parameters() if p.requires_grad}
    assert first.keys() == again.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)


@pytest.mark.parametrize(("name", "family"), cases())
def test_it_trains_under_autocast_and_all_in_bf16(name, family):
    """The other two BF16 modes: products of the adapters rounded, or the adapters themselves."""
    for everything in (False, True):
        model = make(name).attach(tiny(family, dtype=BF16), RunContext(seed=1, total_steps=10))
        model = model.bfloat16() if everything else model
        with torch.autocast("cpu", dtype=BF16, enabled=not everything):
            loss_of(model, tokens(2, 12)).backward()
        grads = [p.grad for p in model.parameters() if p.requires_grad and p.grad is not None]
        assert all(grad.isfinite().all() for grad in grads)
        assert any(grad.any() for grad in grads)
