"""A scale puts stand-ins for backbone and suite, changes methods, and the user's own values win."""

import json

import pytest

from tests.scripts import house
from tests.scripts.test_command import call

FILES = {
    "scale/nano.yaml": """
backbone: {llama-3.2-3b: nano-llama, gemma3-270m: nano-llama}
suite: {math10k: minimath}
method: {lora: [method.r=2], dypam: [method.d_e=8], dypam/alpha_0_1: [method.rank=4]}
set: [train.max_steps=60, train.lr=0.01, results=results/nano, table.rehearsal=true]
""",
    "backbone/nano-llama.yaml": "defaults: [/backbone/qwen3-0.6b@_here_, _self_]\nname: nano-llama\n",
}
ASK = """
import json, sys
from scripts import compose
from dypam.config import ConfigError

def sizes(method):
    return method.get("r") or [method.get("d_e"), method.get("rank")]

def tell(overrides):
    try:
        jobs = compose.grid(overrides)
        configs = [compose.run_config(job) for job in jobs]
    except ConfigError as error:
        return str(error)
    shown = [
        [c.run_dir, sizes(c.method), c.train.max_steps, c.train.lr, c.runtime.experiment] for c in configs
    ]
    return {"jobs": jobs, "runs": shown, "table": compose.table(jobs[0])}

print(json.dumps([tell(overrides) for overrides in json.loads(sys.argv[1])]))
"""
ASKED = {
    "table1": ["experiment=table1", "scale=nano", "backbone=llama-3.2-3b", "seed=1"],
    "own": [
        "scale=nano",
        "method=lora",
        "suite=math10k",
        "train.lr=0.5",
        "results=/r",
        "table.show=[published]",
    ],
    "stand-in": ["scale=nano", "backbone=nano-llama", "suite=minimath"],
    "folder": ["scale=nano", "method=dypam/no_norm,dypam/alpha_0_1", "suite=math10k"],
    "own method": ["scale=nano", "method=lora", "suite=math10k", "method.r=7", "backbone.name=mine"],
    "unlisted": ["scale=nano", "backbone=qwen3-8b", "suite=math10k"],
    "unlisted suite": ["scale=nano", "suite=commonsense15k"],
    "unknown": ["scale=nanno"],
    "full": ["scale=full", "experiment=table1", "method=lora", "seed=1", "backbone=llama-3.2-3b"],
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Compose everything in one process that has a scale of its own."""
    folder = house.build(tmp_path_factory.mktemp("house"), FILES)
    done = call("-c", ASK, json.dumps(list(ASKED.values())), cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(zip(ASKED, json.loads(done.stdout), strict=True))


def test_every_run_of_an_experiment_moves(told):
    runs = {run[0]: run[1:] for run in told["table1"]["runs"]}
    assert len(runs) == 10
    assert runs["results/nano/runs/minimath/nano-llama/lora/seed1"] == [2, 60, 0.01, "table1"]
    assert runs["results/nano/runs/minimath/nano-llama/bone/seed1"][1:] == [60, 0.01, "table1"]
    assert all("scale=nano" in job and "backbone=llama-3.2-3b" in job for job in told["table1"]["jobs"])


def test_published_numbers_never_stand_beside_a_rehearsal(told):
    table = told["table1"]["table"]
    assert (table["published"], table["rehearsal"], table["show"]) == (None, True, ["seed", "mean"])
    assert told["own"]["table"]["show"] == ["mean"]
    full = told["full"]["table"]
    assert (full["rehearsal"], "published" in full["show"], full["published"]) == (
        False,
        True,
        "table1_math.csv",
    )


def test_the_users_own_values_win(told):
    assert told["own"]["runs"] == [["/r/runs/minimath/nano-llama/lora/seed2333", 2, 60, 0.5, None]]


def test_what_a_method_is_set_to_goes_for_those_in_its_folder_that_have_nothing_of_their_own(told):
    assert [run[1] for run in told["folder"]["runs"]] == [[8, 128], [64, 4]]


def test_a_value_of_the_users_own_is_never_set_twice(told):
    assert told["own method"]["runs"] == [
        ["results/nano/runs/minimath/mine/lora/seed2333", 7, 60, 0.01, None]
    ]


def test_a_stand_in_may_be_named_itself(told):
    assert told["stand-in"]["runs"][0][0] == "results/nano/runs/minimath/nano-llama/dypam/seed2333"


def test_the_full_scale_changes_nothing(told):
    assert told["full"]["runs"] == [
        ["results/runs/math10k/llama-3.2-3b/lora/seed1", 24, None, 0.001, "table1"]
    ]


def test_what_has_no_stand_in_is_refused_by_name(told):
    assert told["unlisted"].startswith("scale=nano has no backbone in the place of qwen3-8b: name one in")
    assert told["unlisted suite"].startswith("scale=nano has no suite in the place of commonsense15k")
    assert told["unknown"] == "scale=nanno is no choice; did you mean nano?"
