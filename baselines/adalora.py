"""AdaLoRA, from PEFT, with the allocation of ranks done here: PEFT's own fails under ZeRO-1.

At PEFT's point of call ZeRO has dropped the gradients, and a mask written into the forward's weights is
undone by the FP32 master at the next step.  Here importance is updated after backward, and the mask is
written after the step into the master as well.  Ties are broken by position, so every budget is met
exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import AdaLoraConfig, PeftConfig
from torch import nn

from dypam.config import ConfigError
from dypam.method import RunContext, StepView
from dypam.peft_method import ADAPTER, PeftMethod

E = ".lora_E."


class AdaLoRA(PeftMethod):
    """SVD-shaped updates whose ranks compete for a shrinking budget (Zhang et al., 2023).

    The schedule (`tinit`, `tfinal`, `deltaT`) is PEFT's, by default 0, 0, 1: the budget falls cubically
    over the whole run and is the target's at its last step.  `total_step` is the run's number of optimizer
    steps.  The adapter is saved at its initial rank with zeros for what is pruned, so a reloaded model is
    bitwise the live one; the best one by validation, if from before that step, has more than the target's.
    """

    config_class = AdaLoraConfig

    def __init__(self, name: str, label: str | None = None, **fields: Any) -> None:
        super().__init__(name, label, **fields)
        self._importance: dict[str, torch.Tensor] = {}
        self._uncertainty: dict[str, torch.Tensor] = {}
        self._kept: dict[str, torch.Tensor] = {}
        self._steps = 0

    def config(self, model: nn.Module, run: RunContext) -> PeftConfig:
        """Return PEFT's configuration with the run's number of steps; `ConfigError` if they are too few."""
        self.fields["total_step"] = run.total_steps
        config = super().config(model, run)
        last = run.total_steps - config.tfinal
        if last < 2:
            raise ConfigError(
                f"method {self.name}: its ranks are chosen for the last time after step {last} of "
                f"{run.total_steps}, with nothing learned before; raise train.max_steps or train.epochs."
            )
        return config

    def prepare(self, model: nn.Module) -> None:
        """Freeze PEFT's record of each rank, which some releases leave trainable."""
        for name, parameter in model.named_parameters():
            if ".ranknum." in name:
                parameter.requires_grad_(False)

    def penalty(self, model: nn.Module) -> torch.Tensor | None:
        """Return PEFT's orthogonal regularisation: its weight times the mean over A, B of ‖PPᵀ − I‖_F."""
        weight = _config(model).orth_reg_weight
        factors = [(name, p) for name, p in _adapters(model) if E not in name]
        if not weight or not factors:
            return None
        with torch.autocast(factors[0][1].device.type, enabled=False):
            grams = [p @ p.T if ".lora_A." in name else p.T @ p for name, p in factors]
            norms = [torch.linalg.matrix_norm(gram - torch.eye(len(gram)).to(gram)) for gram in grams]
            return weight * torch.stack(norms).mean()

    @torch.no_grad()
    def before_step(self, model: nn.Module, step: StepView) -> None:
        """Update the smoothed importance |w ∂L/∂w| of every weight and its uncertainty (Eqs. 9, 10)."""
        config = _config(model)
        if step.step >= config.total_step - config.tfinal:
            return
        for name, parameter in _adapters(model):
            grad = step.grad(parameter)
            weight = step.weight(parameter)
            now = torch.zeros_like(weight) if grad is None else (weight * grad).abs()
            old, old_unsure = (memory.get(name, torch.zeros_like(now)) for memory in self._memories())
            mean = config.beta1 * old.to(now.device) + (1 - config.beta1) * now
            unsure = config.beta2 * old_unsure.to(now.device) + (1 - config.beta2) * (now - mean).abs()
            self._importance[name], self._uncertainty[name] = mean, unsure

    @torch.no_grad()
    def after_step(self, model: nn.Module, step: StepView) -> None:
        """Choose which singular values live, where the schedule says so, and zero the others."""
        config = _config(model)
        values = {name: parameter for name, parameter in _adapters(model) if E in name}
        final = config.total_step - config.tfinal
        due = config.tinit < step.step <= final and (step.step % config.deltaT == 0 or step.step == final)
        if due:
            total = sum(p.numel() for p in values.values())
            self._choose(list(values), budget(config, step.step, total, len(values)))
        if due or step.step > final:
            for name, parameter in values.items():
                kept = self._kept[name].to(parameter.device)
                step.set_weight(parameter, torch.where(kept, step.weight(parameter), 0.0))
        self._steps = step.step

    def metrics(self, model: nn.Module) -> dict[str, Any]:
        """Return the number of singular values that are not zero, and how many modules have none left."""
        ranks = [int((p != 0).sum()) for name, p in model.named_parameters() if E in name]
        return {"rank_total": sum(ranks), "rank_zero_modules": ranks.count(0)}

    def state_dict(self) -> dict[str, Any]:
        """Return importance, uncertainty, the last choice and the number of steps seen."""
        return {
            "exp_avg_ipt": self._importance,
            "exp_avg_unc": self._uncertainty,
            "rank_pattern": self._kept,
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._importance, self._uncertainty = dict(state["exp_avg_ipt"]), dict(state["exp_avg_unc"])
        self._kept, self._steps = dict(state["rank_pattern"]), state["steps"]

    def _memories(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        return self._importance, self._uncertainty

    def _choose(self, names: list[str], keep: int) -> None:
        """Keep the `keep` triplets whose E, row of A (mean) and column of B (mean) score highest together."""
        scores = []
        for name in names:
            a, b = name.replace(E, ".lora_A."), name.replace(E, ".lora_B.")
            scores.append(self._score(name).flatten() + self._score(a).mean(1) + self._score(b).mean(0))
        order = torch.argsort(torch.cat(scores), descending=True, stable=True)
        kept = torch.zeros(len(order), dtype=torch.bool, device=order.device)
        kept[order[:keep]] = True
        sizes = [len(score) for score in scores]
        self._kept = {name: part[:, None] for name, part in zip(names, kept.split(sizes), strict=True)}

    def _score(self, name: str) -> torch.Tensor:
        return self._importance[name] * self._uncertainty[name]


def budget(config: AdaLoraConfig, step: int, start: int, modules: int) -> int:
    """Return how many singular values live after `step`: from `start` cubically to the target (Eq. 12)."""
    target = config.target_r * modules
    if step <= config.tinit:
        return start
    final = config.total_step - config.tfinal
    if step >= final:
        return target
    left = 1 - (step - config.tinit) / (final - config.tinit)
    return int((start - target) * left**3 + target)


def _adapters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if ".lora_" in name and p.requires_grad]


def _config(model: nn.Module) -> Any:
    return model.peft_config[ADAPTER]
