"""RoSA on tiny models, and its training by plain torch."""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel, get_peft_model
from torch import nn
from torch.nn.functional import cross_entropy

from baselines.rosa import RoSAConfig
from baselines.rosa.method import Selective
from dypam.method import RunContext
from dypam.step import TorchStep
from tests.tiny import V5, tiny, tokens

LR = 1e-2
SMALL: dict[str, Any] = {"rank": 4, "init_seed": 3}


def adapted(family: str = "llama", *, dtype: torch.dtype = torch.float32, **fields: Any) -> PeftModel:
    """Return a tiny model with RoAE at its start."""
    return get_peft_model(tiny(family, dtype=dtype), RoSAConfig(task_type="CAUSAL_LM", **{**SMALL, **fields}))


def batch(step: int) -> torch.Tensor:
    """Return the four sequences of an optimizer step."""
    return tokens(4, 10, seed=step)


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return these sequences' share of the step's mean loss over tokens."""
    logits = model(input_ids=ids, use_cache=False).logits.float()
    return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum") / (4 * 9)


class Training:
    """A method trained by AdamW in one process, a batch of its own a step."""

    def __init__(
        self, method: Selective, family: str = "llama", total: int = 12, **tiny_changes: Any
    ) -> None:
        self.method, self.total, self.step = method, total, 0
        backbone = tiny(family, num_hidden_layers=4, **_layers(family), **tiny_changes)
        self.model: nn.Module = method.attach(backbone, RunContext(seed=11, total_steps=total))
        self.optimizer = torch.optim.AdamW(method.parameter_groups(self.model), lr=LR, weight_decay=0.0)

    def run(self, until: int) -> None:
        while self.step < until:
            self.step += 1
            self.model.train()
            self.optimizer.zero_grad()
            for ids in batch(self.step).chunk(2):
                loss_of(self.model, ids).backward()
            view = TorchStep(self.optimizer, self.step, self.total)
            self.method.before_step(self.model, view)
            self.optimizer.step()
            view.restore()
            self.method.after_step(self.model, view)

    def snapshot(self) -> list[dict[str, torch.Tensor]]:
        """Return, for each layer, its trained weights and their moments."""
        layers = []
        for layer in self.method.selection.layers:
            values = {}
            for i, parameter in enumerate(layer.trained):
                values[f"{i}"] = parameter.detach().clone()
                for key, value in self.optimizer.state[parameter].items():
                    if value.dim() > 0:
                        values[f"{i}.{key}"] = value.clone()
            layers.append(values)
        return layers


def _layers(family: str) -> dict[str, Any]:
    if family == "gemma3_text" and V5:
        return {"layer_types": ["sliding_attention", "full_attention"] * 2}
    return {}
