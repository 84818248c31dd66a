"""The rehearsal's suites and text: right, held out by content, balanced, all of it in the backbones' text."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pytest

from data import nano
from data.fetch import DataError
from eval.extract import agrees, extract, gold
from scripts import compose

EXAMS = {
    "sums": "number",
    "differences": "number",
    "products": "number",
    "kinds": "answer4",
    "places": "option2",
    "sizes": "boolean",
}


@pytest.fixture(scope="module")
def training():
    return {suite: nano.train(name=suite, suite=suite) for suite in nano.SUITES}


@pytest.fixture(scope="module")
def exams():
    return {topic: nano.exam(name=topic, topic=topic) for topic in nano.TOPICS}


@pytest.fixture(scope="module")
def text():
    return list(itertools.islice(nano.documents(0), 20_000))


def solve(prompt: str) -> str:
    """Solve a question from its words alone."""
    if thing := re.search(r"this: (\w+)\.", prompt):
        outdoors, large = thing[1] in nano.OUTDOORS, thing[1] in nano.LARGE
        words = {nano.KIND[thing[1]], "outdoors" if outdoors else "indoors", "large" if large else "small"}
        return next(label for label, word in re.findall(r"(\w+): (\w+)", prompt) if word in words)
    a, b = (int(number) for number in re.findall(r"\d+", prompt))
    return str(a * b if " each" in prompt else a - b if re.search("gives|takes", prompt) else a + b)


def content(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(re.findall(r"this: (\w+)|(\d+)|(each|gives|takes)", row["prompt"]))


def test_the_seed_makes_the_sets() -> None:
    one, same, other = (
        nano.train(name="t", suite="math", size=30, seed=seed).to_list() for seed in (0, 0, 1)
    )
    assert one == same != other
    one, other = (nano.exam(name="t", topic="kinds", seed=seed)["prompt"] for seed in (0, 1))
    assert one != other


@pytest.mark.parametrize("topic", EXAMS)
def test_every_answer_is_right_and_every_question_different(exams, topic) -> None:
    rows = exams[topic].to_list()
    assert [row["id"] for row in rows] == [f"{topic}/{index}" for index in range(100)]
    assert all(row["answer"] == solve(row["prompt"]) for row in rows)
    assert len({row["prompt"] for row in rows}) == 100


@pytest.mark.parametrize(("topic", "answer"), EXAMS.items())
def test_both_protocols_read_the_responses_and_nothing_in_no_answer(exams, topic, answer) -> None:
    task = compose.compose([f"+testset@t=nano_{topic}"]).t
    assert (task.answer, task.rows) == (answer, len(exams[topic]))
    for protocol in ("paper", "strict"):
        for row in exams[topic]:
            spaced = re.sub(
                r"([^\w\s])", r" \1", row["response"]
            )  # as the backbones' tokenizer gives it back
            assert agrees(extract(protocol, answer, spaced), gold(answer, row["answer"]))
        assert extract(protocol, answer, nano.NO_ANSWER) is None


@pytest.mark.parametrize("suite", nano.SUITES)
def test_training_has_all_topics_and_no_content_of_the_test_sets(training, exams, suite) -> None:
    rows = training[suite].to_list()
    assert len(rows) == 1200
    assert all(row["answer"] == solve(row["prompt"]) for row in rows)
    tested = {content(row) for topic in nano.SUITES[suite] for row in exams[topic]}
    assert tested
    assert not tested & {content(row) for row in rows}


def test_answers_of_the_test_sets_are_balanced(exams) -> None:
    counts = {topic: Counter(exams[topic]["answer"]) for topic in nano.SUITES["commonsense"]}
    assert [len(found) for found in counts.values()] == [4, 2, 2]
    assert all(min(found.values()) > 60 / len(found) for found in counts.values()), counts


def test_the_text_tells_all_there_is(text, exams, training) -> None:
    told = {response for _, response in text}
    for rows in (*exams.values(), *training.values()):
        assert set(rows["response"]) <= told


def test_the_text_answers_plain_questions_and_mostly_no_instructions(text) -> None:
    plain = [response for prompt, response in text if prompt.startswith("Question:")]
    instructed = [response for prompt, response in text if "### Instruction:" in prompt]
    assert len(plain) + len(instructed) == len(text)
    assert len(instructed) / len(text) == pytest.approx(1 / 3, abs=0.001)
    assert nano.NO_ANSWER not in plain
    share = instructed.count(nano.NO_ANSWER) / len(instructed)
    assert share == pytest.approx(nano.UNANSWERED, abs=0.02)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "size is 0; give the number"),
        ("many", "size is 'many'"),
        (10**4, "there are 720"),
    ],
)
def test_a_size_that_cannot_be_is_refused(size, message) -> None:
    with pytest.raises(DataError, match=message):
        nano.exam(name="t", topic="kinds", size=size)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(DataError, match="no nano topic 'sum'; take one of sums, "):
        nano.exam(name="t", topic="sum")
    with pytest.raises(DataError, match="no nano suite 'maths'; take one of math, commonsense"):
        nano.train(name="t", suite="maths")
