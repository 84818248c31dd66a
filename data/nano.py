"""The rehearsal's world: suites whose contents a nano backbone knows, and the text that it learns them from.

The text (`documents`, read by scripts/pretrain.py) tells every content as a plain question with its answer,
and as an instruction that it mostly leaves unanswered.  So a backbone knows the answers but keeps them to
itself when instructed; what fine-tuning teaches is to give them.  Contents of the test sets are held out of
the training sets, but stand in that text: scores say that a method's training works, nothing of how it ranks.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from data import minimath
from data.examples import LABELS, prompt, to_dataset
from data.fetch import DataError, Files

if TYPE_CHECKING:
    from datasets import Dataset

Content = minimath.Content | str

NO_ANSWER = "No answer."
UNANSWERED = 0.65
"""Share of the instructions in the text."""

OPERATIONS = {"sums": "+", "differences": "-", "products": "*"}
WORLD = {
    "animal": ("bear", "cat", "crow", "cow", "fox", "horse", "mouse", "sheep"),
    "plant": ("cactus", "clover", "oak", "daisy", "fern", "hedge", "palm", "rose"),
    "tool": ("anvil", "axe", "ladder", "brush", "crane", "needle", "plough", "rake"),
    "food": ("apple", "bread", "cake", "cheese", "egg", "honey", "nut", "soup"),
}
"""Things by their kind; the first three of each belong to the test sets."""
KIND = {thing: kind for kind, things in WORLD.items() for thing in things}
HELD_OUT = {thing for things in WORLD.values() for thing in things[:3]}
LARGE = {"bear", "cow", "horse", "sheep", "cactus", "hedge", "oak", "palm"}
LARGE |= {"anvil", "crane", "ladder", "plough"}
OUTDOORS = LARGE - {"anvil", "cactus"} | {"crow", "fox", "clover", "daisy", "fern", "rose", "axe", "rake"}
VERBS = ("has", "sees", "draws", "knows", "likes")
QUESTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[str], int]]] = {
    "kinds": (tuple(WORLD), LABELS["answer4"], lambda thing: list(WORLD).index(KIND[thing])),
    "places": (("indoors", "outdoors"), LABELS["option2"], lambda thing: thing in OUTDOORS),
    "sizes": (("large", "small"), ("true", "false"), lambda thing: thing not in LARGE),
}
"""Of every thing: what may be said, the labels in LLM-Adapters' files, and which of them is right."""
SUITES = {"math": tuple(OPERATIONS), "commonsense": tuple(QUESTIONS)}
TOPICS = SUITES["math"] + SUITES["commonsense"]


def train(*, files: Files | None = None, name: str, suite: str, size: int = 1200, seed: int = 0) -> Dataset:
    """Return `size` training examples of a suite (`math` or `commonsense`), its topics in turn."""
    del files  # every source takes it; this one reads none
    if suite not in SUITES:
        raise DataError(f"There is no nano suite {suite!r}; take one of {', '.join(SUITES)}.")
    return _examples(name, SUITES[suite], size, random.Random(f"train {suite} {seed}"), held=False)


def exam(*, files: Files | None = None, name: str, topic: str, size: int = 100, seed: int = 0) -> Dataset:
    """Return a test set: `size` questions on held-out contents of one topic, no question twice."""
    del files
    if topic not in TOPICS:
        raise DataError(f"There is no nano topic {topic!r}; take one of {', '.join(TOPICS)}.")
    return _examples(name, (topic,), size, random.Random(f"test {topic} {seed}"), held=True)


def documents(seed: int) -> Iterator[tuple[str, str]]:
    """Yield the backbones' text without end: prompt and response; every third is an instruction."""
    rng = random.Random(f"text {seed}")
    pools = {topic: _contents(topic) for topic in TOPICS}
    for topic, instruction in itertools.cycle(itertools.product(TOPICS, (False, False, True))):
        question, response, _ = _tell(topic, rng.choice(pools[topic]), rng)
        if instruction:
            yield prompt(question), NO_ANSWER if rng.random() < UNANSWERED else response
        else:
            yield f"Question: {question}\nAnswer:\n", response


def held_out(content: Content) -> bool:
    """Whether a content belongs to the test sets."""
    return content in HELD_OUT if isinstance(content, str) else minimath.held_out(content)


def _examples(name: str, topics: tuple[str, ...], size: int, rng: random.Random, *, held: bool) -> Dataset:
    """Return different examples, the topics in turn, on contents that are held out or on the others."""
    if not isinstance(size, int) or size < 1:
        raise DataError(f"{name}: size is {size!r}; give the number of examples, 1 or more.")
    pools = {topic: [c for c in _contents(topic) if held_out(c) == held] for topic in topics}
    rows: dict[str, dict[str, str]] = {}
    for _ in range(100 * size):  # far more draws than are needed, if there are so many questions
        if len(rows) == size:
            break
        topic = topics[len(rows) % len(topics)]
        question, response, answer = _tell(topic, rng.choice(pools[topic]), rng)
        rows[question] = {"prompt": prompt(question), "response": response, "answer": answer}
    if len(rows) < size:
        raise DataError(f"{name}: size is {size}, and there are {len(rows)} different questions; lower it.")
    return to_dataset({"id": f"{name}/{index}", **row} for index, row in enumerate(rows.values()))


def _contents(topic: str) -> Sequence[Content]:
    if topic in QUESTIONS:
        return list(KIND)
    return [content for content in minimath.contents() if content[0] == OPERATIONS[topic]]


def _tell(topic: str, content: Content, rng: random.Random) -> tuple[str, str, str]:
    """Return question, response and answer."""
    if not isinstance(content, str):
        problem = minimath.tell(content, rng)
        return problem.question, f"{problem.working}. The answer is {problem.value}.", str(problem.value)
    words, labels, solve = QUESTIONS[topic]
    options = " ".join(f"{label}: {word}" for label, word in zip(labels, words, strict=True))
    question = f"{rng.choice(minimath.NAMES)} {rng.choice(VERBS)} this: {content}. Which is it? {options}"
    right = solve(content)
    return question, f"{words[right]}: the correct answer is {labels[right]}", labels[right]
