"""Turn data files into examples: `datasets.Dataset` with the string columns id, prompt, response, answer.

`prompt` is the whole Alpaca template (no BOS; `data.collate` adds it), `response` what training supervises,
`answer` the label in the normal form of its answer format.  Rows keep the order and the duplicates of their
file, so an id (`<name>/<index in the file>`) never changes.  A source is a function that a YAML names by
`_target_`; it takes `files: data.fetch.Files` as a keyword; `load` calls it.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from data.fetch import DataError, Files, manifest

if TYPE_CHECKING:
    from datasets import Dataset

TEMPLATE = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)
# Alpaca's own wording for an instruction with an input; LLM-Adapters' files leave the input empty.
TEMPLATE_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
LABELS: dict[str, tuple[str, ...]] = {
    "letter5": ("A", "B", "C", "D", "E"),
    "boolean": ("true", "false"),
    "solution2": ("solution1", "solution2"),
    "answer3": ("answer1", "answer2", "answer3"),
    "answer4": ("answer1", "answer2", "answer3", "answer4"),
    "answer5": ("answer1", "answer2", "answer3", "answer4", "answer5"),
    "ending4": ("ending1", "ending2", "ending3", "ending4"),
    "option2": ("option1", "option2"),
}


def prompt(instruction: str, context: str = "") -> str:
    """Return the Alpaca prompt of an instruction, up to and including the newline after `### Response:`."""
    template = TEMPLATE_WITH_INPUT if context else TEMPLATE
    return template.format(instruction=instruction, input=context)


def digest(text: str) -> str:
    """Return the first 16 hex digits of the SHA-256 of a text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def normalise(answer: str, answer_format: str) -> str:
    """Return a label in its normal form: a number without commas or a bare `.0`, an option as it is.

    Raises:
        DataError: the label is none of the format's.
    """
    text = answer.strip()
    if answer_format != "number":
        if text not in LABELS[answer_format]:
            options = "/".join(LABELS[answer_format])
            raise DataError(f"Answer {text!r} is none of {options}; check the test set's `answer`.")
        return text
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        raise DataError(f"Answer {text!r} is no number; check the test set's `answer`.") from None
    return str(int(value)) if value.is_integer() else repr(value)


def choose(count: int, limit: int | None, seed: int) -> list[int]:
    """Return `limit` of the indices below `count`, chosen by seed, ascending; all without a limit."""
    if limit is None:
        return list(range(count))
    if not 0 < limit <= count:
        raise DataError(f"limit is {limit}, but the file has {count} rows; give 1 to {count} or null.")
    return sorted(random.Random(seed).sample(range(count), limit))


def load(source: Mapping[str, Any], files: Files) -> Dataset:
    """Call the source named by a suite's `train` or a test set's `source`; `DataError` stays unwrapped."""
    from hydra.utils import instantiate

    return instantiate(dict(source), _partial_=True)(files=files)


def llm_adapters(
    *, files: Files, file: str, name: str, answer: str | None = None, limit: int | None = None, seed: int = 0
) -> Dataset:
    """Load a file of LLM-Adapters (rows of instruction, input, output, answer).

    Args:
        files: where files come from.
        file: its key in the manifest.
        name: first part of the examples' ids.
        answer: the answer format, by which labels are checked and normalised; None keeps them.
        limit: take that many rows only, chosen by `seed`.
        seed: seed of the choice.
    """
    rows = _load(files, file)
    return to_dataset(
        {
            "id": f"{name}/{index}",
            "prompt": prompt(rows[index]["instruction"], rows[index].get("input") or ""),
            "response": rows[index]["output"],
            "answer": normalise(rows[index]["answer"], answer) if answer else str(rows[index]["answer"]),
        }
        for index in choose(len(rows), limit, seed)
    )


def gsm8k_instruct(*, files: Files, file: str, name: str, limit: int | None = None, seed: int = 0) -> Dataset:
    """Turn GSM8K's own file (rows of question, answer) into the instruction format.

    The response is the worked solution without the calculator marks `<<…>>`, ending in "The answer is N.".
    """
    rows = _load(files, file)
    chosen = []
    for index in choose(len(rows), limit, seed):
        working, _, final = rows[index]["answer"].rpartition("####")
        label = normalise(final, "number")
        working = re.sub(r"<<[^<>]*>>", "", working).strip()
        chosen.append(
            {
                "id": f"{name}/{index}",
                "prompt": prompt(rows[index]["question"]),
                "response": f"{working}\nThe answer is {label}.",
                "answer": label,
            }
        )
    return to_dataset(chosen)


def overlap(tests: Dataset, train: Dataset) -> list[str]:
    """Return the ids of test examples whose prompt stands in the training set.

    Prompts are compared without case, spaces and punctuation, in which copies of one question differ.
    """
    seen = {_bare(text) for text in train["prompt"]}
    return [name for name, text in zip(tests["id"], tests["prompt"], strict=True) if _bare(text) in seen]


def to_dataset(rows: Iterable[dict[str, str]]) -> Dataset:
    """Build an in-memory dataset from rows of id, prompt, response and answer."""
    from datasets import Dataset

    return Dataset.from_list(list(rows))


def _bare(text: str) -> str:
    return re.sub(r"\W+", "", text).lower()


def _load(files: Files, key: str) -> Sequence[dict[str, Any]]:
    """Read a JSON or JSONL file through `datasets` and check its number of rows."""
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    path = files(key)
    loaded = Dataset.from_json(str(path), cache_dir=str(files.cache / "datasets"))
    expected = manifest()[key].rows
    if len(loaded) != expected:
        raise DataError(
            f"{path} has {len(loaded)} rows where data/manifest.yaml says {expected}; mend the manifest."
        )
    return loaded.to_list()
