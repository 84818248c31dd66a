"""Train small runs in this process, or in fresh ones, and look at what they left."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import torch

from dypam import distributed
from dypam.config import RunConfig
from dypam.lease import Lease
from dypam.train import train
from tests.train import processes


def complete(config: RunConfig) -> dict[str, Any]:
    """Train to the end and return the record; process 0 takes the lease."""
    if distributed.rank():
        train(config, None)
    else:
        with Lease.acquire(config.run_dir) as lease:
            train(config, lease)
    return record(config)


def killed(config: RunConfig, event: str, tmp_path: Path, world: int = 1) -> None:
    """Train until `event`, and see that SIGKILL came there and nowhere else."""
    proof = tmp_path / "proof"
    log = tmp_path / "killed.log"
    processes.run(
        complete,
        config,
        log=log,
        world=world,
        expect=-signal.SIGKILL,
        DYPAM_KILL_AT=event,
        DYPAM_KILL_PROOF=str(proof),
    )
    assert re.match(rf"{event.split(':')[0]} \d+\n", proof.read_text())


def record(config: RunConfig) -> dict[str, Any]:
    return json.loads((Path(config.run_dir) / "record.json").read_text())


def outcome(config: RunConfig) -> dict[str, Any]:
    """What two runs of the same work must share: weights, best adapter, every loss."""
    about = json.loads((Path(config.run_dir) / "adapter" / "backbone.json").read_text())
    content = record(config)
    keys = ("final_weights", "losses", "best", "tokens")
    return {**{key: content[key] for key in keys}, "adapter": about["adapter_digest"]}


def logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits
