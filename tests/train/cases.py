"""Small whole runs on tiny models: their data, and their configurations."""

from pathlib import Path
from typing import Any

from dypam.config import Backbone, Decode, Prompt, RunConfig, Runtime, Suite, Train
from tests.tiny import tiny_config

LORA = {"_target_": "baselines.lora.LoRA", "name": "lora", "r": 4}
DYPAM = {"_target_": "dypam.tuner.method.DyPAM", "name": "dypam", "rank": 4, "d_e": 4}
BASE = {"_target_": "baselines.base.Base", "name": "base"}


def examples(*, files: Any, size: int = 24) -> Any:
    """Sums with answers of different lengths."""
    from data.examples import to_dataset

    rows = [{"id": f"sum/{i}", "prompt": f"{i} + {i * i}: ", "answer": str(i + i * i)} for i in range(size)]
    return to_dataset({**row, "response": row["answer"] * (1 + int(row["answer"]) % 3)} for row in rows)


def config(
    run_dir: Path,
    backbone: Path,
    method: dict[str, Any],
    *,
    family: str = "llama",
    size: int = 24,
    seed: int = 2333,
    **train: Any,
) -> RunConfig:
    """A run of 6 steps of 4 examples (2 micro-batches of 2), validated every 3, checkpointed every 2."""
    defaults = {
        "max_steps": 6,
        "validation_size": 4,
        "eval_every": 3,
        "checkpoint_every": 2,
        "max_length": 64,
        "lr": 1e-2,
    }
    architecture = {key: value for key, value in tiny_config(family).to_dict().items() if value is not None}
    return RunConfig(
        backbone=Backbone(name=f"tiny-{family}", label="Tiny", path=str(backbone), architecture=architecture),
        method=method,
        suite=Suite("sums", "Sums", {"_target_": "tests.train.cases.examples", "size": size}, {}),
        prompt=Prompt(),
        train=Train(**{**defaults, **train}),
        decode=Decode(),
        runtime=Runtime(
            device="cpu", wandb="off", progress=False, offline=True, cache_dir=str(run_dir / "cache")
        ),
        seed=seed,
        results=str(run_dir.parent),
        run_dir=str(run_dir),
    )
