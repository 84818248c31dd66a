"""DLS, the dynamic layer selection of RoSA: which layers train, chosen by the gradients of their norms."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dypam.attention import rotary_attentions
from dypam.config import ConfigError
from dypam.method import StepView
from dypam.tuner.layers import NormLayer

MODES = ("freeze", "mask_gradients", "off")


@dataclass(frozen=True)
class Layer:
    """One decoder layer: what it trains, and its pre-attention and pre-FFN norms' weights."""

    trained: list[nn.Parameter]
    norms: list[nn.Parameter]


class LayerSelection:
    """Every `interval` optimizer steps after `warmup`, choose the layers that train; before that, all do.

    A choice is made after backward and holds from that same step: with probability `exploit` the `k_ratio`
    · L layers with the largest gradients of their two norms, else as many at random.  `freeze` keeps
    weights and Adam moments of the others bit for bit; `mask_gradients` zeroes their gradients, which under
    Adam slows a layer rather than stops it (the chapter, literally); `off` never chooses.

    Norms that are not trained need a gradient in the steps that choose, and only then.

    Raises:
        ConfigError: an option out of range.
    """

    def __init__(self, mode: str, k_ratio: float, exploit: float, interval: int, warmup: int) -> None:
        for name, value, holds, fix in (
            ("dls", mode, mode in MODES, f"must be one of {', '.join(MODES)}"),
            ("k_ratio", k_ratio, 0 < k_ratio <= 1, "must be above 0 and at most 1"),
            ("exploit", exploit, 0 <= exploit <= 1, "must be a probability"),
            ("interval", interval, interval > 0, "must be a positive number of steps"),
            ("warmup", warmup, warmup >= 0, "must not be negative"),
        ):
            if not holds:
                raise ConfigError(f"method.{name}={value}: {fix}.")
        self.mode, self.k_ratio, self.exploit = mode, k_ratio, exploit
        self.interval, self.warmup = interval, warmup
        self.layers: list[Layer] = []
        self.selected: list[int] | None = None
        self._frozen_norms: list[nn.Parameter] = []
        self._news: list[dict[str, Any]] = []
        self._step, self._total = 0, 0

    def bind(self, model: nn.Module, seed: int, total_steps: int) -> None:
        """Take the layers of an adapted model, and the seed of the random choices."""
        names = [name.partition(".self_attn")[0] for name in rotary_attentions(model)]
        self.layers = [_layer(model.get_submodule(name)) for name in names]
        self._frozen_norms = [p for layer in self.layers for p in layer.norms if not p.requires_grad]
        self._random = random.Random(seed)
        self._step, self._total = 0, total_steps
        self._prepare_next()

    def scored_only(self) -> set[int]:
        """Return the ids of the norm weights that may want a gradient without being trained."""
        return {id(p) for p in self._frozen_norms}

    def before_step(self, step: StepView) -> None:
        """Choose, where this step does, and keep the other layers still."""
        self._step = step.step
        if self._is_due(step.step):
            self._choose(step)
        if self.selected is None:
            return
        still = [p for i, layer in enumerate(self.layers) if i not in self.selected for p in layer.trained]
        if self.mode == "freeze":
            step.hold(still)
        for parameter in still:  # it has no share in the norm that gradients are clipped to
            step.set_grad(parameter, torch.zeros_like(parameter))

    def after_step(self) -> None:
        """Let the norms take part in the next step's backward, where that step chooses."""
        self._prepare_next()

    def news(self) -> list[dict[str, Any]]:
        """Return the choices made since the last call: step, scores, selected layers, whether by score."""
        news, self._news = self._news, []
        return news

    def state_dict(self) -> dict[str, Any]:
        """Return the choice, the random generator and the step."""
        return {
            "selected": self.selected,
            "random": self._random.getstate(),
            "news": self._news,
            "step": self._step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken (after `bind`)."""
        self.selected, self._news, self._step = state["selected"], list(state["news"]), state["step"]
        version, numbers, gauss = state["random"]
        self._random.setstate((version, tuple(numbers), gauss))
        self._prepare_next()

    def _is_due(self, step: int) -> bool:
        return self.mode != "off" and step > self.warmup and step % self.interval == 0

    def _prepare_next(self) -> None:
        due = self._step < self._total and self._is_due(self._step + 1)
        for parameter in self._frozen_norms:
            parameter.requires_grad_(due)
            parameter.grad = None

    def _choose(self, step: StepView) -> None:
        scores = [self._score(layer, step) for layer in self.layers]
        count = max(1, round(self.k_ratio * len(scores)))
        by_score = self._random.random() < self.exploit
        if by_score:
            chosen = sorted(range(len(scores)), key=lambda i: -scores[i])[:count]
        else:
            chosen = self._random.sample(range(len(scores)), count)
        self.selected = sorted(chosen)
        self._news.append(
            {"step": step.step, "by_score": by_score, "selected": self.selected, "scores": scores}
        )

    @staticmethod
    def _score(layer: Layer, step: StepView) -> float:
        """Return sqrt(‖∇ pre-attention norm‖² + ‖∇ pre-FFN norm‖²) (the chapter's score of a layer)."""
        gradients = [step.grad(norm) for norm in layer.norms]
        return sum(g.double().square().sum().item() for g in gradients if g is not None) ** 0.5


def _layer(layer: nn.Module) -> Layer:
    before_ffn = getattr(layer, "pre_feedforward_layernorm", layer.post_attention_layernorm)
    norms = [_weight(norm) for norm in (layer.input_layernorm, before_ffn)]
    return Layer([p for p in layer.parameters() if p.requires_grad], norms)


def _weight(norm: nn.Module) -> nn.Parameter:
    """Return the weight that the forward uses: that of a trained copy, where there is one."""
    active = norm.active() if isinstance(norm, NormLayer) else []
    return active[-1].weight if active else norm.weight
