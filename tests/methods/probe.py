"""AdaLoRA that looks, after every step, at what it left in the forward's weights and in the optimizer's."""

from typing import Any

import torch
from torch import nn

from baselines.adalora import AdaLoRA, budget
from dypam.method import StepView


class Probe(AdaLoRA):
    """Fails the run unless the budget is met exactly and pruned singular values are zero in both places."""

    looked = 0

    def after_step(self, model: nn.Module, step: StepView) -> None:
        super().after_step(model, step)
        values = {name: p for name, p in model.named_parameters() if ".lora_E." in name}
        master = {name: whole_master(p) for name, p in values.items()}
        config = model.peft_config["default"]
        want = budget(config, step.step, config.init_r * len(values), len(values))
        for name, kept in self._kept.items():
            assert not values[name][~kept].any(), name
            assert not master[name][~kept].any(), name
            assert torch.equal(master[name].to(values[name].dtype), values[name].detach())
        assert sum(int(kept.sum()) for kept in self._kept.values()) == want
        self.looked += 1

    def metrics(self, model: nn.Module) -> dict[str, Any]:
        return {**super().metrics(model), "looked": self.looked}


def whole_master(parameter: nn.Parameter) -> torch.Tensor:
    """Read the optimizer's FP32 copy itself, which a view of the step may take a short way round."""
    from deepspeed.utils import safe_get_full_fp32_param

    return safe_get_full_fp32_param(parameter)
