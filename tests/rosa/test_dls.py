"""Dynamic layer selection by plain torch: scores, choices, what stays still, resuming."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from baselines.rosa import RoSA, RoSALoRA
from dypam.config import ConfigError
from dypam.method import RunContext
from tests.reference import rosa as numpy_reference
from tests.rosa.support import Training
from tests.tiny import tiny

FAST: dict[str, Any] = {"interval": 3, "warmup": 2, "rank": 4}


def choices(training: Training) -> list[dict[str, Any]]:
    return training.method.metrics(training.model)["selections"]


@pytest.mark.parametrize("norms", [False, True])
def test_unselected_layers_stay_bit_for_bit(norms: bool, family: str) -> None:
    training = Training(RoSA("rosa", train_norms=norms, **FAST), family)
    training.run(until=2)
    before = training.snapshot()
    assert all(any(v.abs().max() > 0 for key, v in layer.items() if "exp_avg" in key) for layer in before)
    training.run(until=3)  # the choice holds from the very step that makes it
    for step in range(3, 9):
        after = training.snapshot()
        selected = training.method.selection.selected
        assert len(selected) == 2
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            same = [torch.equal(old[key], new[key]) for key in old]
            assert all(same) if index not in selected else not all(same)
        before = after
        training.run(until=step + 1)


def test_masked_gradients_stop_no_layer() -> None:
    """The literal reading: with a zero gradient, Adam's momentum moves the weights on."""
    training = Training(RoSA("rosa", dls="mask_gradients", **FAST))
    training.run(until=2)
    before = training.snapshot()
    training.run(until=3)
    index = next(i for i in range(4) if i not in training.method.selection.selected)
    for key, old in before[index].items():
        new = training.snapshot()[index][key]
        if key.endswith("exp_avg"):
            torch.testing.assert_close(new, 0.9 * old)
        elif key.endswith("exp_avg_sq"):
            torch.testing.assert_close(new, 0.999 * old)
        else:
            assert not torch.equal(new, old)


@pytest.mark.parametrize("dls", ["freeze", "mask_gradients"])
def test_layers_that_keep_still_have_no_share_in_the_clipped_norm(dls: str) -> None:
    training = Training(RoSA("rosa", dls=dls, **FAST))
    training.run(until=2)
    norms: list[list[float]] = []
    training.optimizer.register_step_pre_hook(
        lambda *_: norms.append(
            [
                sum(float(p.grad.norm()) for p in layer.trained if p.grad is not None)
                for layer in training.method.selection.layers
            ]
        )
    )
    training.run(until=3)
    selected = training.method.selection.selected
    assert [index for index, norm in enumerate(norms[-1]) if norm > 0] == selected


def test_without_selection_all_layers_move() -> None:
    training = Training(RoSA("rosa", dls="off", **FAST))
    training.run(until=7)
    assert training.method.selection.selected is None
    assert choices(training) == []


def test_choices_come_after_the_warmup_and_at_the_interval() -> None:
    training = Training(RoSA("rosa", interval=2, warmup=5, rank=4))
    training.run(until=12)
    assert [choice["step"] for choice in choices(training)] == [6, 8, 10, 12]
    assert choices(training) == []  # reported once


@pytest.mark.parametrize("norms", [False, "blocks"])
def test_scores_are_the_gradients_of_the_two_norms(norms: bool | str, family: str) -> None:
    """Against autograd's own gradients with every norm set to want one."""
    training = Training(RoSA("rosa", train_norms=norms, interval=1, rank=4, exploit=1.0), family)
    layers = training.method.selection.layers
    wanted: list[float] = []
    inner = training.method.selection.before_step

    def watch(step: Any) -> None:
        for layer in layers:
            wanted.append(numpy_reference.score([norm.grad.numpy() for norm in layer.norms]))
        inner(step)

    training.method.selection.before_step = watch
    training.run(until=1)
    (choice,) = choices(training)
    np.testing.assert_allclose(choice["scores"], wanted, rtol=1e-6)
    assert choice["selected"] == sorted(np.argsort(wanted)[::-1][:2].tolist())
    assert min(wanted) > 0
    decoder = training.model.get_base_model().model.layers[0]
    second = "pre_feedforward_layernorm" if family.startswith("gemma") else "post_attention_layernorm"
    assert layers[0].norms[1].shape == getattr(decoder, second).weight.shape
    names = {id(p): name for name, p in training.model.named_parameters()}
    assert [second in names[id(layer.norms[1])] for layer in layers] == [True] * 4


def test_exploration_and_exploitation_follow_the_seed() -> None:
    def record(exploit: float) -> list[dict[str, Any]]:
        training = Training(RoSA("rosa", interval=1, rank=4, exploit=exploit))
        training.run(until=8)
        return choices(training)

    explored, again = record(0.0), record(0.0)
    assert explored == again
    assert not any(choice["by_score"] for choice in explored)
    assert len({tuple(choice["selected"]) for choice in explored}) > 2
    for choice in record(1.0):
        best = np.argsort(choice["scores"])[::-1][:2]
        assert choice["selected"] == sorted(best.tolist())


@pytest.mark.parametrize(("ratio", "count"), [(0.25, 1), (0.5, 2), (0.75, 3), (1.0, 4), (0.01, 1)])
def test_the_ratio_sets_the_number_of_layers(ratio: float, count: int) -> None:
    training = Training(RoSA("rosa", interval=1, rank=4, k_ratio=ratio))
    training.run(until=1)
    assert len(training.method.selection.selected) == count


def test_frozen_norms_want_a_gradient_only_when_a_choice_is_due() -> None:
    training = Training(RoSA("rosa", **FAST))
    norms = [norm for layer in training.method.selection.layers for norm in layer.norms]
    start = [norm.detach().clone() for norm in norms]
    wanted = []
    for step in range(1, 8):
        wanted.append(norms[0].requires_grad)
        training.run(until=step)
        assert all(norm.grad is None for norm in norms)
    assert wanted == [step in (3, 6) for step in range(1, 8)]
    assert all(torch.equal(norm, old) for norm, old in zip(norms, start, strict=True))


def test_a_resumed_training_ends_in_the_same_weights_and_choices() -> None:
    whole = Training(RoSA("rosa", **FAST))
    whole.run(until=12)
    for stop in (4, 5):  # in the middle of an interval, and right before a choice
        first = Training(RoSA("rosa", **FAST))
        first.run(until=stop)
        buffer = io.BytesIO()
        state = {"model": first.model.state_dict(), "optimizer": first.optimizer.state_dict()}
        torch.save({**state, "method": first.method.state_dict()}, buffer)
        buffer.seek(0)
        saved = torch.load(buffer, weights_only=True)
        second = Training(RoSA("rosa", **FAST))
        second.model.load_state_dict(saved["model"])
        second.optimizer.load_state_dict(saved["optimizer"])
        second.method.load_state_dict(saved["method"])
        second.step = stop
        second.run(until=12)
        for old, new in zip(whole.snapshot(), second.snapshot(), strict=True):
            assert all(torch.equal(old[key], new[key]) for key in old)
        assert whole.method.selection.selected == second.method.selection.selected


def test_lora_in_place_of_roae_is_selected_too() -> None:
    training = Training(RoSALoRA("rosa_lora", interval=3, r=4, target_modules=["q_proj", "k_proj"]))
    training.run(until=2)
    before = training.snapshot()
    training.run(until=3)
    selected = training.method.selection.selected
    for index, (old, new) in enumerate(zip(before, training.snapshot(), strict=True)):
        assert len(old) == 4 * 3
        assert all(torch.equal(old[key], new[key]) for key in old) == (index not in selected)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dls": "zero"}, "method.dls=zero"),
        ({"k_ratio": 0}, "method.k_ratio=0"),
        ({"exploit": 2}, "method.exploit=2"),
        ({"interval": 0}, "method.interval=0"),
        ({"warmup": -1}, "method.warmup=-1"),
        ({"ranks": 3}, "ranks"),
    ],
)
def test_a_wrong_option(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        RoSA("rosa", **options)


def test_groups_and_counts_hold_no_scored_norm() -> None:
    method = RoSA("rosa", interval=1, rank=4)
    model = method.attach(tiny(), RunContext(0, 10))
    scored = method.selection.scored_only()
    assert scored
    grouped = [p for group in method.parameter_groups(model) for p in group["params"]]
    assert not scored & {id(p) for p in grouped}
    assert method.parameter_counts(model)[0] == sum(p.numel() for p in grouped)
