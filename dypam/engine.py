"""DeepSpeed's ZeRO-1 round one module: building it, and what a checkpoint needs of it.

DeepSpeed's own checkpoints are not used: they load flipped bits and other weights without a word, and write
the frozen backbone.  A shard here is this process's slice of the FP32 weights and of Adam's moments, from
which the forward's copies follow.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from dypam.config import Train
from dypam.schedule import Batching


def build(
    module: nn.Module,
    groups: list[dict[str, Any]],
    train: Train,
    batching: Batching,
    precision: str,
    device: str = "cpu",
) -> Any:
    """Return a DeepSpeed engine that trains the parameters in `groups` by AdamW.

    Each group's own `lr` and `weight_decay` hold where given; the learning rate of a step is set by `set_lr`.
    """
    import deepspeed

    trained = sum(parameter.numel() for group in groups for parameter in group["params"])
    optimizer = torch.optim.AdamW(
        groups, lr=train.lr, betas=tuple(train.betas), eps=train.eps, weight_decay=train.weight_decay
    )
    config = {
        "train_batch_size": batching.global_batch,
        "train_micro_batch_size_per_gpu": batching.micro_batch,
        "gradient_accumulation_steps": batching.accumulation,
        # The default is 1 GB of buffer; and 0.18 has another default for clipping than 0.19.
        "zero_optimization": {"stage": 1, "reduce_bucket_size": trained},
        "gradient_clipping": train.clip_grad or 0.0,
        "steps_per_print": 10**9,
    }
    if precision == "bf16_engine":
        config["bf16"] = {"enabled": True}
    with contextlib.redirect_stdout(io.StringIO()), _local_rank(device):
        engine = deepspeed.initialize(model=module, optimizer=optimizer, config=config)[0]
    for group in engine.optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return engine


@contextlib.contextmanager
def _local_rank(device: str) -> Iterator[None]:
    """Tell DeepSpeed its GPU by the LOCAL_RANK that it asks for, and leave no launcher's trace."""
    given = os.environ.get("LOCAL_RANK")
    os.environ["LOCAL_RANK"] = device.partition(":")[2] or given or "0"
    try:
        yield
    finally:
        if given is None:
            del os.environ["LOCAL_RANK"]
        else:
            os.environ["LOCAL_RANK"] = given


def close(engine: Any) -> None:
    """Take DeepSpeed's hooks off the model."""
    with contextlib.redirect_stdout(io.StringIO()):
        engine.destroy()
    engine.optimizer = None  # or the engine's end destroys it again, perhaps after the process group's


def set_lr(engine: Any, factor: float) -> None:
    """Set every group's learning rate to a fraction of its peak."""
    for group in engine.optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def gradients_are_finite(engine: Any) -> bool:
    """Tell whether this process's slice of the accumulated gradient is free of NaN and infinities.

    DeepSpeed 0.18 steps on NaN in FP32 and BF16, 0.19 skips the step; neither says so.
    """
    gradients = [g for part in engine.optimizer.averaged_gradients.values() for g in part or []]
    norms = torch.stack(torch._foreach_norm([g.detach().float() for g in gradients]))
    return bool(torch.isfinite(norms).all())


def shard(engine: Any) -> dict[str, Any]:
    """Return this process's slice of weights and moments, on the CPU (at an accumulation boundary only)."""
    zero = engine.optimizer
    return {
        "weights": [flat.detach().cpu().clone() for flat in zero.single_partition_of_fp32_groups],
        "moments": [
            {key: value.detach().cpu().clone() for key, value in zero.optimizer.state[flat].items()}
            for flat in zero.single_partition_of_fp32_groups
        ],
    }


@torch.no_grad()
def load_shard(engine: Any, saved: dict[str, Any]) -> None:
    """Take back what `shard` gave, and give every process's forward the new weights."""
    zero = engine.optimizer
    for flat, weights, moments in zip(
        zero.single_partition_of_fp32_groups, saved["weights"], saved["moments"], strict=True
    ):
        flat.copy_(weights)
        # Adam keeps its step count on the CPU.
        zero.optimizer.state[flat] = {
            key: value.to(flat.device if value.dim() else "cpu", copy=True) for key, value in moments.items()
        }
    zero.update_lp_params()


def trained_digest(model: nn.Module) -> str:
    """Return the SHA-256 of the trained weights, as the forward uses them, bit for bit."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        if parameter.requires_grad:
            digest.update(f"{name}\n".encode())
            digest.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
