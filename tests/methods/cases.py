"""Every method at a size that fits the tiny models, and one way to train it without an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import nn
from torch.nn.functional import cross_entropy

from dypam.method import Method, RunContext
from dypam.step import TorchStep
from dypam.tuner.digest import base_parameters
from scripts import compose, override
from tests.tiny import V5, tiny, tokens

FAMILIES = ("llama", "qwen3", "gemma3_text")
TABLES = ("lora", "adalora", "oft", "bone", "ia3", "ln_tuning", "fourierft", "shira", "rosa", "dypam")
METHODS = [name for name in override.choices("method") if name != "base" and (V5 or name in TABLES)]
"""Every method YAML; on the paper's stack those of Tables 1-3."""

FIRST = {name for name in METHODS if "/" not in name or name.endswith(("/dora", "/boft", "/vera", "/c3a"))}
"""One YAML of each class, at least: what the fast tests run; the others are variants of these."""

NOT_IDENTITY = ("FourierFT", "C3A")
"""Classes whose published start is random, so that the adapted model does not start as the backbone."""

SMALL: dict[str, dict[str, Any]] = {
    "LoRA": {"r": 4},
    "AdaLoRA": {"init_r": 6, "target_r": 3},
    "OFT": {"oft_block_size": 8},
    "Bone": {"r": 8},
    "FourierFT": {"n_frequency": 100},
    "SHiRA": {"r": 4},
    "C3A": {"block_size": 8},
    "VeRA": {"r": 8},
    "DyPAM": {"d_e": 8, "rank": 8},
    "RoSA": {"rank": 8},
}


def settings(name: str, **changes: Any) -> dict[str, Any]:
    """Return a method's YAML at tiny size, as the plain mapping that a run's configuration holds."""
    given = _given(name)
    kind = given["_target_"].rpartition(".")[2]
    return {**given, **SMALL.get(kind, {}), **changes}


@cache
def _given(name: str) -> dict[str, Any]:
    return compose.run_config([f"method={name}"]).method


def make(name: str, **changes: Any) -> Method:
    return instantiate(settings(name, **changes), _convert_="all")


def variants_late() -> list[Any]:
    """Return all methods; those not in `FIRST` are marked slow."""
    return [pytest.param(name, marks=[] if name in FIRST else pytest.mark.slow) for name in METHODS]


def cases(*, every: bool = False) -> list[Any]:
    """Return all (method, family) pairs; unless `every`, all are slow but one family of each in `FIRST`."""
    pairs = []
    for number, name in enumerate(METHODS):
        for place, family in enumerate(FAMILIES):
            late = not every and (name not in FIRST or place != number % len(FAMILIES))
            pairs.append(pytest.param(name, family, marks=[pytest.mark.slow] * late, id=f"{name}-{family}"))
    return pairs


@dataclass
class Trained:
    """What a training leaves behind."""

    method: Method
    model: nn.Module
    before: dict[str, torch.Tensor]
    start: dict[str, torch.Tensor]
    losses: list[float] = field(default_factory=list)
    reached: dict[str, torch.Tensor] = field(default_factory=dict)

    def note_gradients(self) -> None:
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                hit = torch.zeros_like(p, dtype=torch.bool) if p.grad is None else p.grad != 0
                self.reached[name] = self.reached.get(name, hit) | hit

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}


@cache
def trained(
    name: str, family: str, dtype: torch.dtype = torch.float32, steps: int = 12, lr: float = 2e-2
) -> Trained:
    """Train a method once on one fixed batch; the tests share the result and must not change it."""
    method = make(name)
    backbone = tiny(family, dtype=dtype)
    before = {key: p.detach().clone() for key, p in base_parameters(backbone)}
    model = method.attach(backbone, RunContext(seed=7, total_steps=steps))
    start = {key: p.detach().clone() for key, p in model.named_parameters() if p.requires_grad}
    result = Trained(method, model, before, start)
    optimizer = torch.optim.AdamW(method.parameter_groups(model), lr=lr, weight_decay=0.0)
    for step in range(1, steps + 1):
        result.losses.append(one_step(method, model, optimizer, step, steps))
        for key, p in result.model.named_parameters():
            if p.requires_grad and step <= 3 and p.grad is not None:
                result.reached[key] = result.reached.get(key, torch.zeros_like(p, dtype=torch.bool)) | (
                    p.grad != 0
                )
    model.eval()
    return result


def one_step(
    method: Method, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, steps: int
) -> float:
    """Take one optimizer step through the method's hooks and return the loss before it, penalty aside."""
    model.train()
    optimizer.zero_grad()
    loss = loss_of(model, tokens(4, 16))
    penalty = method.penalty(model)
    (loss if penalty is None else loss + penalty).backward()
    view = TorchStep(optimizer, step, steps)
    method.before_step(model, view)
    optimizer.step()
    view.restore()
    method.after_step(model, view)
    return loss.item()


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids, use_cache=False).logits.float()
    return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def logits_of(model: nn.Module, ids: torch.Tensor | None = None) -> torch.Tensor:
    return model(input_ids=tokens(2, 12) if ids is None else ids, use_cache=False).logits
