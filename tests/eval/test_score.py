"""Scoring: counts, and a named error for every row that is not exactly the test set's."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from data.fetch import DataError
from eval import score
from tests.eval import toy

RIGHT = {"sums": 3, "picks": 6}


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "seed1"


def damaged(run_dir, change):
    rows = toy.predict(run_dir, toy.suite(), RIGHT)["sums"]
    toy.write(run_dir, "sums", change(rows) or rows)
    with pytest.raises(score.ScoreError) as caught:
        score.score_run(run_dir, toy.suite(), None)
    assert not (run_dir / "scores.json").exists()
    return caught.value


def test_counts_of_both_protocols(run_dir):
    toy.predict(run_dir, toy.suite(), RIGHT, adapter="abc")
    scores = score.score_run(run_dir, toy.suite(), None)
    counts = scores["protocols"]["strict"]
    assert {name: (row["n"], row["correct"]) for name, row in counts.items()} == {
        "sums": (8, 3),
        "picks": (10, 6),
    }
    assert score.unpack(counts["sums"]["bits"], 8).tolist() == [True] * 3 + [False] * 5
    assert json.loads((run_dir / "scores.json").read_text()) == scores
    assert set(scores["protocols"]) == {"paper", "strict"}


def test_order_of_the_file_does_not_matter(run_dir):
    rows = toy.predict(run_dir, toy.suite(), RIGHT)["sums"]
    toy.write(run_dir, "sums", rows[::-1])
    counts = score.score_run(run_dir, toy.suite(), None)["protocols"]["strict"]["sums"]
    assert score.unpack(counts["bits"], 8).tolist() == [True] * 3 + [False] * 5


def test_ready_scores_are_used_until_an_input_changes(run_dir):
    rows = toy.predict(run_dir, toy.suite(), RIGHT)["sums"]
    first = score.score_run(run_dir, toy.suite(), None)
    marked = {**first, "marked": True}
    assert score.are_current(run_dir)
    (run_dir / "scores.json").write_text(json.dumps(marked))
    assert score.score_run(run_dir, toy.suite(), None) == marked
    toy.write(run_dir, "sums", [{**rows[0], "response": "9"}, *rows[1:]])
    assert not score.are_current(run_dir)
    again = score.score_run(run_dir, toy.suite(), None)
    assert again["protocols"]["strict"]["sums"]["correct"] == 2
    assert "marked" not in again


TORN = (
    "",
    "{",
    "[]",
    '{"protocols": 3}',
    '{"protocols": {"paper": {}}}',
    '{"protocols": {"paper": {}}, "inputs": []}',
    '{"protocols": {"paper": {}}, "inputs": {"predictions": {"sums": null}}}',
    '{"protocols": {}, "inputs": {"predictions": {}}}',
)


@pytest.mark.parametrize("torn", TORN)
def test_torn_scores_are_made_again(run_dir, torn):
    toy.predict(run_dir, toy.suite(), RIGHT)
    run_dir.joinpath("scores.json").write_text(torn)
    assert not score.are_current(run_dir)
    assert score.score_run(run_dir, toy.suite(), None)["protocols"]["paper"]["sums"]["n"] == 8


def test_a_folder_in_the_place_of_predictions_is_a_missing_file(run_dir):
    toy.predict(run_dir, toy.suite(), RIGHT)
    path = run_dir / "predictions" / "sums.jsonl"
    score.score_run(run_dir, toy.suite(), None)
    path.unlink()
    path.mkdir()
    assert not score.are_current(run_dir)
    with pytest.raises(score.ScoreError, match="the file is missing"):
        score.score_run(run_dir, toy.suite(), None)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows.pop(2) and None, "missing row 'sums/2'"),
        (lambda rows: rows.append(rows[2]), "duplicated row 'sums/2' (line 9)"),
        (lambda rows: rows.append({**rows[2], "id": "sums/99"}), "foreign row 'sums/99' (line 9)"),
        (lambda rows: rows[2].update(prompt="?"), "foreign row 'sums/2' (line 3) has another prompt"),
        (lambda rows: rows[2].update(prompt_digest="?"), "'sums/2' (line 3) has another prompt"),
        (lambda rows: rows[2].update(target_digest="?"), "'sums/2' (line 3) has another answer"),
        (
            lambda rows: rows[2].update(adapter_digest="x"),
            "'sums/2' (line 3) has adapter 'x' instead of 'none'",
        ),
        (lambda rows: rows[2].pop("response") and None, "'sums/2' (line 3) has no response"),
    ],
)
def test_every_wrong_row_is_named(run_dir, change, problem):
    error = damaged(run_dir, change)
    assert problem in str(error)
    assert len(error.problems) == 1


def test_damaged_line_is_named(run_dir):
    toy.predict(run_dir, toy.suite(), RIGHT)
    path = run_dir / "predictions" / "sums.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(score.ScoreError, match="line 8 is damaged; missing row 'sums/7'"):
        score.score_run(run_dir, toy.suite(), None)


def test_all_test_sets_are_reported_together(run_dir):
    toy.predict(run_dir, toy.suite(), RIGHT)
    for name in RIGHT:
        (run_dir / "predictions" / f"{name}.jsonl").unlink()
    with pytest.raises(score.ScoreError, match=r"sums.jsonl: the file is missing; picks.jsonl: the file"):
        score.score_run(run_dir, toy.suite(), None)


@pytest.mark.parametrize(
    ("answer", "named"),
    [("letter5", "'0' is none of A, B"), ("number", "'answer1' is no number"), ("word", "unknown")],
)
def test_an_answer_of_another_format_is_named(answer, named):
    held = "answer4" if answer == "number" else "number"
    test = replace(toy.make_set("sums", 8, held), answer=answer)
    with pytest.raises(DataError, match="test set sums: answer is") as caught:
        score.expected(test, None)
    assert named in str(caught.value)


def test_wrong_number_of_examples_is_an_error():
    test = toy.make_set("sums", 8)
    test.rows = 9
    with pytest.raises(DataError, match="sums: rows is 9, and it has 8 examples: set rows"):
        score.expected(test, None)


@pytest.mark.parametrize("n", [1, 7, 8, 1319])
def test_bits_come_back(n):
    right = np.random.default_rng(n).random(n) < 0.5
    assert (score.unpack(score.pack(right), n) == right).all()


def test_from_extraction_on_there_is_no_torch(run_dir):
    toy.predict(run_dir, toy.suite(), RIGHT)
    code = (
        "import sys; from pathlib import Path; from tests.eval import toy; from eval import score\n"
        f"score.score_run(Path({str(run_dir)!r}), toy.suite(), None)\n"
        "import importlib.util as u\n"
        "for name in ('stats', 'aggregate', 'tables', 'render'):\n"
        "    __import__(f'eval.{name}')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
