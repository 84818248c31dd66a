"""The scripts as a user runs them: exit codes, nothing heavy loaded for a refusal, sweeps, shadowed names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.fetch import DataError
from dypam import record
from dypam.config import ConfigError
from dypam.files import FileError
from dypam.lease import LeaseHeld
from eval.score import ScoreError
from scripts import command
from tests.scripts import house

ROOT = Path(__file__).parents[2]

# A script of the project's own kind whose stage fails for seed 2 and leaves a file for the others.
SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from scripts import command

def stage(config):
    if config.seed == 2:
        raise RuntimeError("planted")
    Path({out!r}, f"{{config.method['name']}}-{{config.seed}}").write_text(config.run_dir)

if __name__ == "__main__":
    command.main(stage, "Doc.")
"""


def call(*arguments, cwd=ROOT, **environment):
    """Run Python with arguments; return the finished process."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("Wrong."), 2),
        (DataError("Gone."), 2),
        (FileError("Full."), 2),
        (ScoreError(Path("x.jsonl"), ["the file is missing"]), 2),
        (LeaseHeld("Taken."), 3),
        (RuntimeError("A fault."), 1),
        (KeyboardInterrupt(), 130),
        (record.Preempted(), 143),
    ],
)
def test_exit_codes(error, code, capsys):
    with pytest.raises(SystemExit) as ending, command.exit_codes():
        raise error
    assert ending.value.code == code
    message = capsys.readouterr().err
    assert str(error) in message
    assert ("Traceback" in message) == (code == 1)


@pytest.mark.parametrize("script", ["run", "train", "generate", "score", "convert"])
def test_a_wrong_value_ends_with_2_before_torch_is_loaded(script):
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['scripts/{script}.py', 'train.lr=abc']\n"
        "try:\n"
        f"    runpy.run_path('scripts/{script}.py', run_name='__main__')\n"
        "except SystemExit as ending:\n"
        "    heavy = {'torch', 'transformers', 'peft', 'deepspeed'} & sys.modules.keys()\n"
        "    print(ending.code, sorted(heavy))\n"
    )
    done = call("-c", code)
    assert done.stdout.splitlines() == ["2 []"]
    assert done.stderr == "Error: train.lr is 'abc'; give a number.\n"


def test_a_wrong_combination_of_targets_ends_with_2():
    done = call("scripts/run.py", "method=dypam", "decode.merge=true")
    assert done.returncode == 2
    assert "cannot be merged" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "script", ["run", "train", "generate", "score", "table", "dataset_tables", "bench", "fetch", "convert"]
)
def test_help(script):
    done = call(f"scripts/{script}.py", "--help")
    assert done.returncode == 0, done.stderr
    assert f"python scripts/{script}.py" in done.stdout


def test_hydras_own_flags_work():
    done = call("scripts/run.py", "--cfg", "job", "seed=5")
    assert done.returncode == 0, done.stderr
    assert "seed: 5" in done.stdout


def test_packages_called_like_ours_do_not_shadow_them(tmp_path):
    """Neither one that is installed (here: on PYTHONPATH) nor one in the current folder."""
    for package in ("data", "eval", "scripts", "dypam"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('the wrong package')")
    done = call(ROOT / "scripts/fetch.py", "--list", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "dataset/gsm8k/test.json" in done.stdout


def test_the_deepspeed_launchers_local_rank_is_no_override():
    flags, overrides = command.split(["--local_rank=1", "seed=3", "-m"])
    assert (flags, overrides) == ({"-m"}, ["seed=3"])


@pytest.fixture
def script(tmp_path):
    return house.stage(tmp_path, SCRIPT)


def test_a_sweep_with_one_wrong_run_starts_none(script, tmp_path):
    done = call(script, "-m", "seed=1,-3")
    assert done.returncode == 2
    assert "seed is -3" in done.stderr
    assert not list((tmp_path / "out").iterdir())
