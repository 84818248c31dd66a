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

EVENTS = [
    pytest.param("train.micro_step:7", id="in an accumulation step"),
    pytest.param("checkpoint.before_rename:2", id="before a checkpoint is renamed"),
    pytest.param("record.write:6", id="while the record is written"),
    pytest.param("adapter.between_renames:1", id="while the adapter is replaced", marks=pytest.mark.slow),
    pytest.param("train.micro_step:1", id="in the first accumulation step", marks=pytest.mark.slow),
    pytest.param("train.micro_step:12", id="in the last accumulation step", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def whole(make) -> dict[str, Any]:
    """The outcome of a run that nothing disturbs, in a process of its own."""
    config = make("whole")
    processes.run(runs.complete, config, log=Path(config.run_dir + ".log"))
    return runs.outcome(config)


@pytest.fixture
def stopped(killed_once: RunConfig, tmp_path: Path) -> RunConfig:
    """A copy of a run that was killed after its checkpoint of step 4."""
    run_dir = tmp_path / "run"
    shutil.copytree(killed_once.run_dir, run_dir)
    return dataclasses.replace(killed_once, run_dir=str(run_dir))


@pytest.fixture(scope="module")
def killed_once(make, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    config = make("killed-once")
    runs.killed(config, "train.micro_step:10", tmp_path_factory.mktemp("killed-once"))
    return config


@pytest.mark.parametrize("event", EVENTS)
def test_sigkill(make, whole: dict[str, Any], event: str, tmp_path: Path) -> None:
    config = make(f"killed-{event.replace(':', '-')}")
    runs.killed(config, event, tmp_path)
    assert runs.record(config)["status"] == "running" if "record" not in event else True
    processes.run(runs.complete, config, log=tmp_path / "resumed.log")
    assert runs.outcome(config) == whole


@pytest.mark.slow
def test_sigkill_twice(make, whole: dict[str, Any], tmp_path: Path) -> None:
    config = make("killed-twice")
    runs.killed(config, "train.micro_step:6", tmp_path)
    (tmp_path / "proof").unlink()
    runs.killed(config, "train.micro_step:4", tmp_path)
    assert [row["step"] for row in runs.record(config)["losses"]] == [1, 2, 3, 3]
    processes.run(runs.complete, config, log=tmp_path / "resumed.log")
    assert runs.outcome(config) == whole


def test_a_damaged_checkpoint_is_passed_over(
    stopped: RunConfig, whole: dict[str, Any], tmp_path: Path
) -> None:
    newest = Path(stopped.run_dir) / "checkpoints" / "step-000004" / "process-0.pt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    printed = processes.run(runs.complete, stopped, log=tmp_path / "resumed.log")
    assert "step-000004 is damaged and passed over: process-0.pt has another content" in printed
    assert runs.outcome(stopped) == whole


def test_other_backbone_weights_are_no_way_to_go_on(
    stopped: RunConfig, tiny_backbone_dir, tmp_path: Path
) -> None:
    path, record = str(tiny_backbone_dir("llama", seed=1)), Path(stopped.run_dir) / "record.json"
    record.write_text(record.read_text().replace(stopped.backbone.path, path))
    stopped.backbone = dataclasses.replace(stopped.backbone, path=path)
    printed = processes.run(runs.complete, stopped, log=tmp_path / "resumed.log", expect=1)
    assert re.search(r"ConfigError: .*was written with backbone weights \w+, and here it is \w+", printed)


def test_state_of_a_method_and_random_numbers_survive(make, tmp_path: Path) -> None:
    noisy = {**cases.LORA, "_target_": "tests.train.cases.Noisy", "lora_dropout": 0.1}
    undisturbed, broken = make("noisy", noisy), make("noisy-killed", noisy)
    processes.run(runs.complete, undisturbed, log=tmp_path / "whole.log")
    runs.killed(broken, "train.micro_step:11", tmp_path)
    processes.run(runs.complete, broken, log=tmp_path / "resumed.log")
    assert runs.outcome(broken) == runs.outcome(undisturbed)
    assert runs.record(broken)["metrics"] == runs.record(undisturbed)["metrics"]


def test_shards_hold_only_what_is_trained(killed_once: RunConfig) -> None:
    folder = Path(killed_once.run_dir) / "checkpoints" / "step-000004"
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "process-0.pt", "state.json"]
    saved = torch.load(folder / "process-0.pt", weights_only=True)
    trained = runs.record(killed_once)["parameters"]["trained"]
    assert sum(part.numel() for part in saved["engine"]["weights"]) == trained
