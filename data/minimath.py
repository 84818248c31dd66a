"""The embedded suite: generated one-step word problems with worked answers in four answer formats.

A problem is an operation on two small numbers told as a story.  About four in ten contents (operation and
numbers, without regard to their order in sums and products) are held out: training draws from the others,
test sets from the held-out ones, each content once a set.  The border is a hash of the content, so no choice
of seeds or sizes mixes them.  Labels are balanced.

The answer formats are those of LLM-Adapters' files, but an option's label stands behind its value, and the
worked answer looks the value up ("8 + 3 = 11 (B)."): so a small model learns the content of every set in
a few hundred steps, by copying what followed the value; with the label in front it learns only the format.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from data.examples import LABELS, prompt, to_dataset
from data.fetch import DataError, Files

if TYPE_CHECKING:
    from datasets import Dataset

Content = tuple[str, int, int]

NAMES = ("Mia", "Tom", "Sam", "Lily", "Noah", "Ruth", "Omar", "Zoe", "Hugo", "Nina", "Leo", "Ivy")
THINGS = ("apples", "books", "coins", "shells", "stamps", "marbles", "pencils", "cards", "stones", "buttons")
STORIES = {
    "+": (
        "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
        "There are {a} {things} in one box and {b} {things} in another. How many {things} are there?",
    ),
    "-": (
        "{name} has {a} {things} and gives {b} away. How many {things} does {name} have now?",
        "There are {a} {things} in a box and {name} takes {b} of them. How many {things} are left?",
    ),
    "*": (
        "{name} has {a} bags with {b} {things} in each. How many {things} does {name} have?",
        "There are {a} boxes with {b} {things} in each. How many {things} are there?",
    ),
}
FORMATS = ("number", "letter5", "boolean", "answer4")


@dataclass(frozen=True)
class Problem:
    """A told content: the `question`, the `working` that solves it and its `value`."""

    question: str
    working: str
    value: int


def contents() -> list[Content]:
    """Return every content (operation, a, b) that a problem may have."""
    sums = [("+", a, b) for a in range(2, 13) for b in range(2, 13)]
    differences = [("-", a, b) for a in range(4, 19) for b in range(2, a - 1)]
    products = [("*", a, b) for a in range(2, 10) for b in range(2, 10)]
    return sums + differences + products


def held_out(content: Content) -> bool:
    """Say whether a content belongs to the test sets; the same for a + b and b + a, a * b and b * a."""
    sign, a, b = content
    numbers = (a, b) if sign == "-" else (min(a, b), max(a, b))
    return zlib.crc32(f"{numbers[0]}{sign}{numbers[1]}".encode()) % 10 < 4


def train(*, files: Files | None = None, name: str, size: int = 2000, seed: int = 0) -> Dataset:
    """Return `size` training examples, the four formats in turn."""
    del files  # every source takes it; this one reads none
    rng = random.Random(f"train {seed}")
    pool = [content for content in contents() if not held_out(content)]
    formats = [FORMATS[index % len(FORMATS)] for index in range(size)]
    return to_dataset(
        _example(f"{name}/{index}", answer, rng.choice(pool), index // len(FORMATS), rng)
        for index, answer in enumerate(formats)
    )


def exam(*, files: Files | None = None, name: str, answer: str, size: int = 100, seed: int = 0) -> Dataset:
    """Return a test set of one answer format: `size` problems of different held-out contents."""
    del files
    rng = random.Random(f"test {answer} {seed}")
    pool = [content for content in contents() if held_out(content)]
    if answer not in FORMATS:
        raise DataError(f"minimath has no answer format {answer!r}; take one of {', '.join(FORMATS)}.")
    if not 0 < size <= len(pool):
        raise DataError(f"minimath's test sets have 1 to {len(pool)} problems, not {size}.")
    chosen = rng.sample(pool, size)
    return to_dataset(_example(f"{name}/{i}", answer, content, i, rng) for i, content in enumerate(chosen))


def shared(tests: Dataset, training: Dataset) -> list[str]:
    """Return the ids of test examples whose content or prompt stands in the training set.

    Contents are read from the worked answers and compared without regard to the order of numbers in sums and
    products.
    """
    seen = {told(text) for text in training["response"]} | set(training["prompt"])
    rows = zip(tests["id"], tests["prompt"], tests["response"], strict=True)
    return [name for name, text, response in rows if text in seen or told(response) in seen]


def told(response: str) -> Content:
    """Read the content off a worked answer, the smaller number first in sums and products."""
    found = re.match(r"(\d+) ([-+*]) (\d+) = ", response)
    if found is None:
        raise DataError(f"No working in {response!r}; only minimath's own examples can be compared.")
    a, sign, b = int(found[1]), found[2], int(found[3])
    return (sign, a, b) if sign == "-" else (sign, min(a, b), max(a, b))


def _example(name: str, answer: str, content: Content, turn: int, rng: random.Random) -> dict[str, str]:
    """Tell a content in an answer format; `turn` walks through the labels, which balances them."""
    problem = tell(content, rng)
    labels = LABELS.get(answer, ())
    label = labels[turn % len(labels)] if labels else str(problem.value)
    instruction, response = WRITERS[answer](problem, label, rng)
    return {"id": name, "prompt": prompt(instruction), "response": response, "answer": label}


def tell(content: Content, rng: random.Random) -> Problem:
    """Tell a content as one of its operation's stories, with names and things drawn by `rng`."""
    sign, a, b = content
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    story = rng.choice(STORIES[sign])
    question = story.format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b)
    return Problem(question, f"{a} {sign} {b} = {value}", value)


def _options(problem: Problem, label: str, labels: tuple[str, ...], rng: random.Random) -> list[int]:
    """Return different numbers near the value, the value itself at the place of `label`."""
    near = [value for value in range(max(1, problem.value - 6), problem.value + 7) if value != problem.value]
    options = rng.sample(near, len(labels) - 1)
    options.insert(labels.index(label), problem.value)
    return options


def _number(problem: Problem, label: str, rng: random.Random) -> tuple[str, str]:
    return problem.question, f"{problem.working}. The answer is {label}."


def _letter(problem: Problem, label: str, rng: random.Random) -> tuple[str, str]:
    labels = LABELS["letter5"]
    options = _options(problem, label, labels, rng)
    choices = ", ".join(f"{value} ({letter})" for letter, value in zip(labels, options, strict=True))
    return (
        f"{problem.question} Answer Choices: {choices}",
        f"{problem.working} ({label}). The answer is ({label}).",
    )


def _boolean(problem: Problem, label: str, rng: random.Random) -> tuple[str, str]:
    wrong = next(
        value for value in _options(problem, "true", ("true", "false"), rng) if value != problem.value
    )
    asked = problem.value if label == "true" else wrong
    instruction = (
        "Please answer the following question with true or false, question: "
        f"{problem.question} Is it {asked}?\n\nAnswer format: true/false"
    )
    return instruction, f"{problem.working}, asked {asked}. the correct answer is {label}"


def _answer(problem: Problem, label: str, rng: random.Random) -> tuple[str, str]:
    labels = LABELS["answer4"]
    options = _options(problem, label, labels, rng)
    choices = ", ".join(f"{value} ({name})" for name, value in zip(labels, options, strict=True))
    instruction = (
        f"Please choose the correct answer to the question: {problem.question}\n\n{choices}\n\n"
        f"Answer format: {'/'.join(labels)}"
    )
    return instruction, f"{problem.working} ({label}). the correct answer is {label}"


WRITERS: dict[str, Callable[[Problem, str, random.Random], tuple[str, str]]] = {
    "number": _number,
    "letter5": _letter,
    "boolean": _boolean,
    "answer4": _answer,
}
