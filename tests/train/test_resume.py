"""Killed anywhere, a run started again by the same command ends in the same weights, bit for bit."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dypam.config import RunConfig
from tests.train import cases, processes, runs

KILL = -9
EVENTS = [
    pytest.param("train.micro_step:7", id="in an accumulation step"),
    pytest.param("checkpoint.before_rename:2", id="before a checkpoint is renamed"),
    pytest.param("record.write:6", id="while the record is written"),
    pytest.param("adapter.between_renames:1", id="while the adapter is replaced", marks=pytest.mark.slow),
    pytest.param("train.micro_step:1", id="in the first accumulation step", marks=pytest.mark.slow),
    pytest.param("train.micro_step:12", id="in the last accumulation step", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def make(tiny_backbone_dir, tmp_path_factory):
    root = tmp_path_factory.mktemp("resume")

    def config(name: str, method: dict[str, Any] = cases.DYPAM, **train: Any) -> RunConfig:
        return cases.config(root / name, tiny_backbone_dir("llama"), method, **train)

    return config


@pytest.fixture(scope="module")
def whole(make) -> dict[str, Any]:
    """The outcome of a run that nothing disturbs, in a process of its own."""
    config = make("whole")
    processes.run(runs.complete, config, log=Path(config.run_dir + ".log"))
    return runs.outcome(config)


def killed(config: RunConfig, event: str, tmp_path: Path, world: int = 1) -> None:
    """Train until `event`, and see that SIGKILL came there and nowhere else."""
    proof = tmp_path / "proof"
    log = tmp_path / "killed.log"
    processes.run(
        runs.complete,
        config,
        log=log,
        world=world,
        expect=KILL,
        DYPAM_KILL_AT=event,
        DYPAM_KILL_PROOF=str(proof),
    )
    assert re.match(rf"{event.split(':')[0]} \d+\n", proof.read_text())


@pytest.mark.parametrize("event", EVENTS)
def test_sigkill(make, whole: dict[str, Any], event: str, tmp_path: Path) -> None:
    config = make(f"killed-{event.replace(':', '-')}")
    killed(config, event, tmp_path)
    assert runs.record(config)["status"] == "running" if "record" not in event else True
    processes.run(runs.complete, config, log=tmp_path / "resumed.log")
    assert runs.outcome(config) == whole


@pytest.mark.slow
def test_sigkill_twice(make, whole: dict[str, Any], tmp_path: Path) -> None:
    config = make("killed-twice")
    killed(config, "train.micro_step:6", tmp_path)
    (tmp_path / "proof").unlink()
    killed(config, "train.micro_step:4", tmp_path)
    assert [row["step"] for row in runs.record(config)["losses"]] == [1, 2, 3, 3]
    processes.run(runs.complete, config, log=tmp_path / "resumed.log")
    assert runs.outcome(config) == whole


def test_a_damaged_checkpoint_is_passed_over(make, whole: dict[str, Any], tmp_path: Path) -> None:
    config = make("damaged")
    killed(config, "train.micro_step:10", tmp_path)
    newest = Path(config.run_dir) / "checkpoints" / "step-000004" / "process-0.pt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    printed = processes.run(runs.complete, config, log=tmp_path / "resumed.log")
    assert "step-000004 is damaged and passed over: process-0.pt has another content" in printed
    assert runs.outcome(config) == whole


def test_other_backbone_weights_are_no_way_to_go_on(make, tiny_backbone_dir, tmp_path: Path) -> None:
    config, path = make("other-weights"), tmp_path / "backbone"
    config.backbone = dataclasses.replace(config.backbone, path=str(path))
    shutil.copytree(tiny_backbone_dir("llama"), path)
    killed(config, "train.micro_step:10", tmp_path)
    shutil.copytree(tiny_backbone_dir("llama", seed=1), path, dirs_exist_ok=True)
    printed = processes.run(runs.complete, config, log=tmp_path / "resumed.log", expect=1)
    assert re.search(r"ConfigError: .*was written with backbone weights \w+, and here it is \w+", printed)


def test_state_of_a_method_and_random_numbers_survive(make, tmp_path: Path) -> None:
    noisy = {**cases.LORA, "_target_": "tests.train.cases.Noisy", "lora_dropout": 0.1}
    undisturbed, broken = make("noisy", noisy), make("noisy-killed", noisy)
    processes.run(runs.complete, undisturbed, log=tmp_path / "whole.log")
    killed(broken, "train.micro_step:11", tmp_path)
    processes.run(runs.complete, broken, log=tmp_path / "resumed.log")
    assert runs.outcome(broken) == runs.outcome(undisturbed)
    assert runs.record(broken)["metrics"] == runs.record(undisturbed)["metrics"]


@pytest.mark.parametrize("precision", ["bf16", pytest.param("bf16_engine", marks=pytest.mark.slow)])
def test_two_processes(make, precision: str, tmp_path: Path) -> None:
    undisturbed, broken = (make(f"{name}-{precision}", precision=precision) for name in ("two", "two-killed"))
    processes.run(runs.complete, undisturbed, log=tmp_path / "whole.log", world=2)
    killed(broken, "train.micro_step:5", tmp_path, world=2)
    shutil.copytree(broken.run_dir, broken.run_dir + "-copy")
    processes.run(runs.complete, broken, log=tmp_path / "resumed.log", world=2)
    assert runs.outcome(broken) == runs.outcome(undisturbed)
    alone = dataclasses.replace(broken, run_dir=broken.run_dir + "-copy")
    printed = processes.run(runs.complete, alone, log=tmp_path / "alone.log", expect=1)
    assert re.search(r"ConfigError: .*was written with processes 2, and here it is 1; go on with 2", printed)


def test_two_processes_train_as_one_with_twice_the_accumulation(make, tmp_path: Path) -> None:
    one, two = make("one", precision="bf16", global_batch=8), make("pair", precision="bf16", global_batch=8)
    processes.run(runs.complete, one, log=tmp_path / "one.log")
    processes.run(runs.complete, two, log=tmp_path / "two.log", world=2)
    single, double = runs.record(one), runs.record(two)
    assert (single["batching"]["accumulation"], double["batching"]["accumulation"]) == (4, 2)
    for mine, theirs in zip(single["losses"], double["losses"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3)


def test_shards_hold_only_what_is_trained(make, tmp_path: Path) -> None:
    config = make("shards")
    killed(config, "train.micro_step:10", tmp_path)
    folder = Path(config.run_dir) / "checkpoints" / "step-000004"
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "process-0.pt", "state.json"]
    saved = torch.load(folder / "process-0.pt", weights_only=True)
    trained = runs.record(config)["parameters"]["trained"]
    assert sum(part.numel() for part in saved["engine"]["weights"]) == trained
