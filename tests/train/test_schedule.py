"""Batches, their order and the learning rate."""

import pytest
import torch
from transformers import get_cosine_schedule_with_warmup

from dypam import schedule
from dypam.config import ConfigError, Train


@pytest.mark.parametrize(("total", "ratio"), [(100, 0.05), (7, 0.3), (10, 0.0), (1, 0.05)])
def test_learning_rate_is_transformers_cosine(total: int, ratio: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    warmup = -(-total * ratio // 1)
    reference = get_cosine_schedule_with_warmup(optimizer, int(warmup), total)
    for step in range(1, total + 1):
        assert schedule.lr_factor(step, total, ratio) == pytest.approx(reference.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        reference.step()


def test_every_epoch_sees_every_example_once_in_its_own_order() -> None:
    steps = [schedule.examples_of(step, 10, 4, seed=1) for step in range(1, 6)]
    seen = [index for step in steps for index in step]
    assert sorted(seen[:10]) == sorted(seen[10:20]) == list(range(10))
    assert seen[:10] != seen[10:20]
    assert all(len(step) == 4 for step in steps)


def test_order_is_the_seeds_and_fixed_for_good() -> None:
    assert schedule.examples_of(1, 100, 4, seed=2333) == [93, 17, 71, 15]
    assert schedule.examples_of(1, 100, 4, seed=1000) != schedule.examples_of(1, 100, 4, seed=2333)


def test_split_is_disjoint_whole_and_the_seeds() -> None:
    train, validation = schedule.split(50, 10, seed=1)
    assert sorted(train + validation) == list(range(50))
    assert len(validation) == 10
    assert schedule.split(50, 10, seed=2)[1] != validation
    with pytest.raises(ConfigError, match="validation_size=50 leaves nothing of 50"):
        schedule.split(50, 50, seed=1)


@pytest.mark.parametrize(
    ("processes", "micro", "accumulation"), [(1, 2, 2), (2, 2, 1), (4, 1, 1)], ids=["1", "2", "4"]
)
def test_global_batch_is_held(processes: int, micro: int, accumulation: int) -> None:
    batching = schedule.batching(Train(micro_batch=2, global_batch=4), processes)
    assert (batching.micro_batch, batching.accumulation) == (micro, accumulation)
    parts = [batching.parts([7, 8, 9, 5], rank) for rank in range(processes)]
    assert sorted(i for own in parts for part in own for i in part) == [5, 7, 8, 9]


def test_micro_batches_are_the_same_for_any_number_of_processes() -> None:
    examples, train = list(range(12)), Train(micro_batch=2, global_batch=12)
    alone = schedule.batching(train, 1).parts(examples, 0)
    shared = [part for rank in range(3) for part in schedule.batching(train, 3).parts(examples, rank)]
    assert sorted(alone) == sorted(shared)


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="global_batch=4 cannot be split over 3 processes"):
        schedule.batching(Train(global_batch=4), 3)
    with pytest.raises(ConfigError, match=r"set train\.micro_batch=1"):
        schedule.batching(Train(micro_batch=2, global_batch=4, loss_normalization="micro_batch"), 4)


def test_number_of_steps() -> None:
    assert schedule.total_steps(Train(epochs=3.0, global_batch=4), 9700) == 7275
    assert schedule.total_steps(Train(epochs=0.5, global_batch=4), 9) == 2
    assert schedule.total_steps(Train(max_steps=5), 9) == 5
