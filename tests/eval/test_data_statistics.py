"""Tables 4 to 6: counts, formats and tokens of data sets, and what is missing of them."""

import pytest

from data.fetch import DataError
from dypam.config import ConfigError, Suite
from eval import data_statistics, render
from eval.layout import Layout
from tests.eval import toy


@pytest.mark.parametrize(
    ("answers", "format"),
    [
        (["3", "-1.5"], "numeric"),
        (["E", "A"], "A-E"),
        (["true", "false"], "true/false"),
        (["solution2", "solution1"], "solution1-2"),
        (["answer1", "answer3"], "answer1-3"),
        (["answer4", "answer1"], "answer1-4"),
        (["ending4"], "ending1-4"),
        (["option2", "option1"], "option1-2"),
    ],
)
def test_the_format_is_read_off_the_answers(answers, format):
    assert data_statistics.answer_format(answers) == format


def test_test_sets_are_counted():
    found = data_statistics.test_sets(toy.suite(), None)
    assert {name: one.cells["samples"].value for name, one in found.items()} == {"sums": 8, "picks": 10}
    assert [one.cells["answer_format"].text for one in found.values()] == ["numeric", "A-E"]


def suite(name, count):
    source = {"_target_": "tests.eval.toy.source", "name": name, "count": count, "answer": "number"}
    return Suite(name, name.capitalize(), source, {})


def test_tokens_are_those_that_training_reads_or_the_texts_alone(tokenizer):
    """The tokenizer has one token a byte."""
    both = {
        tokens: data_statistics.training_sets(
            [suite("one", 3)], None, lambda: tokenizer, bos="tokenizer", tokens=tokens
        )
        for tokens in data_statistics.COUNTED
    }
    cells = both["text"]["one"].cells
    assert cells["samples"].value == 3
    assert cells["total_tokens"].value == 3 * len("one: question 0?")
    template = len(data_statistics.TEMPLATE) - len("{instruction}")
    whole = both["training"]["one"].cells["total_tokens"].value
    assert whole == cells["total_tokens"].value + 3 * (template + len(["BOS", "EOS"]))
    assert both["training"]["one"].cells["avg_tokens"].value == whole / 3


def test_what_cannot_be_had_stays_visibly_missing(monkeypatch):
    def refuse(*, files):
        raise DataError("no such file")

    def no_tokenizer():
        raise ConfigError("gated")

    monkeypatch.setattr(toy, "refuse", refuse, raising=False)
    there = suite("there", 2)
    gone = Suite("gone", "Gone", {"_target_": "tests.eval.toy.refuse"}, {})
    found = data_statistics.training_sets([gone, there], None, no_tokenizer, bos="none")
    layout = Layout("t4", "Sets")
    built = data_statistics.table(layout, data_statistics.TRAINING_COLUMNS, found, ["A note."])
    assert built.missing == {"Gone": "no such file", "There": "gated"}
    text = render.to_text(built)
    assert "2 of 2 data sets are missing or incomplete (—)." in text
    rows = {
        line.method: [render.number(line.cells[c.key], c, line, 2) for c in built.columns]
        for line in built.lines
    }
    assert rows == {"Gone": ["—", "—", "—"], "There": ["2", "—", "—"]}


def test_published_values_stand_beside(tmp_path):
    layout = Layout.from_config({"name": "t5", "caption": "Sets", "published": "table5_6_test_sets.csv"})
    given = toy.suite()
    given.tests = {"multiarith": toy.make_set("multiarith", 8), "aqua": toy.make_set("aqua", 254, "letter5")}
    built = data_statistics.table(
        layout, data_statistics.TEST_COLUMNS, data_statistics.test_sets(given, None), []
    )
    shown = {
        (line.method, line.variant): [render.number(line.cells[c.key], c, line, 2) for c in built.columns]
        for line in built.lines
    }
    assert shown == {
        ("MULTIARITH", "counted"): ["8", "numeric"],
        ("MULTIARITH", "published"): ["600", "numeric"],
        ("MULTIARITH", "difference"): ["-592", "same"],
        ("AQUA", "counted"): ["254", "A-E"],
        ("AQUA", "published"): ["254", "A-E"],
        ("AQUA", "difference"): ["+0", "same"],
    }
    assert not built.missing
    rows = render.to_csv(built).splitlines()
    assert rows[0].startswith("suite,dataset,shown,column,")
    assert rows[2].split(",")[1:7] == ["MULTIARITH", "counted", "answer_format", "", "0", "numeric"]
    assert {path.suffix for path in render.write(built, tmp_path)} == {".md", ".tex", ".csv", ".json"}
    assert "n = " not in render.to_latex(built)


def test_wrong_options_are_refused():
    with pytest.raises(ConfigError, match="give one of training, text"):
        data_statistics.training_sets([], None, None, bos="none", tokens="words")
    with pytest.raises(ConfigError, match=r"x\.csv.*does not exist"):
        data_statistics.table(Layout("t", "T", published="x.csv"), [], {}, [])
    with pytest.raises(ConfigError, match=r"table1_math\.csv.*counts no data sets"):
        data_statistics.table(Layout("t", "T", published="table1_math.csv"), [], {}, [])
