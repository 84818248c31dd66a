"""The audit of the published numbers: what is known to be wrong is found, and so is what a test plants."""

import csv
import subprocess
import sys

import pytest

from eval.published import audit, claims


def named(check):
    return [misfit.where for misfit in check.misfits]


def planted(monkeypatch, name, changes):
    """Change published rows: `changes` maps (backbone, method, column) to a value."""
    plain = audit.read

    def read(asked):
        rows = plain(asked)
        for row in rows:
            for (backbone, method, column), value in changes.items():
                if asked == name and (row.get("backbone", ""), row["method"]) == (backbone, method):
                    row[column] = value
        return rows

    monkeypatch.setattr(audit, "read", read)
    monkeypatch.setattr(claims, "read", read)


def test_three_impossible_cells():
    check = audit.attainability()
    assert check.checked == 450
    assert named(check) == [f"Table 3, gemma-3-4b, shira, {task}" for task in ("piqa", "siqa", "arc_easy")]
    assert "1511/1838 = 82.21 and 1512/1838 = 82.26" in check.misfits[0].reason


def test_59_of_60_rows_give_their_averages():
    check = audit.averages()
    assert (check.checked, named(check)) == (60, ["Table 3, gemma-3-4b, shira"])
    assert check.misfits[0].reason == "3 of its cells are no k/N"


def test_a_wrong_average_is_found(monkeypatch):
    planted(monkeypatch, "table1_math", {("qwen3-8b", "oft", "macro_avg"): "80.46"})
    (found, _) = audit.averages().misfits
    assert (found.where, found.what) == ("Table 1, qwen3-8b, oft", "macro 80.45, printed 80.46")
    assert found.reason == "all of its cells are possible"


def test_all_marks_are_those_of_our_tables():
    check = audit.marks()
    assert (check.checked, check.misfits) == (570, [])


def test_a_wrong_mark_is_found(monkeypatch):
    planted(monkeypatch, "table3_commonsense_marks", {("qwen3-8b", "oft", "piqa"): "second"})
    (found,) = audit.marks().misfits
    assert str(found) == "Table 3, qwen3-8b, oft, piqa: 86.83 is printed second — by its rank it is plain"


def test_copied_parameters_are_found():
    check = audit.repeated_parameters()
    assert named(check) == [
        f"Table 3, gemma-3-4b, {method}" for method in ("ia3", "ln_tuning", "fourierft", "shira")
    ]
    assert all("qwen3-8b" in misfit.reason for misfit in check.misfits)


def test_flops_of_table_7():
    check = audit.table7()
    assert (check.checked, named(check)) == (6, ["Table 7, lora", "Table 7, lora"])
    assert [misfit.reason for misfit in check.misfits] == [
        "counted 72.94 M",
        "counted 1.1352 %; cut, not rounded",
    ]


def test_the_rosa_chapter_is_cut_not_rounded():
    check = audit.truncated_attainability()
    assert (check.checked, check.misfits) == (279, [])
    assert "(rounded, 23 would fit no k/N)" in check.title
    assert audit.truncated_averages().misfits == []


def test_a_wrong_cell_of_the_rosa_chapter_is_found(monkeypatch):
    planted(monkeypatch, "rosa_math", {("qwen2.5-7b", "lora", "aqua"): "33.9"})
    (found,) = audit.truncated_attainability().misfits
    assert found.reason == "nearest are 86/254 = 33.858 and 87/254 = 34.252"


def test_an_impossible_micro_of_the_rosa_chapter_is_found(monkeypatch):
    planted(monkeypatch, "rosa_commonsense", {("qwen2.5-7b", "lora", "micro_avg"): "84.6"})
    assert named(audit.truncated_averages()) == ["RoSA commonsense, qwen2.5-7b, lora"]


def test_dataset_sizes():
    check = audit.dataset_sizes()
    assert (check.checked, check.misfits) == (17, [])


def test_claims():
    check = claims.claims()
    assert named(check) == [
        "Section 4.3",
        "Section 4.2, Table 1",
        "Section 4.2, Table 3",
        "Section 4.1, llama-3.2-3b",
        "Section 4.1, qwen3-8b",
        "Section 4.1, gemma-3-4b",
        "Appendix E",
    ]
    assert claims.gaps() == [0.17, 1.43, 0.32, 1.91]
    assert check.misfits[0].reason == "it is 0.17, 1.43, 0.32, 1.91 points"


@pytest.mark.parametrize(
    ("name", "cell", "value", "where"),
    [
        ("table1_math", ("qwen3-8b", "rosa", "macro_avg"), "99.0", "Table 2, rosa"),
        ("table3_commonsense", ("gemma-3-4b", "oft", "micro_avg"), "99.0", "Table 3, gemma-3-4b"),
        ("table7_inference_overhead", ("", "dypam", "bs1_ms_per_token"), "27.0", "Appendix E"),
        ("rosa_commonsense", ("gemma-2-9b", "lora", "micro_avg"), "99.0", "RoSA commonsense, gemma-2-9b"),
        ("rosa_math", ("qwen2.5-7b", "rosa", "gsm8k"), "79.0", "RoSA math"),
        ("rosa_math", ("qwen2.5-7b", "vera", "param_pct"), "0.02", "RoSA math, qwen2.5-7b, vera"),
    ],
)
def test_a_claim_that_no_longer_holds_is_found(monkeypatch, name, cell, value, where):
    before = named(claims.claims())
    planted(monkeypatch, name, {cell: value})
    after = named(claims.claims())
    assert where in after
    assert len(after) > len(before)


def test_published_tables_are_rectangular():
    for path in audit.HERE.glob("*.csv"):
        with open(path, newline="") as lines:
            widths = {len(row) for row in csv.reader(lines)}
        assert len(widths) == 1, path.name


def test_the_report_needs_no_torch():
    code = (
        "import sys; sys.argv = ['x', '--no-params']\n"
        "from scripts import audit_published\n"
        "audit_published.main(False)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "59 of 60 fit." in done.stdout
    assert "Claims in the text, against the tables: 40 of 47 fit." in done.stdout
