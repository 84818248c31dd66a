"""The embedded suite: reproducible, held out by content, balanced, and right in every worked answer."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from data import minimath
from data.examples import LABELS, overlap
from data.fetch import DataError

FORMATS = minimath.FORMATS
OPTION = {"letter5": r"(\d+) \(([A-E])\)", "answer4": r"(\d+) \((answer[1-4])\)"}
PAPER = {
    "letter5": "A|B|C|D|E",
    "boolean": "true|false",
    "answer4": "answer1|answer2|answer3|answer4|answer5",
}


@pytest.fixture(scope="module")
def training():
    return minimath.train(name="train")


@pytest.fixture(scope="module")
def exams():
    return {answer: minimath.exam(name=answer, answer=answer) for answer in FORMATS}


def instruction(example: dict[str, str]) -> str:
    return example["prompt"].split("### Instruction:\n")[1].split("\n\n### Response:")[0]


def solve(example: dict[str, str], answer: str) -> str:
    """Solve a problem from its instruction alone: numbers by the story's words, then the options."""
    text = instruction(example)
    a, b = (int(number) for number in re.findall(r"\d+", text)[:2])
    sign = "*" if " each" in text else "-" if re.search("gives|takes", text) else "+"
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    if answer == "boolean":
        return str(int(re.search(r"Is it (\d+)\?", text)[1]) == value).lower()
    if answer in OPTION:
        return next(name for number, name in re.findall(OPTION[answer], text) if int(number) == value).lower()
    return str(value)


def test_the_seed_makes_the_set() -> None:
    assert minimath.train(name="t", size=40).to_list() == minimath.train(name="t", size=40).to_list()
    assert minimath.train(name="t", size=40)["prompt"] != minimath.train(name="t", size=40, seed=1)["prompt"]
    one, other = (minimath.exam(name="t", answer="number", seed=seed)["prompt"] for seed in (0, 1))
    assert one != other


def test_sizes_and_ids(training, exams) -> None:
    assert len(training) == 2000
    assert training["id"][:2] == ["train/0", "train/1"]
    assert all(len(exam) == 100 for exam in exams.values())


def test_every_label_follows_from_the_instruction(training, exams) -> None:
    for answer, exam in exams.items():
        assert [solve(example, answer) for example in exam] == [label.lower() for label in exam["answer"]]
    for index, example in enumerate(training):
        assert solve(example, FORMATS[index % 4]) == example["answer"].lower()


def test_the_worked_answer_ends_in_the_label_and_hides_no_other(training) -> None:
    for index, example in enumerate(training):
        answer = FORMATS[index % 4]
        if answer == "number":
            assert re.findall(r"-?\d+\.?\d*", example["response"])[-1].rstrip(".") == example["answer"]
        else:
            assert set(re.findall(PAPER[answer], example["response"])) == {example["answer"]}


def test_labels_are_balanced(training, exams) -> None:
    for answer, labels in LABELS.items():
        if answer in FORMATS:
            assert Counter(exams[answer]["answer"]) == {label: 100 // len(labels) for label in labels}
            column = training["answer"][FORMATS.index(answer) :: 4]
            assert set(Counter(column).values()) == {500 // len(labels)}


def test_no_content_and_no_prompt_is_shared(training, exams) -> None:
    for exam in exams.values():
        assert minimath.shared(exam, training) == []
        assert overlap(exam, training) == []
        assert len({response.split(" =")[0] for response in exam["response"]}) == 100
    assert minimath.shared(minimath.exam(name="x", answer="number", seed=9), training) == []


def test_sharing_would_be_seen(training) -> None:
    seen = training.select([0])
    assert minimath.shared(seen, training) == ["train/0"]
    other = seen.to_list()[0] | {"prompt": "told otherwise"}
    assert minimath.shared(minimath.to_dataset([other]), training) == ["train/0"]


def test_order_does_not_make_a_content_new() -> None:
    held = {content for content in minimath.contents() if minimath.held_out(content)}
    assert all((sign, b, a) in held for sign, a, b in held if sign != "-")
    assert minimath.told("3 + 5 = 8.") == minimath.told("5 + 3 = 8.")
    assert minimath.told("5 - 3 = 2.") != minimath.told("3 - 5 = 2.")


def test_impossible_requests_are_told() -> None:
    with pytest.raises(DataError, match="ending4"):
        minimath.exam(name="x", answer="ending4")
    with pytest.raises(DataError, match="9999"):
        minimath.exam(name="x", answer="number", size=9999)
