"""Overrides become checked runs, and wrong ones one sentence with the way out."""

import pytest

from dypam.config import ConfigError
from scripts import compose, usage

WRONG = {
    "method=dypan": "method=dypan is no choice; did you mean dypam?",
    "backbone=llama-3.2-3": "did you mean llama-3.2-3b?",
    "suite=math": "suite=math is no choice; did you mean math10k?",
    "experiment=dem": "did you mean demo?",
    "method=zzz": "method=zzz is no choice; there are adalora, base, ",
    "trian.lr=1": "trian.lr=1 sets trian.lr, which is no known key; did you mean train.lr?",
    "lr=1": "did you mean train.lr?",
    "seeds=3": "did you mean seed?",
    "train.percision=bf16": "did you mean train.precision?",
    "suite.tests.gsm8k.rows=3": "suite.tests",
    "+train.lrr=1": "train.lrr (value 1) is not a known key; use lr instead.",
    "method=[lora,dypam]": "method=[lora,dypam] is no choice; ",
    "method=null": "method=null is no choice; ",
    "train=5": "train=5 is no choice; ",
    "train=[1]": "train=[1] is no choice; ",
    "scale=[full]": "scale=[full] is no choice; ",
    "~method": "~method leaves no method; choose one, as method=NAME.",
    "+nonsense=1": "nonsense (value 1) is not a known key",
    "~seed": "Interpolation key 'seed' not found.",
    "~prompt": "prompt is missing",
    "train.lr=abc": "train.lr is 'abc'; give a number.",
    "train.lr=[1,": "train.lr=[1, is no override that can be read: quote its value",
    "train.lr=-1": "train.lr is -1.0; give a number above 0.",
    "train.precision=fp16": "give one of auto, fp32, bf16",
    "train.global_batch=3": "train.global_batch is 3, which train.micro_batch=2 does not divide",
    "seed=1,2": "seed=1,2 names several runs: add -m",
    "train": "train is no override that can be read: write KEY=VALUE.",
    "results=${nope}": "nope",
    "seed=???": "seed is ???",
    "hydra/launcher=slrm": "there are basic, here, slurm",
}


@pytest.mark.parametrize("override", WRONG)
def test_what_is_wrong_is_said_in_one_sentence(override):
    assert WRONG[override] in one_sentence(compose.run_config, override)


def one_sentence(call, override):
    """Return what a call says of a wrong override, which must be one sentence."""
    with pytest.raises(ConfigError) as caught:
        call([override])
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


def test_a_run_has_the_four_names_in_its_directory():
    config = compose.run_config(["backbone=qwen3-8b", "method=lora", "suite=math10k", "seed=7"])
    assert config.run_dir == "results/runs/math10k/qwen3-8b/lora/seed7"
    assert compose.run_config(["results=/x"]).run_dir.startswith("/x/runs/minimath/gemma3-270m/dypam/")


def test_a_grid_is_the_product_of_its_sweeps():
    assert compose.grid(["method=lora,dypam", "seed=1,2", "train.lr=0.1"]) == [
        ["method=lora", "seed=1", "train.lr=0.1"],
        ["method=lora", "seed=2", "train.lr=0.1"],
        ["method=dypam", "seed=1", "train.lr=0.1"],
        ["method=dypam", "seed=2", "train.lr=0.1"],
    ]


def test_an_experiment_brings_its_own_grid_and_the_command_line_may_narrow_it():
    whole = compose.grid(["experiment=demo"])
    methods = [compose.run_config(job).method["name"] for job in whole]
    assert methods == ["base", "lora", "dypam"]
    assert len({compose.run_config(job).run_dir for job in whole}) == 3
    (one,) = compose.grid(["experiment=demo", "method=lora"])
    assert compose.run_config(one).method["name"] == "lora"


def test_hydra_overrides_belong_to_no_run():
    given = ["hydra/launcher=slurm", "hydra.launcher.partition=gpu", "+hydra.launcher.x=1", "seed=3"]
    (job,) = compose.grid(given)
    assert job == ["seed=3"]


WRONG_GRIDS = {
    "seed=range(3,3)": "seed=range(3,3) names no run: give at least one value",
    "seed=interval(1,2)": "INTERVAL_SWEEP: list the values, as in seed=1,2",
    "method=glob(*)": "list the values, as in seed=1,2",
    "experiment=demo,table1": "experiment=demo,table1 names several: give one",
    "hydra/launcher=here,slurm": "hydra/launcher=here,slurm names several: give one",
    "run_dir=${nope}": "run_dir: Interpolation key 'nope' not found.",
    "backbone=qwen3-8b,[a]": "backbone=[a] is no choice; ",
}


@pytest.mark.parametrize("override", WRONG_GRIDS)
def test_what_is_wrong_with_a_grid_is_said_in_one_sentence(override):
    assert WRONG_GRIDS[override] in one_sentence(compose.run_dirs, override)


def test_the_drawing_that_is_left_out_is_named():
    with pytest.raises(ConfigError, match="table: Key 'table' is not in struct"):
        compose.table(["~table"])


def test_a_sweep_over_an_unknown_choice_is_refused():
    with pytest.raises(ConfigError, match=r"method=dypan is no choice; did you mean dypam\?"):
        [compose.run_config(job) for job in compose.grid(["method=lora,dypan"])]


def test_a_choice_in_a_folder_of_its_group():
    assert compose.run_config(["method=rosa_chapter/lora"]).method["name"] != "lora"


def test_the_help_names_every_choice_and_value():
    text = usage.help_text("What it does.")
    assert text.startswith("What it does.\n")
    for name in ("gemma3-270m", "rosa_chapter/dora", "commonsense15k", "experiment="):
        assert name in text
    for name in ("train.lr=1.0e-3", "train.loss_on=response", "decode.max_new_tokens=256", "seed=2333"):
        assert f"  {name}" in text
    assert "runtime.data_mirror=" in text
    assert max(map(len, text.splitlines())) < 120


@pytest.mark.parametrize(
    "given",
    [
        ["experiment=rosa_ratio", "seed=1,2"],
        ["method=dypam/no_norm,rosa_chapter/lora", "backbone=qwen3-8b,gemma3-270m", "results=/r"],
        ["seed=1,2", "run_dir=/x/${method.name}/${seed}"],
        ["method=lora,base", "method.name=mine,yours"],
    ],
)
def test_the_directories_of_a_grid_are_those_of_its_runs(given):
    assert compose.run_dirs(given) == [compose.run_config(job).run_dir for job in compose.grid(given)]


def test_a_grid_needs_m_or_a_choice():
    message = (
        "experiment=table1 means 150 runs: add -m to do them all, or choose one by backbone, method, seed."
    )
    with pytest.raises(ConfigError, match=message):
        compose.single(["experiment=table1"])
    assert "method=lora" in compose.single(["experiment=demo", "method=lora"])
    assert compose.single(["method=lora"]) == ["method=lora"]
