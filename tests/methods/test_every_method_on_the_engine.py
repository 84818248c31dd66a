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

from dypam.engine import trained_digest
from dypam.method import RunContext
from dypam.peft_method import WEIGHTS
from tests.methods.cases import cases, settings
from tests.methods.cases import make as make_method
from tests.tiny import tiny
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


def reloaded_digest(config, name: str, family: str) -> str:
    """Return the digest of the trained weights as the saved adapter has them, in the trainer's way."""
    method, run = make_method(name), RunContext(seed=config.seed, total_steps=STEPS)
    fresh = method.attach(tiny(family, dtype=torch.bfloat16), run)
    trained = {key for key, p in fresh.named_parameters() if p.requires_grad}
    backbone = tiny(family, dtype=torch.bfloat16)
    backbone.name_or_path = config.backbone.path  # as saved; PEFT remarks on another
    saved = make_method(name).load(backbone, Path(config.run_dir) / "adapter")
    for key, p in saved.named_parameters():
        p.requires_grad_(key in trained)
    return trained_digest(saved)


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
    assert reloaded_digest(whole, name, family) == runs.record(whole)["final_weights"]

    processes.run(runs.complete, two, log=tmp_path / "two.log", world=2)
    assert runs.record(whole)["batching"]["accumulation"] == 2 * runs.record(two)["batching"]["accumulation"]
    for one, other in zip(runs.record(whole)["losses"], runs.record(two)["losses"], strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    distance = {key: (w - weights(two)[key]).float() for key, w in weights(whole).items()}
    rms = torch.cat([d.flatten() for d in distance.values()]).square().mean().sqrt().item()
    assert rms <= TOLERANCE * LR * STEPS


@pytest.mark.parametrize(("name", "family"), distinct())
def test_weights_move_at_a_small_learning_rate(name, family, make, tmp_path):
    """As the forward uses them: FP32, where BF16 would leave a weight near 1 as it is for ever."""
    config = make(
        name, family, "slow", max_steps=60, eval_every=60, checkpoint_every=60, lr=1e-4, micro_batch=4
    )
    processes.run(runs.complete, config, log=tmp_path / "log")
    method = make_method(name)
    start = method.attach(tiny(family, dtype=torch.bfloat16), RunContext(seed=config.seed, total_steps=60))
    method.save(start, tmp_path)
    moved = total = 0
    for key, before in load_file(tmp_path / WEIGHTS).items():
        if not before.is_floating_point() or (".vera_" in key and "lambda" not in key):
            continue  # where a sparse update stands; a frozen projection
        changed = weights(config)[key] != before
        if "boft_R" in key:  # only the skew part of a block counts, and a diagonal has none
            changed |= torch.eye(changed.shape[-1], dtype=torch.bool)
        moved, total = moved + int(changed.sum()), total + changed.numel()
    assert moved >= 0.99 * total > 0


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("precision", ["bf16", pytest.param("bf16_engine", marks=pytest.mark.slow)])
def test_adalora_prunes_forward_and_master_to_the_budget(precision, world, make, tmp_path):
    """`Probe` looks after every step; accumulation 2 on two processes, 4 on one."""
    config = make("adalora", "llama", f"{precision}-{world}", precision=precision)
    config.method["_target_"] = "tests.methods.probe.Probe"
    processes.run(runs.complete, config, log=tmp_path / "log", world=world)
    alive = [int((w != 0).sum()) for key, w in weights(config).items() if "lora_E" in key]
    assert sum(alive) == 3 * len(alive)
    assert runs.record(config)["metrics"][-1]["rank_total"] == 3 * len(alive)
    assert runs.record(config)["metrics"][-1]["looked"] == STEPS
