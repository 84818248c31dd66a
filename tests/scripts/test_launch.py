"""Sweeps through Hydra's launchers: a job a run; failures are listed as for a sweep here."""

import importlib.util

import pytest

from tests.scripts import house
from tests.scripts.test_command import ROOT, SCRIPT, call
from tests.scripts.test_run import overrides, read


@pytest.fixture
def script(tmp_path):
    return house.stage(tmp_path, SCRIPT)


def sweep(script, tmp_path, *more):
    """Run seeds 1 to 3, the second of which fails, and check what every launcher must leave."""
    arguments = (f"results={tmp_path}", f"runtime.cache_dir={tmp_path}/cache", *more)
    done = call(script, "-m", "seed=1,2,3", *arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["dypam-1", "dypam-3"]
    assert "1 of 3 runs did not finish; to run them again:" in done.stderr
    assert f"python {script} seed=2 results={tmp_path}" in done.stderr
    assert "# exit code 1: RuntimeError: planted" in done.stderr


def test_submitit_and_a_failing_job(script, tmp_path):
    """Submitit's local executor in the place of Slurm."""
    sweep(script, tmp_path, "hydra/launcher=slurm_here")


def test_a_job_that_dies_without_a_word_is_told(script, tmp_path):
    script.write_text(
        script.read_text().replace('raise RuntimeError("planted")', "__import__('os')._exit(9)")
    )
    arguments = (f"results={tmp_path}", f"runtime.cache_dir={tmp_path}/cache", "hydra/launcher=slurm_here")
    done = call(script, "-m", "seed=2", *arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "its job ended without a word" in done.stderr


@pytest.mark.slow
def test_whole_runs_through_submitit(tiny_backbone_dir, tmp_path):
    given = overrides(tiny_backbone_dir("qwen3"), tmp_path, **{"runtime.threads": 1})
    more = ("method=lora,base", "hydra/launcher=slurm_here", f"runtime.cache_dir={tmp_path}/cache")
    done = call(ROOT / "scripts/run.py", "-m", *given, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = [read(path) for path in tmp_path.glob("runs/*/*/*/*/record.json")]
    assert [one["status"] for one in records] == ["finished"] * 2
    again = call(ROOT / "scripts/run.py", "-m", *given, *more, cwd=tmp_path)
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None
    or importlib.util.find_spec("hydra_plugins.hydra_ray_launcher") is None,
    reason="Ray is not installed: pip install -r requirements-ray.in",
)
def test_ray_started_on_this_machine(script, tmp_path):
    sweep(script, tmp_path, "hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=1")
