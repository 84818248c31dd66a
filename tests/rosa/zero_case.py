"""The same training with dynamic layer selection by plain torch and under ZeRO-1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from baselines.rosa import RoSA
from dypam import distributed, engine
from dypam.config import Train
from dypam.schedule import Batching
from dypam.step import ZeroStep
from tests.rosa.support import LR, Training, batch, loss_of
from tests.train.step_case import whole

STEPS = 6
CASES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"dtype": torch.bfloat16},
    "norms": {"train_norms": "blocks"},
    "masked": {"dls": "mask_gradients"},
}
Snapshot = list[dict[str, torch.Tensor]]


def new(case: str) -> Training:
    fields = dict(CASES[case])
    changes = {"dtype": fields.pop("dtype", torch.float32)}
    return Training(RoSA("rosa", rank=4, interval=2, warmup=1, **fields), total=STEPS, **changes)


def run_torch(case: str) -> dict[str, Any]:
    training, states = new(case), []
    for step in range(1, STEPS + 1):
        training.run(until=step)
        states.append(training.snapshot())
    return {"choices": training.method.selection.news(), "states": states}


def run_zero(case: str) -> dict[str, Any]:
    training, states = new(case), []
    world, rank = distributed.world_size(), distributed.rank()
    batching = Batching(micro_batch=2 // world, accumulation=2, processes=world)
    groups = training.method.parameter_groups(training.model)
    zero = engine.build(training.model, groups, Train(lr=LR, clip_grad=None), batching, "fp32")
    training.model.train()
    for step in range(1, STEPS + 1):
        view = ZeroStep(zero, step, STEPS)
        for micro, ids in enumerate(batch(step).chunk(2 * world)[rank::world]):
            zero.backward(loss_of(training.model, ids) * world, scale_wrt_gas=False)
            if micro == 1:
                training.method.before_step(training.model, view)
            zero.step()
        view.restore()
        training.method.after_step(training.model, view)
        states.append(snapshot(training, view))
    engine.close(zero)
    return {"choices": training.method.selection.news(), "states": states}


def snapshot(training: Training, view: ZeroStep) -> Snapshot:
    layers = []
    for layer in training.method.selection.layers:
        values = {}
        for i, parameter in enumerate(layer.trained):
            values[f"{i}"] = view.weight(parameter)
            for key in ("exp_avg", "exp_avg_sq"):
                values[f"{i}.{key}"] = whole(view, parameter, key)
        layers.append(values)
    return layers


def run_all(directory: Path) -> None:
    """Write this process's results, by case."""
    distributed.start("cpu")
    results = {case: run_zero(case) for case in CASES}
    torch.save(results, directory / f"{distributed.world_size()}-{distributed.rank()}.pt")
