"""A whole small training run in a process of its own; torch and DeepSpeed come with the fork."""

from pathlib import Path
from typing import Any


def job(
    method: dict[str, Any], backbone: str, family: str, run_dir: str, changes: dict[str, Any] | None = None
) -> None:
    """Train a run of 6 steps of 4 examples, one a micro-batch, BF16 backbone; one process of a group."""
    from dypam.distributed import rank
    from dypam.lease import Lease
    from dypam.train import train
    from tests.train.cases import config

    given = {"precision": "bf16", "micro_batch": 1, "max_length": 32, **(changes or {})}
    run = config(Path(run_dir), Path(backbone), method, family=family, **given)
    if rank() > 0:
        return train(run, None)
    with Lease.acquire(run_dir, 60) as lease:
        train(run, lease)
