"""Small whole runs on tiny models: their data, and their configurations."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from baselines.lora import LoRA
from dypam.config import Backbone, Decode, Prompt, RunConfig, Runtime, Suite, Train
from dypam.method import StepView
from tests.tiny import tiny_config

LORA = {"_target_": "baselines.lora.LoRA", "name": "lora", "r": 4}
DYPAM = {"_target_": "dypam.tuner.method.DyPAM", "name": "dypam", "rank": 4, "d_e": 4}
BASE = {"_target_": "baselines.base.Base", "name": "base"}


class Poisoned(LoRA):
    """LoRA with a penalty that is always 0, and from the third step on has NaN as its gradient."""

    steps = 0

    def penalty(self, model: nn.Module) -> torch.Tensor:
        self.steps += 1
        weight = next(p for p in model.parameters() if p.requires_grad)
        zero = (weight * 0).sum()
        return zero.sqrt() * 0 if self.steps >= 3 else zero


class RuinedAtTheEnd(LoRA):
    """LoRA whose last step makes one weight matrix huge."""

    def after_step(self, model: nn.Module, step: StepView) -> None:
        if step.step == step.total_steps:
            weight = next(p for p in model.parameters() if p.requires_grad)
            step.set_weight(weight, step.weight(weight) + 100)


class Noisy(LoRA):
    """LoRA that adds random numbers of every generator to a weight, more and more of them."""

    total = 0.0

    def after_step(self, model: nn.Module, step: StepView) -> None:
        weight = next(p for p in model.parameters() if p.requires_grad)
        numbers = (random.random(), float(np.random.rand()), float(torch.rand(())))
        self.total += sum(numbers)
        step.set_weight(weight, step.weight(weight) + 1e-3 * self.total)

    def metrics(self, model: nn.Module) -> dict[str, Any]:
        return {"total": self.total}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


def examples(*, files: Any, size: int = 24) -> Any:
    """Sums with answers of different lengths."""
    from data.examples import to_dataset

    rows = [{"id": f"sum/{i}", "prompt": f"{i} + {i * i}: ", "answer": str(i + i * i)} for i in range(size)]
    return to_dataset({**row, "response": row["answer"] * (1 + int(row["answer"]) % 3)} for row in rows)


def config(
    run_dir: Path,
    backbone: Path,
    method: dict[str, Any],
    *,
    family: str = "llama",
    size: int = 24,
    seed: int = 2333,
    **train: Any,
) -> RunConfig:
    """A run of 6 steps of 4 examples (2 micro-batches of 2), validated every 3, checkpointed every 2."""
    defaults = {
        "max_steps": 6,
        "validation_size": 4,
        "eval_every": 3,
        "checkpoint_every": 2,
        "max_length": 64,
        "lr": 1e-2,
    }
    architecture = {key: value for key, value in tiny_config(family).to_dict().items() if value is not None}
    return RunConfig(
        backbone=Backbone(name=f"tiny-{family}", label="Tiny", path=str(backbone), architecture=architecture),
        method=method,
        suite=Suite("sums", "Sums", {"_target_": "tests.train.cases.examples", "size": size}, {}),
        prompt=Prompt(),
        train=Train(**{**defaults, **train}),
        decode=Decode(),
        runtime=Runtime(
            device="cpu", wandb="off", progress=False, offline=True, cache_dir=str(run_dir / "cache")
        ),
        seed=seed,
        results=str(run_dir.parent),
        run_dir=str(run_dir),
    )
