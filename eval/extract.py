"""From a response to an answer: the two scoring protocols, as pure functions on text.

`paper` is LLM-Adapters' extraction to the letter, faults included, because the published numbers were scored
with it.  `strict` reads what the response states as its answer.  Both are kept beside each other everywhere.

`paper`
    number: commas stripped, the last match of ``-?\\d+\\.?\\d*``.
    letter: the first ``A|B|C|D|E`` anywhere, in words too.
    labels: the first label, case-sensitive, inside words too; every answerN set is read with answer1–answer5.
`strict`
    The response ends where it starts a new prompt (``### Instruction``).  The answer is what follows
    the last cue ("answer is", "Answer:", ``####``, ``\\boxed{``) that has an answer after it.  Without one
    it is the last number of the response, or its only letter or label (two different ones are no answer).
    number: 1,234.5  .5  1.5e3  1.5 × 10^3  3/4  2 1/2  \\frac{3}{4}  -$5  15.  15%; a minus between two
    operands is a subtraction and not a sign; a stated sum counts only by what stands after its last ``=``;
    digits inside words (x2, answer1) are no numbers.
    letter: stands alone, upper case or in parentheses; not the article, not the "A:" that opens an answer.
    labels: whole words, any case, "answer 1" too; only the labels of this format.

Numbers agree within 1e-3, everything else exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from data.examples import LABELS

Answer = str | float | None
Extractor = Callable[[str], Answer]

TOLERANCE = 1e-3
FORMATS: dict[str, tuple[str, ...]] = {"number": (), **LABELS}
"""Answer formats: the labels of each; none for numbers."""


@dataclass(frozen=True)
class Protocol:
    """A named way to read answers: one function for numbers, one that makes a reader of a format's labels."""

    name: str
    number: Callable[[str], float | None]
    choice: Callable[[str], Callable[[str], str | None]]

    def extractor(self, answer_format: str) -> Extractor:
        """Return the function that reads one answer format; raise `ValueError` on an unknown format."""
        if answer_format not in FORMATS:
            raise ValueError(f"answer format {answer_format!r} is unknown; use one of {', '.join(FORMATS)}.")
        return self.number if answer_format == "number" else self.choice(answer_format)


def extract(protocol: str, answer_format: str, text: str) -> Answer:
    """Return the answer that `text` gives under a protocol: a number, a label, or None if it gives none."""
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol {protocol!r} is unknown; use one of {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[protocol].extractor(answer_format)(text)


def gold(answer_format: str, answer: str) -> str | float:
    """Return the value of a test set's own answer; raise `ValueError` if it is not one of its format."""
    if answer_format not in FORMATS:
        raise ValueError(f"answer format {answer_format!r} is unknown.")
    if answer_format == "number":
        try:
            return float(answer.replace(",", ""))
        except ValueError:
            raise ValueError(f"{answer!r} is no number.") from None
    if answer not in FORMATS[answer_format]:
        raise ValueError(f"{answer!r} is none of {', '.join(FORMATS[answer_format])}.")
    return answer


def agrees(predicted: Answer, expected: str | float) -> bool:
    """Tell whether an extracted answer is right: numbers within 1e-3, labels exactly."""
    if isinstance(expected, str):
        return predicted == expected
    return isinstance(predicted, float) and abs(expected - predicted) <= TOLERANCE


def judge(
    protocol: str, answer_format: str, responses: Sequence[str], expected: Sequence[str | float]
) -> np.ndarray:
    """Return one bool per response; equal responses are read once (short answers repeat by thousands)."""
    read = PROTOCOLS[protocol].extractor(answer_format)
    seen: dict[str, Answer] = {}
    right = np.zeros(len(responses), dtype=bool)
    for index, (response, value) in enumerate(zip(responses, expected, strict=True)):
        if response not in seen:
            seen[response] = read(response)
        right[index] = agrees(seen[response], value)
    return right


# --- paper -----------------------------------------------------------------------------------------------

_PAPER_NUMBER = re.compile(r"-?\d+\.?\d*")
_OUTSIDE_NUMBER = re.compile(r"[^\d.,-]")
_TAIL = 64


def _paper_number(text: str) -> float | None:
    # No match spans a character outside [digits . , -], so matching may start behind any such character.
    tail = text[-_TAIL:]
    boundary = _OUTSIDE_NUMBER.search(tail) if len(text) > _TAIL else None
    found = _PAPER_NUMBER.findall(tail[boundary.end() :].replace(",", "")) if boundary else []
    found = found or _PAPER_NUMBER.findall(text.replace(",", ""))
    return float(found[-1]) if found else None


def _paper_choice(answer_format: str) -> Callable[[str], str | None]:
    labels = FORMATS["answer5"] if answer_format.startswith("answer") else FORMATS[answer_format]
    search = re.compile("|".join(labels)).search

    def read(text: str) -> str | None:
        found = search(text)
        return found.group() if found else None

    return read


# --- strict ----------------------------------------------------------------------------------------------

_NEW_PROMPT = "### Instruction"
_CUE = re.compile(
    r"\b(?:answer|option|choice|solution|ending)\b\W{0,3}(?:(?:is|was|are|be)(?!\w)|[=:])|####|\\boxed\s*\{",
    re.IGNORECASE,
)
_CUE_WORDS = ("answer", "option", "choice", "solution", "ending", "####", "\\boxed")
_GAP = re.compile(r"\W*(?:(?:the|correct|option|choice|letter)\W+)*", re.IGNORECASE)
_SIGN = "[-\u2212\u2013]"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_NUMBER = re.compile(
    rf"(?P<sign>{_SIGN})?(?:\\?[$€£])?(?P<inner>{_SIGN})?"
    rf"(?:\\d?frac\{{(?P<top>\d+)\}}\{{(?P<bottom>\d+)\}}"
    rf"|(?<!\w)(?<!\d\.)(?:(?:(?P<whole>\d+) )?(?P<over>\d+)/(?P<under>\d+)(?![\d/]|\.\d)"
    rf"|(?P<plain>{_DIGITS}(?:\.\d+)?|\.\d+)"
    rf"(?:[eE](?P<exponent>[-+]?\d{{1,3}})(?!\w)"
    rf"|\s?(?:[x×*]|\\times)\s?10(?:\^|\*\*)\{{?(?P<power>{_SIGN}?\d{{1,3}})\}}?)?))"
)
_LINK = re.compile(
    rf"[^\S\n]{{0,3}}(?:%|[A-Za-z]{{1,12}}\.?)?[^\S\n]{{0,3}}"
    rf"(?P<sign>[+*/×÷=x]|{_SIGN})[^\S\n]{{0,3}}\(?(?=[$€£.\d]|{_SIGN})"
)


def _value(found: re.Match[str]) -> float | None:
    """Turn a match of `_NUMBER` into its value."""
    part = found.groupdict()
    if part["top"] or part["over"]:
        above, below = float(part["top"] or part["over"]), float(part["bottom"] or part["under"])
        if not below:
            return None
        value = float(part["whole"] or 0) + above / below
    else:
        power = (part["exponent"] or part["power"] or "").replace("\u2212", "-").replace("\u2013", "-")
        value = float(part["plain"].replace(",", "") + (f"e{power}" if power else ""))
    if part["inner"] or (part["sign"] and not _subtracts(found)):
        value = -value
    return value if math.isfinite(value) else None


def _subtracts(found: re.Match[str]) -> bool:
    """Tell whether the minus before a number is an operator: it touches a word, or follows an operand."""
    before = found.string[: found.start()]
    operand = before.rstrip()[-1:]
    return before[-1:].isalnum() or operand.isdigit() or operand in {")", "%", "]", "}"}


def _stated(text: str, first: re.Match[str]) -> float | None:
    """Follow ``a + b = c`` from its first number to what stands after the last ``=``; no ``=``, no answer."""
    result: re.Match[str] | None = first
    last = first
    while (link := _LINK.match(text, last.end())) and (following := _NUMBER.match(text, link.end())):
        last = following
        result = last if link["sign"] == "=" else None
    return _value(result) if result else None


def _starts(text: str, words: tuple[str, ...]) -> list[int]:
    """Return where any of `words` stands in `text`, whatever its case; faster than a regex by much."""
    lowered = text.lower()
    if len(lowered) != len(text):  # the one letter that grows, İ
        lowered = text.replace("\u0130", "I").lower()
    starts = []
    for word in words:
        start = lowered.find(word)
        while start >= 0:
            starts.append(start)
            start = lowered.find(word, start + 1)
    return sorted(starts)


def _cues(text: str) -> Iterator[int]:
    """Yield where each cue ends, the last cue first."""
    for start in reversed(_starts(text, _CUE_WORDS)):
        if cue := _CUE.match(text, start):
            yield cue.end()


def _strict_number(text: str) -> float | None:
    text = text.partition(_NEW_PROMPT)[0]
    for end in _cues(text):
        if found := _NUMBER.search(text, end):
            return _stated(text, found)
    numbers = list(_NUMBER.finditer(text))
    return _value(numbers[-1]) if numbers else None


def _letter(found: re.Match[str]) -> str:
    return next(filter(None, found.groups())).upper()


def _label(found: re.Match[str]) -> str:
    return "".join(found.group().split()).lower()


def _strict_choice(answer_format: str) -> Callable[[str], str | None]:
    labels, name = FORMATS[answer_format], _label
    stems: tuple[str, ...] = ()
    if answer_format == "letter5":
        name = _letter
        alone = r"(?<![\w'])\(([A-Ea-e])\)|(?<![\w'])([B-E]|A(?!:|\s+[a-z]))(?![\w'])"
        pattern = re.compile(rf"(?:(?<!\w)(?:[Oo]ption|[Cc]hoice)\s+([A-E])(?!\w))|{alone}")
    else:
        stems = tuple(dict.fromkeys(re.sub(r"\d$", "", label) for label in labels))
        spaced = "|".join(re.sub(r"(\d)$", r"\\s?\1", label) for label in labels)
        pattern = re.compile(rf"(?<!\w)(?:{spaced})(?!\w)", re.IGNORECASE)

    def every(text: str) -> Iterator[re.Match[str]]:
        if not stems:
            return pattern.finditer(text)
        return filter(None, (pattern.match(text, start) for start in _starts(text, stems)))

    def read(text: str) -> str | None:
        text = text.partition(_NEW_PROMPT)[0]
        for end in _cues(text):
            stated = pattern.search(text, end)
            if stated and _GAP.fullmatch(text, end, stated.start()):
                return name(stated)
        different = {name(found) for found in every(text)}
        return different.pop() if len(different) == 1 else None

    return read


PROTOCOLS: dict[str, Protocol] = {
    "paper": Protocol("paper", _paper_number, _paper_choice),
    "strict": Protocol("strict", _strict_number, _strict_choice),
}
