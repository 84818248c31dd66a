"""Aggregation: what counts, what is missing and why, what may not stand in one table."""

import json
from dataclasses import replace

import pytest

from dypam.config import Backbone, ConfigError, Decode, Prompt, RunConfig, Runtime, Train
from dypam.files import as_json
from dypam.lease import Lease
from eval.aggregate import Grid, Key, collect, macro, micro
from tests.eval import toy

GRID = Grid("toy", ["tiny"], ["lora", "dypam"], [1, 2])


@pytest.fixture
def results(tmp_path):
    for method, sums in (("lora", 2), ("dypam", 4)):
        for seed in GRID.seeds:
            toy.finish(tmp_path, "tiny", method, seed, {"sums": sums + seed, "picks": 5})
    return tmp_path


def run_dir(results, method="lora", seed=2):
    return results / "runs" / "toy" / "tiny" / method / f"seed{seed}"


def gather(results, **options):
    return collect(GRID, results, workers=options.pop("workers", 1), **options)


def test_averages():
    assert micro([(3, 8), (5, 10)]) == pytest.approx(100 * 8 / 18)
    assert macro([(3, 8), (5, 10)]) == pytest.approx((37.5 + 50) / 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_accuracies_by_seed(results, workers):
    found = gather(results, workers=workers)
    assert found.missing == {}
    assert found.notes == []
    assert found.by_seed("tiny", "dypam", "sums", "paper") == {1: 62.5, 2: 75.0}
    assert found.by_seed("tiny", "lora", "micro", "strict") == pytest.approx(
        {1: 100 * 8 / 18, 2: 100 * 9 / 18}
    )
    assert found.by_seed("tiny", "lora", "macro", "paper")[1] == pytest.approx(43.75)
    assert found.runs[Key("tiny", "lora", 1)].right("sums", "paper").sum() == 3
    assert found.suite.tests["picks"].answer == "letter5"


def test_new_scores_are_kept_and_ready_ones_used(results):
    gather(results, store=False)
    path = run_dir(results) / "scores.json"
    assert not path.exists()
    gather(results)
    scores = json.loads(path.read_text())
    scores["protocols"]["paper"]["sums"]["correct"] = 0
    path.write_text(json.dumps(scores))
    assert gather(results).by_seed("tiny", "lora", "sums", "paper")[2] == 0


def test_scores_of_a_leased_run_are_not_written(results):
    with Lease.acquire(run_dir(results)):
        assert gather(results).missing == {}
    assert not (run_dir(results) / "scores.json").exists()


def test_what_is_not_finished_is_missing_with_its_reason(results):
    toy.change_record(
        run_dir(results, "lora", 1), lambda r: r.update(status="failed", error="ValueError: NaN")
    )
    toy.change_record(run_dir(results, "dypam", 1), lambda r: r.update(status="running"))
    (run_dir(results, "lora", 2) / "record.json").unlink()
    (run_dir(results, "dypam", 2) / "record.json").write_text("{")
    found = gather(results)
    reasons = {str(key): why for key, why in found.missing.items()}
    assert reasons["tiny/lora/seed1"] == "failed: ValueError: NaN"
    assert reasons["tiny/dypam/seed1"] == "running"
    assert reasons["tiny/lora/seed2"] == "not started"
    assert "is damaged" in reasons["tiny/dypam/seed2"]
    assert found.runs == {}


def test_a_wrong_row_takes_its_run_out_and_is_named(results):
    path = run_dir(results) / "predictions" / "sums.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[1:], lines[3]]))
    found = gather(results)
    (why,) = found.missing.values()
    assert "duplicated row 'sums/3' (line 8)" in why
    assert "missing row 'sums/0'" in why
    assert found.by_seed("tiny", "lora", "picks", "paper") == {1: 50.0}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda i: i["train"].update(lr=0.1), "train.lr is 0.001 there, 0.1 here"),
        (lambda i: i["method"].update(r=8), "method.r"),
        (lambda i: i["backbone"].update(revision="x"), "backbone.revision"),
        (lambda i: i["suite"]["tests"]["sums"].update(rows=7), "suite.tests.sums.rows"),
        (lambda i: i["decode"].update(max_new_tokens=8), "decode.max_new_tokens"),
        (lambda i: i.update(seed=7), "holds run tiny/lora/seed7"),
    ],
)
def test_other_configurations_are_refused_by_name(results, change, named):
    toy.change_record(run_dir(results), lambda record: change(record["identity"]))
    with pytest.raises(ConfigError, match="tiny/lora/seed2") as caught:
        gather(results)
    assert named in str(caught.value)


def test_runs_on_other_backbone_weights_are_refused_by_name(results):
    """Under one name, as when a nano backbone was made anew; `base` has its digest from generation alone."""
    toy.change_record(run_dir(results, "lora"), lambda r: r.update(backbone={"weights_digest": "a" * 64}))
    base = toy.finish(results, "tiny", "base", 2, {"sums": 1, "picks": 1})
    grid = Grid("toy", ["tiny"], ["base", "lora"], [2])
    for digest in ("a" * 64, "b" * 64):
        toy.change_record(base, lambda r, digest=digest: r.update(generation={"weights_digest": digest}))
        if digest[0] == "a":
            assert collect(grid, results, workers=1).missing == {}
    with pytest.raises(
        ConfigError, match=r"tiny/base/seed2 and tiny/lora/seed2 .*weights are b{12} there, a{12} here"
    ):
        collect(grid, results, workers=1)


def test_a_run_of_another_configuration_than_asked_for_is_missing(tmp_path):
    run_dir = tmp_path / "runs/toy/tiny/lora/seed1"
    method = {"_target_": "x.Y", "name": "lora"}
    asked = RunConfig(
        Backbone("tiny", "Tiny", "x", {}), method, toy.suite(), Prompt(), Train(), Decode(), Runtime(),
        1, str(tmp_path), str(run_dir),
    )  # fmt: skip
    toy.finish(tmp_path, "tiny", "lora", 1, {"sums": 3, "picks": 5})
    toy.change_record(run_dir, lambda record: record.update(identity=as_json(asked.identity())))
    assert collect(Grid.of([asked]), tmp_path, workers=1).missing == {}
    other = replace(asked, train=replace(asked.train, lr=0.5))
    found = collect(Grid.of([other]), tmp_path, workers=1)
    assert found.runs == {}
    (why,) = found.missing.values()
    assert "another configuration (train.lr is 0.001 there, 0.5 here)" in why


def test_other_test_sets_between_methods_are_refused(results):
    for seed in GRID.seeds:
        toy.change_record(
            run_dir(results, "dypam", seed), lambda r: r["identity"]["suite"]["tests"].pop("picks") and None
        )
    with pytest.raises(ConfigError, match=r"suite\.tests\.picks"):
        gather(results)


def test_settings_that_may_differ_are_noted(results):
    for seed in GRID.seeds:
        toy.change_record(run_dir(results, "dypam", seed), lambda r: r["identity"]["train"].update(lr=0.01))
    assert gather(results).notes == ["Settings that differ between rows: train.lr."]


def test_what_auto_stood_for_is_noted_where_it_differs(results):
    for key, method in enumerate(GRID.methods):
        mode = {"precision": {"mode": ("fp32", "bf16")[key % 2]}, "generation": {"precision": "fp32"}}
        toy.change_record(run_dir(results, method), lambda r, mode=mode: r.update(mode))
    assert gather(results).notes == ["Settings that differ between rows: train.precision."]


def test_code_states_are_noted(results):
    change = {"git": {"commit": "b" * 40, "dirty": True}}
    toy.change_record(run_dir(results), lambda r: r["attempts"].append(change))
    assert gather(results).notes == [
        "Code states, with their number of runs: aaaaaaa (4), bbbbbbb with uncommitted changes (1)."
    ]
