"""A small method as a user would write it: one trained bias at every query projection."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dypam.config import ConfigError
from dypam.method import Method, RunContext


class QueryBias(Method):
    """Adds a trained vector, zero at the start, to what every q_proj returns."""

    def attach(self, model: nn.Module, run: RunContext) -> nn.Module:
        model.requires_grad_(False)
        for name, module in model.named_modules():
            if name.endswith("q_proj"):
                module.query_bias = nn.Parameter(
                    torch.zeros(module.out_features, device=module.weight.device)
                )
                module.register_forward_hook(lambda m, args, out: (out + m.query_bias).to(out.dtype))
        return model

    def save(self, model: nn.Module, directory: Path) -> None:
        save_file({name: p.detach() for name, p in biases(model).items()}, directory / "biases.safetensors")

    def load(self, model: nn.Module, directory: Path) -> nn.Module:
        saved = load_file(directory / "biases.safetensors")
        mine = biases(self.attach(model, RunContext(seed=0, total_steps=1)))
        if {n: t.shape for n, t in saved.items()} != {n: p.shape for n, p in mine.items()}:
            raise ConfigError(f"{directory}: these biases are not this backbone's; load them on their own.")
        for name, parameter in mine.items():
            parameter.data.copy_(saved[name])
        return model


def biases(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if name.endswith("query_bias")}
