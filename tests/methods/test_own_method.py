"""A method of the user's own: one file and one YAML, and every stage works."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from dypam.method import RunContext
from tests.methods.cases import logits_of
from tests.tiny import tiny, tiny_config

ROOT = Path(__file__).parents[2]

METHOD_YAML = """
_target_: mine.QueryBias
name: query_bias
label: Query bias
"""
SUITE_YAML = """
defaults:
  - /testset@tests.minimath_number: minimath_number
  - _self_
name: own
label: Own
train: {_target_: data.minimath.train, name: own-train, size: 40, seed: 0}
tests: {minimath_number: {rows: 4, source: {size: 4}}}
"""
PEFT_METHOD = """
from peft import LoHaConfig
from dypam.peft_method import PeftMethod

class LoHa(PeftMethod):
    config_class = LoHaConfig
"""


@pytest.fixture
def tree(tmp_path, tiny_backbone_dir) -> Path:
    """A copy of the project in a temporary folder, with a tiny backbone among its own."""
    for part in ("baselines", "configs", "data", "dypam", "eval", "scripts"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    architecture = {key: value for key, value in tiny_config("llama").to_dict().items() if value is not None}
    backbone = {
        "name": "tiny",
        "label": "Tiny",
        "path": str(tiny_backbone_dir("llama")),
        "architecture": architecture,
    }
    (tmp_path / "configs/backbone/tiny.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(backbone))))
    (tmp_path / "configs/suite/own.yaml").write_text(SUITE_YAML)
    return tmp_path


def script(tree: Path, name: str, *overrides: str) -> str:
    done = subprocess.run(
        [sys.executable, f"scripts/{name}.py", "backbone=tiny", "method=query_bias", *overrides],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_one_file_and_one_yaml_make_a_method_that_trains_generates_scores_and_counts(tree):
    shutil.copy(Path(__file__).with_name("own_method.py"), tree / "mine.py")
    (tree / "configs/method/query_bias.yaml").write_text(METHOD_YAML)
    short = ("train.max_steps=2", "train.validation_size=4", "decode.max_new_tokens=4")
    rest = ("suite=own", "runtime.device=cpu", "runtime.wandb=off", "runtime.progress=false")
    script(tree, "run", *short, *rest)
    run_dir = tree / "results/runs/own/tiny/query_bias/seed2333"
    record = json.loads((run_dir / "record.json").read_text())
    assert record["status"] == "finished"
    assert record["parameters"]["trained"] == 2 * 64
    assert (
        json.loads((run_dir / "scores.json").read_text())["protocols"]["paper"]["minimath_number"]["n"] == 4
    )
    assert "128 of" in script(tree, "params", "suite=own")


def test_a_peft_method_takes_a_class_of_one_line(tmp_path):
    space: dict = {}
    exec(PEFT_METHOD, space)
    method = space["LoHa"]("loha", r=4)
    model = method.attach(tiny("llama"), RunContext(seed=1, total_steps=5)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.1)
    method.save(model, tmp_path)
    again = space["LoHa"]("loha", r=4).load(tiny("llama"), tmp_path).eval()
    assert torch.equal(logits_of(again), logits_of(model))
    assert not torch.equal(logits_of(again), logits_of(tiny("llama")))
