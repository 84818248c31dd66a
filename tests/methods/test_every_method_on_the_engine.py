"""What every method keeps under ZeRO-1 over a BF16 backbone: killed and resumed, on two processes.

Every process is forked from one server that has the imports behind it; four short runs a case.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dypam.peft_method import WEIGHTS
from tests.methods.cases import cases, settings
from tests.train import cases as small
from tests.train import processes, runs

STEPS, LR = 4, 1e-2
TOLERANCE = 2e-3
"""RMS distance between the weights of one process and of two, as a part of what lr could move them."""

QUICK = ("lora-llama", "adalora-gemma3_text", "dypam-qwen3")


def distinct() -> list[Any]:
    """Return all cases but those of YAMLs that at tiny size are others' twins (LoRA of another rank)."""
    seen, kept = [], []
    for case in cases(every=True):
        name, family = case.values
        work = {**settings(name), "name": "", "label": "", "family": family}
        if work not in seen:
            seen.append(work)
            late = [] if case.id in QUICK else pytest.mark.slow
            kept.append(pytest.param(name, family, id=case.id, marks=late))
    return kept


@pytest.fixture(scope="module")
def make(tiny_backbone_dir, tmp_path_factory):
    root = tmp_path_factory.mktemp("engine")

    def config(name: str, family: str, part: str, **train: Any):
        given = {
            "precision": "bf16",
            "micro_batch": 1,
            "max_steps": STEPS,
            "eval_every": STEPS,
            "checkpoint_every": 2,
            "validation_size": 2,
            "max_length": 32,
            "lr": LR,
            **train,
        }
        run_dir = root / f"{name.replace('/', '-')}-{family}" / part
        return small.config(run_dir, tiny_backbone_dir(family), settings(name), family=family, **given)

    return config


def weights(config) -> dict[str, torch.Tensor]:
    return load_file(Path(config.run_dir) / "adapter" / WEIGHTS)


def killed_and_resumed(config, log: Path, proof: Path) -> None:
    """Kill a run in the second accumulation step after its checkpoint at step 2, and let it go on."""
    event = {"DYPAM_KILL_AT": "train.micro_step:10", "DYPAM_KILL_PROOF": str(proof)}
    processes.run(runs.complete, config, log=log, expect=-9, **event)
    assert re.match(r"train\.micro_step \d+\n", proof.read_text())
    processes.run(runs.complete, config, log=log)


@pytest.mark.parametrize(("name", "family"), distinct())
def test_killed_and_resumed_bitwise_and_two_processes_match_one(name, family, make, tmp_path):
    whole, killed, two = (make(name, family, part) for part in ("whole", "killed", "two"))
    with ThreadPoolExecutor(2) as both:  # a core each
        undisturbed = both.submit(processes.run, runs.complete, whole, log=tmp_path / "whole.log")
        both.submit(killed_and_resumed, killed, tmp_path / "killed.log", tmp_path / "proof").result()
        undisturbed.result()
    assert runs.outcome(killed) == runs.outcome(whole)

    processes.run(runs.complete, two, log=tmp_path / "two.log", world=2)
    assert runs.record(whole)["batching"]["accumulation"] == 2 * runs.record(two)["batching"]["accumulation"]
    for one, other in zip(runs.record(whole)["losses"], runs.record(two)["losses"], strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    distance = {key: (w - weights(two)[key]).float() for key, w in weights(whole).items()}
    rms = torch.cat([d.flatten() for d in distance.values()]).square().mean().sqrt().item()
    assert rms <= TOLERANCE * LR * STEPS
