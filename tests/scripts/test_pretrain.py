"""Nano backbones: made once, from a seed alone, on any number of threads; and learned, not only made."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from data import nano
from dypam.config import ConfigError
from dypam.count import count
from dypam.files import FileError, sha256_file
from dypam.validate import check_targets
from scripts import compose, override, pretrain
from tests.methods.cases import METHODS
from tests.scripts.test_command import call

NANO = set(compose.compose(["scale=nano"]).scale.backbone.values())


def make(target, name="nano-llama", **changes):
    """Pretrain a nano backbone for two steps."""
    call = dict(compose.run_config([f"backbone={name}"]).backbone.convert)
    call.pop("_target_")
    return pretrain.pretrained(
        target, **{**call, "steps": 2, "cache": target.parent, "offline": True, **changes}
    )


@pytest.mark.parametrize("name", ["nano-llama", "nano-gemma3", "nano-bloom", "nano-opt"])
def test_it_loads_and_knows_every_word(tmp_path, name):
    folder = make(tmp_path / name, name)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size >= len(tokenizer)
    for suite in nano.SUITES:
        for row in nano.train(name="t", suite=suite, size=200):
            for text in (row["prompt"], row["response"]):
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                assert tokenizer.unk_token_id not in ids
                assert tokenizer.decode(ids).replace(" ", "") == "".join(text.split())


def test_the_seed_makes_the_weights_on_any_number_of_threads(tmp_path):
    threads = torch.get_num_threads()
    folders = [make(tmp_path / "one"), make(tmp_path / "other", seed=1)]
    try:
        torch.set_num_threads(threads + 1)
        folders.append(make(tmp_path / "two"))
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    one, other, two = (sha256_file(folder / "model.safetensors") for folder in folders)
    assert one == two != other


def test_it_is_made_once_and_again_when_its_recipe_changes(tmp_path):
    weights = make(tmp_path / "b") / "model.safetensors"
    first = weights.stat().st_mtime_ns
    make(tmp_path / "b")
    assert weights.stat().st_mtime_ns == first
    make(tmp_path / "b", steps=3)
    assert weights.stat().st_mtime_ns != first


def test_what_lacks_a_file_is_made_again(tmp_path):
    weights = make(tmp_path / "b") / "model.safetensors"
    weights.unlink()
    make(tmp_path / "b")
    assert weights.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, r"backbone\.convert\.steps is 0; give"),
        ({"steps": "many"}, r"backbone\.convert\.steps is 'many'; give"),
        ({"lr": float("nan")}, r"backbone\.convert\.lr is nan; give"),
        ({"lr": 1e30, "steps": 9}, "the loss is not finite at step"),
        ({"seed": None}, r"backbone\.convert\.seed is None; give"),
        ({"architecture": {"model_type": "x", "vocab_size": 999}}, r"backbone\.architecture makes no model"),
    ],
)
def test_numbers_that_cannot_be_are_refused_and_nothing_is_made(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(tmp_path / "b", **changes)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["b.lock"])


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be written"):
        make(tmp_path / "file" / "b")


def test_a_vocabulary_that_is_too_small_is_refused(tmp_path):
    done = call(
        "scripts/convert.py",
        "backbone=nano-llama",
        "backbone.architecture.vocab_size=100",
        f"runtime.cache_dir={tmp_path}",
    )
    assert done.returncode != 0
    assert "vocab_size is 100, and the text has" in done.stderr
    assert not (tmp_path / "backbones/nano-llama").exists()


def test_every_experiment_has_its_runs_at_this_scale():
    for experiment in override.choices("experiment"):
        overrides = [f"experiment={experiment}", "scale=nano"]
        runs = compose.run_dirs(overrides)
        assert len(runs) == len(set(runs)) == len(compose.grid(overrides))
        assert all(run.startswith("results/nano/runs/nano-") for run in runs)
        config = compose.run_config(compose.grid(overrides)[-1])
        assert config.backbone.name in NANO
        assert set(config.suite.tests) <= {f"nano_{topic}" for topic in nano.TOPICS}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_fits_a_nano_backbone(method):
    config = compose.run_config(["scale=nano", f"method={method}", "backbone=llama-3.2-3b", "suite=math10k"])
    assert count(check_targets(config), config.backbone).trained > 0


@pytest.mark.slow
def test_what_a_method_learns_on_a_nano_backbone(tmp_path):
    """The backbone keeps its answers to itself; LoRA and DyPAM make it give them."""
    done = call(
        "scripts/run.py",
        "-m",
        "scale=nano",
        "experiment=table1",
        "backbone=llama-3.2-3b",
        "method=base,lora,dypam",
        "seed=2333",
        f"results={tmp_path}",
        f"runtime.cache_dir={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    scores = {}
    for method in ("base", "lora", "dypam"):
        path = tmp_path / f"runs/nano-math/nano-llama/{method}/seed2333/scores.json"
        sets = json.loads(path.read_text())["protocols"]["paper"].values()
        scores[method] = sum(row["correct"] for row in sets) / sum(row["n"] for row in sets)
    assert scores["base"] < 0.2
    assert min(scores["lora"], scores["dypam"]) > 0.5
