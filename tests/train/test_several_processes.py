"""Two processes: killed and started again as one would be, and the same training as by one process."""

import dataclasses
import re
import shutil
from pathlib import Path

import pytest

from tests.train import processes, runs


@pytest.mark.parametrize("precision", ["bf16", pytest.param("bf16_engine", marks=pytest.mark.slow)])
def test_two_processes(make, precision: str, tmp_path: Path) -> None:
    undisturbed, broken = (make(f"{name}-{precision}", precision=precision) for name in ("two", "two-killed"))
    processes.run(runs.complete, undisturbed, log=tmp_path / "whole.log", world=2)
    runs.killed(broken, "train.micro_step:5", tmp_path, world=2)
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
