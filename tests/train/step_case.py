"""The same few optimizer steps under plain torch and under ZeRO-1."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from dypam import distributed
from dypam.config import Train
from dypam.engine import build
from dypam.schedule import Batching
from dypam.step import TorchStep, ZeroStep

STEPS, ROWS = 4, 8
LR, DECAY = 0.05, 0.1


def toy() -> nn.Module:
    """A model whose parameters straddle the border between two ZeRO-1 partitions."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3))


def batches(step: int) -> torch.Tensor:
    return torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(step))


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups; one bias is in none, and is only looked at."""
    return [{"params": list(model[0].parameters())}, {"params": [model[2].weight, *model[3].parameters()]}]


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for group in groups(model) for p in group["params"]]


def hooks(model: nn.Module, view: Any, seen: list[torch.Tensor]) -> None:
    """What a method may do before a step: look at gradients, hold some weights, blank a gradient."""
    seen += [view.grad(p).clone() for p in model.parameters()]
    held = {1: [model[0].weight], 2: [], 3: [model[0].weight, model[3].bias], 4: [model[2].weight]}[view.step]
    view.hold(held)
    if view.step == 2:
        view.set_grad(model[3].weight, torch.zeros_like(model[3].weight))


def after(model: nn.Module, view: Any) -> None:
    """What a method may do after a step: rewrite a weight."""
    if view.step == 2:
        weight = view.weight(model[0].weight)
        weight[0] = 0
        view.set_weight(model[0].weight, weight)


def result(
    model: nn.Module, view: Any, seen: list[torch.Tensor], moments: list[torch.Tensor]
) -> dict[str, Any]:
    forward = [p.detach().clone() for p in model.parameters()]
    return {
        "forward": forward,
        "master": [view.weight(p) for p in model.parameters()],
        "seen": seen,
        "moments": moments,
    }


def whole(view: ZeroStep, parameter: nn.Parameter, key: str) -> torch.Tensor:
    """Put a moment together from every process's slice."""
    buffer = torch.zeros(parameter.numel())
    if key in (own := view.fragments(parameter)):
        buffer.narrow(0, parameter._hp_mapping.lp_fragment_address.start, own[key].numel()).copy_(own[key])
    torch.distributed.all_reduce(buffer)
    return buffer.view_as(parameter)


def run_torch(processes: int) -> dict[str, Any]:
    model, seen = toy(), []
    opt = torch.optim.AdamW(groups(model), lr=LR, weight_decay=DECAY)
    for step in range(1, STEPS + 1):
        view = TorchStep(opt, step, STEPS)
        for part in batches(step).chunk(2 * processes):
            (model(part).square().sum() / ROWS).backward()
        hooks(model, view, seen)
        opt.step()
        view.restore()
        model.zero_grad()
        after(model, view)
    moments = [opt.state[p][key].clone() for p in trained(model) for key in ("exp_avg", "exp_avg_sq")]
    return result(model, view, seen, moments)


def run_zero(dtype: str = "fp32") -> dict[str, Any]:
    distributed.start("cpu")
    model, seen = toy(), []
    world, rank = distributed.world_size(), distributed.rank()
    train = Train(lr=LR, weight_decay=DECAY, clip_grad=None)
    batching = Batching(ROWS // 2 // world, 2, world)
    engine = build(model, groups(model), train, batching, dtype)
    for step in range(1, STEPS + 1):
        view = ZeroStep(engine, step, STEPS)
        for micro, part in enumerate(batches(step).chunk(2 * world)[rank::world]):
            loss = engine(part.to(next(model.parameters()).dtype)).float().square().sum()
            engine.backward(loss * world / ROWS, scale_wrt_gas=False)
            if micro == 1:
                hooks(model, view, seen)
            engine.step()
        model[2].bias.grad = None
        view.restore()
        after(model, view)
    moments = [whole(view, p, key) for p in trained(model) for key in ("exp_avg", "exp_avg_sq")]
    return result(model, view, seen, moments)


def run_both(directory: Path) -> None:
    """Write this process's results, by dtype, into `directory`."""
    both = {dtype: run_zero(dtype) for dtype in ("fp32", "bf16_engine")}
    name = f"{distributed.world_size()}-{distributed.rank()}.pt"
    torch.save(both, directory / name)
