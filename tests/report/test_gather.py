import json
import shutil
import subprocess
import sys

import pytest

from eval.aggregate import Source
from eval.report import gather, samples
from tests.eval import toy
from tests.report import synthetic


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two backbones, three methods, two seeds; a failed run; a nano run; runs that are named as published."""
    folder = tmp_path_factory.mktemp("results")
    given = synthetic.suite({"sums": 12, "picks": 10})
    synthetic.write_study(folder, given, ["llama-x", "gemma-x"], ["dypam", "lora", "ia3"], [2333, 1000])
    synthetic.write_run(folder, given, "llama-x", "rosa", 2333, status="failed")
    synthetic.write_run(folder, given, "nano-llama", "dypam", 2333)
    synthetic.as_published(folder)
    synthetic.write_run(folder, given=synthetic.suite({"multiarith": 600}, "math10k"), backbone="nano-llama",
                        method="dypam", seed=2333, words=1)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def gathered(results):
    return gather.gather(results, Source(), workers=1)


def find(gathered, **wanted):
    rows = gather.index(gathered)["runs"]
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


def test_every_run_is_there_with_its_status_and_reason(gathered):
    assert len(gathered.runs) == 17
    failed = find(gathered, method="rosa")
    assert failed["status"] == "failed"
    assert "made-up failure" in failed["why"]
    assert failed["cells"] == {}


def test_cells_are_the_scores_with_intervals(gathered):
    row = find(gathered, suite="toy", backbone="llama-x", method="lora", seed=1000)
    (found,) = [f for f in gathered.scored("toy") if str(f.key) == "llama-x/lora/seed1000"]
    for protocol in ("paper", "strict"):
        cells = row["cells"][protocol]
        assert list(cells) == ["sums", "picks", "micro", "macro"]
        counts = found.run.scores[protocol]
        assert cells["sums"][0] == pytest.approx(100 * counts["sums"]["correct"] / 12, abs=1e-3)
        assert cells["macro"][0] == pytest.approx((cells["sums"][0] + cells["picks"][0]) / 2, abs=1e-3)
        for value, low, high in cells.values():
            assert 0 <= low <= value <= high <= 100


def test_costs_come_from_the_record(gathered):
    row = find(gathered, suite="toy", backbone="gemma-x", method="lora", seed=2333)
    record = next(f.record for f in gathered.runs if str(f.key) == "gemma-x/lora/seed2333")
    assert row["params"] == pytest.approx(record["parameters"]["published_trained"] / 1e4)
    assert row["memory"] == record["peak_memory"]["train_bytes"] / 1e9
    assert row["train_speed"] == pytest.approx(1e6 / record["seconds"]["train"], abs=0.01)
    assert row["generate_speed"] == pytest.approx(50_000 / 90, abs=0.01)
    assert row["hours"] == pytest.approx(720 / 3600)


def test_published_numbers_stand_only_beside_what_can_be_compared(gathered):
    published = gather.index(gathered)["published"]
    assert published["toy"] == {}
    assert set(published["math10k"]) == {"llama-3.2-3b dypam", "llama-3.2-3b lora"}
    assert published["math10k"]["llama-3.2-3b lora"] == {"multiarith": 71.50}


def test_averages_are_compared_when_every_test_set_is_the_published_one():
    cells = gather.read_published("table1_math.csv")["llama-3.2-3b", "lora"]
    sizes = {"multiarith": 600, "gsm8k": 1319, "addsub": 395, "aqua": 254, "singleeq": 508, "svamp": 1000}
    whole = synthetic.suite({**sizes, "mawps": 238})
    assert gather._comparable(whole, cells)["micro"] == 54.96
    assert gather._comparable(whole, cells)["macro"] == 59.67
    assert "micro" not in gather._comparable(synthetic.suite(sizes), cells)
    assert "mawps" not in gather._comparable(synthetic.suite({**sizes, "mawps": 237}), cells)


def test_chapter_and_scaling_tables_are_found(tmp_path):
    given = synthetic.suite({"multiarith": 600}, "math10k")
    synthetic.write_run(tmp_path, given, "qwen3-0.6b", "lora", 2333, status="failed")
    # "lora" has another rank than the chapter's, "rosa_k_ratio_1_0" another share of layers
    for method in ("lora_r16", "lora", "rosa_block_norms", "rosa_k_ratio_1_0"):
        synthetic.write_run(tmp_path, given, "qwen2.5-7b", method, 2333, status="failed")
    published = gather.index(gather.gather(tmp_path, Source(), workers=1))["published"]["math10k"]
    assert published == {
        "qwen2.5-7b lora_r16": {"multiarith": 93.0},
        "qwen2.5-7b rosa_block_norms": {"multiarith": 94.3},
    }


def test_rehearsals_are_known_as_such(gathered):
    assert {row["backbone"] for row in gather.index(gathered)["runs"] if row["rehearsal"]} == {"nano-llama"}


def test_runs_that_do_not_fit_together_are_named_and_still_shown(tmp_path):
    given = synthetic.suite({"sums": 12, "picks": 10})
    synthetic.write_study(tmp_path, given, ["llama-x"], ["dypam"], [1000, 2000])
    path = tmp_path / "runs/toy/llama-x/dypam/seed2000"
    toy.change_record(path, lambda record: record["identity"]["train"].update(lr=0.5))
    found = gather.gather(tmp_path, Source(), workers=1)
    assert len(found.scored("toy")) == 2
    (warning,) = found.warnings
    assert "seed1000" in warning
    assert "train.lr" in warning


def test_a_run_outside_its_place_is_left_out_and_named(tmp_path):
    given = synthetic.suite({"sums": 12, "picks": 10})
    synthetic.write_study(tmp_path, given, ["llama-x"], ["dypam"], [1000, 2000])
    runs = tmp_path / "runs/toy/llama-x/dypam"
    shutil.copytree(runs / "seed1000", runs / "seed1000.old")
    found = gather.gather(tmp_path, Source(), workers=1)
    assert [run.key.seed for run in found.scored("toy")] == [1000, 2000]
    (warning,) = found.warnings
    assert "seed1000.old holds run toy/llama-x/dypam/seed1000 and is left out" in warning


def test_runs_on_other_test_sets_have_no_numbers(tmp_path):
    synthetic.write_study(
        tmp_path, synthetic.suite({"sums": 12, "picks": 10}), ["llama-x"], ["dypam"], [1000]
    )
    synthetic.write_study(tmp_path, synthetic.suite({"sums": 12}), ["llama-x"], ["lora"], [1000])
    found = gather.gather(tmp_path, Source(), workers=1)
    assert [run.key.method for run in found.scored("toy")] == ["dypam"]
    assert (
        "suite toy of run llama-x/dypam/seed1000 is another one (tests.picks"
        in find(found, method="lora")["why"]
    )
    assert [len(sheet.runs) for sheet in samples.sheets(found)] == [1, 1]
    assert len(found.warnings) == 1


def test_damage_is_named_and_the_rest_is_shown(tmp_path):
    given = synthetic.suite({"sums": 12, "picks": 10})
    synthetic.write_study(tmp_path, given, ["llama-x"], ["dypam"], [1000, 2000, 3000])
    runs = tmp_path / "runs/toy/llama-x/dypam"
    (runs / "seed1000/record.json").write_text("{torn")
    rows = (runs / "seed2000/predictions/sums.jsonl").read_text().splitlines(keepends=True)
    (runs / "seed2000/predictions/sums.jsonl").write_text("".join(rows[:3] + rows[4:]))
    found = gather.gather(tmp_path, Source(), workers=1)
    assert [w for w in found.warnings if "record.json" in w]
    assert [run.key.seed for run in found.scored("toy")] == [3000]
    assert "missing row 'sums/3'" in find(found, seed=2000)["why"]


def test_examples_that_cannot_be_had_leave_runs_unscored(tmp_path, monkeypatch):
    synthetic.write_study(tmp_path, synthetic.suite({"sums": 12}), ["llama-x"], ["dypam"], [1000])
    monkeypatch.setattr(gather, "collect", _no_data)
    found = gather.gather(tmp_path, Source(), workers=1)
    assert find(found, seed=1000)["why"] == "not scored: no mirror"


def _no_data(*_, **__):
    raise gather.DataError("no mirror")


def test_curves_are_thinned_by_means():
    rows = [{"step": step, "loss": float(step)} for step in range(1, 901)]
    steps, values = gather._curve(rows, "loss")
    assert len(steps) == 150
    assert steps[:2] == [6, 12]
    assert values[:2] == [3.5, 9.5]
    assert gather._curve([{"step": 1, "val_loss": None}], "val_loss") == [[], []]


def test_details_are_the_record_without_what_is_elsewhere(gathered):
    (one, *_) = gather.details(gathered)
    assert {"config", "versions", "attempts"} <= one.keys()
    assert "losses" not in one
    json.dumps(one)


def test_the_page_is_made_without_torch():
    code = "import sys, eval.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
