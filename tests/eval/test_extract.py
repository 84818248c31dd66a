"""Extraction: hand-written cases of both protocols, and LLM-Adapters' own responses."""

import json
import os
import random
import re
import time
from pathlib import Path

import pytest

from eval import extract

PAPER = [
    ("number", "The answer is 15.", 15.0),
    ("number", "It costs $1,234.50 in all", 1234.5),
    ("number", "10-3", -3.0),
    ("number", "1.5e3", 3.0),
    ("number", "3/4", 4.0),
    ("number", "no digits", None),
    ("number", "1, 2, 3", 3.0),
    ("number", "v1.2.3", 3.0),
    ("number", "The answer is 7. That took 20 minutes", 20.0),
    ("letter5", "A: He needs D", "A"),
    ("letter5", "Clearly the answer is (B)", "C"),
    ("letter5", "the answer is (b)", None),
    ("letter5", "  E", "E"),
    ("boolean", "the correct answer is true", "true"),
    ("boolean", "untrue, false", "true"),
    ("boolean", "True", None),
    ("solution2", "solution2 or solution1", "solution2"),
    ("answer3", "the correct answer is answer4", "answer4"),
    ("answer4", "answer10", "answer1"),
    ("ending4", "Ending1: no, ending3", "ending3"),
    ("option2", "option 1", None),
]
STRICT = [
    ("number", "The answer is 15.", 15.0),
    ("number", "The answer is 15. That took 20 minutes", 15.0),
    ("number", "It costs $1,234.50 in all", 1234.5),
    ("number", "1,2,3", 3.0),
    ("number", "so 10-3 = 7", 7.0),
    ("number", "10-3", 3.0),
    ("number", "He spent 10 - 3", 3.0),
    ("number", "10 -3", 3.0),
    ("number", "the answer is -25.", -25.0),
    ("number", "the answer is \u22125", -5.0),
    ("number", "The answer is -$5", -5.0),
    ("number", "The answer is $-5", -5.0),
    ("number", "x=-4", -4.0),
    ("number", "1.5e3", 1500.0),
    ("number", "about 1.5E-3", 0.0015),
    ("number", "1.5 × 10^3", 1500.0),
    ("number", r"$2 \times 10^{-2}$", 0.02),
    ("number", "3/4", 0.75),
    ("number", "2 1/2 cups", 2.5),
    ("number", "half is 1/0", None),
    ("number", r"\boxed{\frac{3}{4}}", 0.75),
    ("number", r"\boxed{-12} is it, of 30", -12.0),
    ("number", "#### 42", 42.0),
    ("number", ".5", 0.5),
    ("number", "50%", 50.0),
    ("number", "The answer is 3 + 4 = 7.", 7.0),
    ("number", "The answer is 6 pieces * 2.5 = 15 ounces", 15.0),
    ("number", "The answer is 2 x 3 = 6 = 12 / 2", None),
    ("number", "The answer is 10-3", None),
    ("number", "The answer is 5 miles/hour", 5.0),
    ("number", "The answer is 60/4 = 15", 15.0),
    ("number", "The answer is 4. No, the answer is 5.", 5.0),
    ("number", "The answer is 4. The answer is unclear", 4.0),
    ("number", "Answer: 12 apples", 12.0),
    ("number", "**Answer:** 12", 12.0),
    ("number", "The answer is 8.\n\n### Instruction:\nWhat is 3 + 4? The answer is 7", 8.0),
    ("number", "as answer1 says, H2O, x2", None),
    ("number", "15th of them", 15.0),
    ("number", "1" * 9000, None),
    ("number", "1" * 9000 + "/" + "1" * 9000, None),
    ("number", "", None),
    ("letter5", "A: He walks. The answer is (D).", "D"),
    ("letter5", "Clearly the answer is B", "B"),
    ("letter5", "the answer is (b)", "b".upper()),
    ("letter5", "The correct answer is option C.", "C"),
    ("letter5", "The answer is: the option E", "E"),
    ("letter5", "A is right? No. The answer is (A). Wait. The answer is (E).", "E"),
    ("letter5", "So option A is correct", "A"),
    ("letter5", "A man sees a dog", None),
    ("letter5", "(A) 5 (B) 6 (C) 7", None),
    ("letter5", "B) 6", "B"),
    ("letter5", "Divide by DC current, CAB", None),
    ("letter5", "The answer is 15 (C)", "C"),
    ("letter5", r"\boxed{D}", "D"),
    ("letter5", "The answer is A.", "A"),
    ("boolean", "The correct answer is True.", "true"),
    ("boolean", "untrue", None),
    ("boolean", "false. It is not true", None),
    ("boolean", "true, as it is true", "true"),
    ("boolean", "It is true at times, but the answer is false", "false"),
    ("solution2", "the correct solution is Solution 2", "solution2"),
    ("answer3", "the correct answer is answer4", None),
    ("answer4", "the correct answer is answer10", None),
    ("answer4", "Answer1: no. the correct answer is: **answer3**", "answer3"),
    ("answer5", "the correct answer is answer5", "answer5"),
    ("ending4", "The correct ending is ending 4", "ending4"),
    ("option2", "the correct answer is option 1", "option1"),
    ("option2", "option1 or option2", None),
]


@pytest.mark.parametrize(
    ("protocol", "answer_format", "text", "answer"),
    [("paper", *case) for case in PAPER] + [("strict", *case) for case in STRICT],
)
def test_cases(protocol, answer_format, text, answer):
    assert extract.extract(protocol, answer_format, text) == pytest.approx(answer)


def test_paper_number_is_the_plain_regex():
    """The shortcut through the end of the text gives what LLM-Adapters' findall over the whole gives."""
    random.seed(0)
    for _ in range(3000):
        text = "".join(random.choices("0123456789.,- \nab", k=random.randrange(150)))
        text = random.choice(["", "7 "]) + text + "-." * random.randrange(40)
        found = re.findall(r"-?\d+\.?\d*", text.replace(",", ""))
        assert extract.extract("paper", "number", text) == (float(found[-1]) if found else None)


def test_cues_are_those_of_the_plain_regex():
    random.seed(0)
    words = [
        "The answer is",
        "Answer:",
        "option",
        " option =",
        "ending",
        "spending is",
        "#### ",
        r"\\boxed{",
        "\u0130",
        "4",
    ]
    for _ in range(2000):
        text = " ".join(random.choices(words, k=random.randrange(9)))
        assert list(extract._cues(text)) == [m.end() for m in extract._CUE.finditer(text)][::-1]


def test_numbers_agree_within_a_thousandth():
    assert extract.agrees(1.001, 1.0)
    assert not extract.agrees(1.0011, 1.0)
    assert not extract.agrees(None, 1.0)
    assert not extract.agrees("A", "a")


def test_gold_refuses_what_is_no_answer():
    assert extract.gold("number", "1,024.0") == 1024.0
    with pytest.raises(ValueError, match="answer6"):
        extract.gold("answer4", "answer6")
    with pytest.raises(ValueError, match="'roman' is unknown"):
        extract.extract("paper", "roman", "IV")
    with pytest.raises(ValueError, match="'lax' is unknown"):
        extract.extract("lax", "number", "4")


@pytest.mark.parametrize("answer_format", [f for f in extract.FORMATS if f != "number"])
@pytest.mark.parametrize("protocol", list(extract.PROTOCOLS))
def test_every_label_is_read_back(protocol, answer_format):
    for label in extract.FORMATS[answer_format]:
        text = "the correct value: " if protocol == "strict" else ""
        assert extract.extract(protocol, answer_format, text + label) == label


@pytest.mark.parametrize(
    "text", ["9" * 20000, "-" * 20000, " " * 20000 + "=", "1," * 9000, "(A" * 9000, "1 " * 9000]
)
def test_no_response_takes_long(text):
    start = time.perf_counter()
    for answer_format in ("number", "letter5"):
        for protocol in extract.PROTOCOLS:
            extract.extract(protocol, answer_format, "The answer is 4" + text)
            extract.extract(protocol, answer_format, text + "The answer is 4")
    assert time.perf_counter() - start < 2


def test_judge_counts_what_extract_reads():
    texts, gold = ["The answer is 4", "five", "The answer is 4"], [4.0, 5.0, 3.0]
    assert extract.judge("strict", "number", texts, gold).tolist() == [True, False, False]
    with pytest.raises(ValueError, match="shorter"):
        extract.judge("strict", "number", texts, gold[:2])


def test_paper_regexes_read_a_hundred_thousand_a_second():
    working = "Each tray holds 12 cookies. Seven trays hold 7 * 12 = 84 cookies. The answer is "
    texts = [f"{working}{n}." for n in range(10000)]
    best = 1e9
    for _ in range(5):
        start = time.process_time()
        extract.judge("paper", "number", texts, [1.0] * len(texts))
        best = min(best, time.process_time() - start)
    assert len(texts) / best > 100_000


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "answer_format", "right"), [("gsm8k", "number", 771), ("AQuA", "letter5", 109)]
)
def test_llm_adapters_own_outputs(name, answer_format, right):
    mirror = os.environ.get("DYPAM_DATA_MIRROR")
    if not mirror:
        pytest.skip("DYPAM_DATA_MIRROR names no mirror of LLM-Adapters' files")
    rows = json.loads((Path(mirror) / "dataset" / name / "test.json").read_text())
    outputs, answers = (
        [row["output"] for row in rows],
        [extract.gold(answer_format, row["answer"]) for row in rows],
    )
    assert extract.judge("paper", answer_format, outputs, answers).sum() == right
