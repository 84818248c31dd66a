"""AdaLoRA's allocation: budgets met exactly, PEFT's choice where PEFT's works, ties, schedules, state."""

import pytest
import torch
from torch import nn

from baselines.adalora import AdaLoRA, budget
from dypam.config import ConfigError
from dypam.method import RunContext
from dypam.step import TorchStep
from tests.methods.cases import loss_of, one_step
from tests.tiny import tiny, tokens

MODULES, STEPS = 14, 12


def attached(steps: int = STEPS, **fields) -> tuple[AdaLoRA, nn.Module, torch.optim.Optimizer]:
    method = AdaLoRA("adalora", init_r=6, target_r=3, **fields)
    model = method.attach(tiny("llama"), RunContext(seed=5, total_steps=steps))
    return method, model, torch.optim.AdamW(method.parameter_groups(model), lr=1e-2)


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p for name, p in model.named_parameters() if ".lora_E." in name}


@pytest.mark.parametrize(
    "schedule",
    [{}, {"tinit": 2, "tfinal": 3}, {"tinit": 1, "tfinal": 2, "deltaT": 4}],
    ids=["peft", "phases", "delta"],
)
def test_the_budget_is_met_exactly_and_the_last_one_is_the_target(schedule):
    method, model, optimizer = attached(**schedule)
    config = model.peft_config["default"]
    pruned = False
    for step in range(1, STEPS + 1):
        one_step(method, model, optimizer, step, STEPS)
        alive = sum(int((p != 0).sum()) for p in values(model).values())
        if config.tinit < step and (step % config.deltaT == 0 or step >= STEPS - config.tfinal):
            assert alive == budget(config, step, 6 * MODULES, MODULES)
            pruned = True
        else:
            assert alive == 6 * MODULES or pruned
    assert alive == 3 * MODULES
    assert method.metrics(model)["rank_total"] == 3 * MODULES


def test_ties_are_broken_and_the_budget_still_met():
    """At the first step every singular value is zero, and without the penalty so is every score."""
    method, model, optimizer = attached(orth_reg_weight=0.0)
    one_step(method, model, optimizer, 1, STEPS)
    want = budget(model.peft_config["default"], 1, 6 * MODULES, MODULES)
    assert sum(int(kept.sum()) for kept in method.state_dict()["rank_pattern"].values()) == want


def test_it_keeps_what_pefts_own_allocator_keeps():
    """The same gradients, weights and budget: PEFT's threshold and our sorting choose the same triplets."""
    method, model, optimizer = attached()
    theirs = model.base_model.rankallocator
    for step in range(1, 6):
        optimizer.zero_grad()
        (loss_of(model, tokens(4, 16)) + method.penalty(model)).backward()
        theirs.update_ipt(model.base_model.model)
        method.before_step(model, TorchStep(optimizer, step, STEPS))
        optimizer.step()
        for name, mean in theirs.exp_avg_ipt.items():
            assert torch.allclose(mean, method._importance[f"base_model.model.{name}"])
        # PEFT drops whatever ties with the last dropped one, and at first all do: so from the second step.
        if step > 1:
            want = theirs.mask_to_budget(
                model.base_model.model, budget(theirs.peft_config, step, 84, MODULES)
            )
            method.after_step(model, TorchStep(optimizer, step, STEPS))
            ours = {name.removeprefix("base_model.model."): kept for name, kept in method._kept.items()}
            assert {name: kept.flatten().tolist() for name, kept in ours.items()} == want


def test_its_penalty_is_pefts():
    method, model, _ = attached()
    ids = tokens(2, 12)
    with_penalty = model(input_ids=ids, labels=ids).loss
    without = model.base_model.model(input_ids=ids, labels=ids).loss
    assert torch.isclose(with_penalty - without, method.penalty(model), rtol=1e-4)


def test_resumed_from_its_state_it_goes_on_bit_for_bit():
    import copy

    method, model, optimizer = attached(tfinal=3)
    for step in range(1, 7):
        one_step(method, model, optimizer, step, STEPS)
    saved = copy.deepcopy((method.state_dict(), model.state_dict(), optimizer.state_dict()))
    for step in range(7, STEPS + 1):
        one_step(method, model, optimizer, step, STEPS)
    again, other, restarted = attached(tfinal=3)
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    restarted.load_state_dict(saved[2])
    for step in range(7, STEPS + 1):
        one_step(again, other, restarted, step, STEPS)
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name


def test_a_schedule_longer_than_the_run_is_refused():
    with pytest.raises(ConfigError, match=r"tfinal.*tinit"):
        attached(steps=5, tinit=2, tfinal=3)
    with pytest.raises(ConfigError, match=r"after step 1 of 1, .* raise train\.max_steps"):
        attached(steps=1)
    attached(steps=2)


def test_pefts_record_of_each_rank_is_frozen():
    _, model, _ = attached()
    assert not [n for n, p in model.named_parameters() if "ranknum" in n and p.requires_grad]
