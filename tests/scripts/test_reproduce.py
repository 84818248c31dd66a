"""An experiment as one command: runs that fail stay visibly missing in its table; the list of them all."""

import json

import pytest

from dypam import record
from dypam.lease import Lease
from scripts import compose, override, reproduce
from tests.scripts import house
from tests.scripts.test_command import ROOT, call

BROKEN = """# @package _global_
hydra: {sweeper: {params: {seed: "1,2"}}}
method: {_target_: nowhere.Method}
draws: [table]
table: {name: broken, caption: Broken}
"""


@pytest.mark.slow
def test_what_fails_stays_visibly_missing(tmp_path):
    folder = house.build(tmp_path, {"experiment/broken.yaml": BROKEN})
    done = call(folder / "scripts/reproduce.py", "broken", f"results={tmp_path}", "runtime.wandb=off")
    assert done.returncode == 1, done.stderr
    assert "2 of 2 runs did not finish" in done.stderr
    assert f"python scripts/run.py seed=1 experiment=broken results={tmp_path}" in done.stderr
    assert "nowhere.Method" in done.stderr
    assert "2 of 2 runs are missing" in (tmp_path / "tables/broken.md").read_text()


def test_an_experiment_without_runs_of_its_own_is_only_drawn(tmp_path):
    done = call(ROOT / "scripts/reproduce.py", "figure2", f"results={tmp_path}", "runtime.wandb=off")
    assert done.returncode == 0, done.stderr
    assert sorted(path.suffix for path in (tmp_path / "figures").iterdir()) == [".pdf", ".png"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figur2"], "figur2 is no experiment; there are "),
        ([], "Name an experiment first: "),
        (["figure2", "--pdf"], "--pdf is no flag of reproduce.py"),
        (["figure2", "draws=[poem]"], "draws has poem; use table, figure"),
    ],
)
def test_what_cannot_be_reproduced_is_said_in_one_sentence(arguments, message):
    done = call(ROOT / "scripts/reproduce.py", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", override.choices("experiment"))
def test_every_experiment_draws_something_that_can_be_drawn(name):
    drawings = compose.experiment([f"experiment={name}"])["draws"]
    assert drawings
    assert set(drawings) <= reproduce.DRAWINGS.keys()


def test_the_list_counts_runs_by_their_state(tmp_path):
    runs = tmp_path / "runs/minimath/gemma3-270m"
    for method, status in (("base", "finished"), ("lora", "failed")):
        (runs / method / "seed2333").mkdir(parents=True)
        path = runs / method / "seed2333/record.json"
        path.write_text(json.dumps({**record.EMPTY, "status": status}))
    with Lease.acquire(runs / "dypam/seed2333"):
        done = call(ROOT / "scripts/list.py", f"results={tmp_path}")
    assert done.returncode == 0, done.stderr
    rows = {name: numbers for name, *numbers in map(str.split, done.stdout.splitlines())}
    assert rows["experiment"] == ["runs", "done", "running", "failed", "left"]
    assert rows["demo"] == ["3", "1", "1", "1", "0"]
    assert rows["table1"] == ["150", "0", "0", "0", "150"]
    assert rows["figure2"] == ["0"] * 5
    assert call(ROOT / "scripts/list.py", "no=1").returncode == 2
