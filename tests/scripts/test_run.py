"""One run by its command, on a tiny backbone: done once, not done again, mended where a row is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts.test_command import ROOT, call

ARCHITECTURE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 259,
}
SETS = ("number", "letter", "boolean", "answer")


def overrides(backbone, results, **more):
    """Return the command line of a run of three steps and 4 × 6 questions."""
    given = {
        "backbone": "qwen3-0.6b",
        "backbone.path": backbone,
        **{f"backbone.architecture.{key}": value for key, value in ARCHITECTURE.items()},
        "results": results,
        "suite.train.size": 40,
        **{f"suite.tests.minimath_{name}.source.size": 6 for name in SETS},
        **{f"suite.tests.minimath_{name}.rows": 6 for name in SETS},
        "train.max_steps": 3,
        "train.validation_size": 8,
        "decode.max_new_tokens": 4,
        "decode.batch_size": 4,
        "runtime.progress": "false",
        "runtime.wandb": "off",
        **more,
    }
    return [f"{key}={value}" for key, value in given.items()]


@pytest.fixture(scope="module")
def finished(tiny_backbone_dir, tmp_path_factory):
    """Run DyPAM once; return its overrides and its directory."""
    results = tmp_path_factory.mktemp("results")
    given = overrides(tiny_backbone_dir("qwen3"), results)
    done = call("scripts/run.py", *given)
    assert done.returncode == 0, done.stderr
    (run_dir,) = results.glob("runs/minimath/qwen3-0.6b/dypam/seed2333")
    return given, run_dir


@pytest.fixture
def no_torch(tmp_path):
    """Return an environment in which importing torch ends the process."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch was loaded')")
    return {"PYTHONPATH": str(tmp_path)}


def read(path):
    return json.loads(path.read_text())


def test_a_run_leaves_adapter_predictions_scores_and_a_finished_record(finished):
    _, run_dir = finished
    record, scores = read(run_dir / "record.json"), read(run_dir / "scores.json")
    assert record["status"] == "finished"
    assert (run_dir / "adapter" / "backbone.json").exists()
    for name in SETS:
        rows = (run_dir / "predictions" / f"minimath_{name}.jsonl").read_text().splitlines()
        assert len(rows) == scores["protocols"]["paper"][f"minimath_{name}"]["n"] == 6


def test_a_finished_run_is_not_run_again_and_needs_no_torch(finished, no_torch):
    given, run_dir = finished
    before = {path: path.read_bytes() for path in run_dir.rglob("*.json*") if "lease" not in path.name}
    done = call("scripts/run.py", *given, **no_torch)
    assert done.returncode == 0, done.stderr
    assert "minimath_number" in done.stdout
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("script", ["train", "generate", "score"])
def test_a_stage_that_is_done_needs_no_torch(finished, no_torch, script):
    given, _ = finished
    done = call(f"scripts/{script}.py", *given, **no_torch)
    assert done.returncode == 0, done.stderr


def test_checkpoints_that_a_kill_left_after_training_go(finished, no_torch):
    given, run_dir = finished
    (run_dir / "checkpoints" / "step-000002").mkdir(parents=True)
    done = call("scripts/run.py", *given, **no_torch)
    assert done.returncode == 0, done.stderr
    assert not list((run_dir / "checkpoints").iterdir())


def test_another_configuration_in_the_same_directory_is_refused(finished, no_torch):
    given, _ = finished
    done = call("scripts/run.py", *given, "train.lr=0.5", **no_torch)
    assert done.returncode == 2
    assert "train.lr is 0.001 there, 0.5 here" in done.stderr


def test_a_lost_row_alone_is_computed_again(finished):
    given, run_dir = finished
    path = run_dir / "predictions" / "minimath_letter.jsonl"
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[3:]))
    done = call("scripts/run.py", *given)
    assert done.returncode == 0, done.stderr
    assert path.read_text() == whole
    sets = read(run_dir / "generation.json")["sets"]
    assert [start["examples"] for start in sets["minimath_letter"]["starts"]] == [6, 1]
    assert [start["examples"] for start in sets["minimath_number"]["starts"]] == [6]


def test_the_table_of_the_run_is_drawn_without_torch(finished, no_torch):
    given, run_dir = finished
    done = call("scripts/table.py", *given, "method=lora,dypam", "table.name=tiny", **no_torch)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 runs are missing" in done.stdout
    assert "qwen3-0.6b/lora/seed2333: not started" in done.stderr
    assert (run_dir.parents[4] / "tables" / "tiny.tex").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ["-m", "torch.distributed.run", "--nproc_per_node=2"],
        ["-m", "deepspeed.launcher.runner", "--no_local_rank", "--num_gpus=2"],
        ["-m", "deepspeed.launcher.runner", "--num_gpus=2"],
    ],
    ids=["torchrun", "deepspeed", "deepspeed with --local_rank"],
)
def test_two_processes_under_a_launcher(tiny_backbone_dir, tmp_path, launcher):
    given = overrides(tiny_backbone_dir("qwen3"), tmp_path, **{"train.micro_batch": 1})
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [sys.executable, *launcher, str(ROOT / "scripts" / "run.py"), *given]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (record,) = tmp_path.glob("runs/minimath/*/dypam/seed2333/record.json")
    assert read(record)["status"] == "finished"
    assert read(record)["batching"] == {"micro_batch": 1, "accumulation": 2, "processes": 2}
