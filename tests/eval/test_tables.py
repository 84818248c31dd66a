"""Tables: values, marks, stars, missing cells, and every format; LaTeX goes through a real engine."""

import csv
import io
import json
import re
import shutil

import pytest

from dypam.config import ConfigError
from eval import render, stats, tables
from eval.aggregate import Grid, collect
from eval.layout import Layout
from eval.published import numbers
from tests.eval import toy

SEEDS = [2333, 1000, 2000]
RIGHT = {
    "base": ([1, 1, 1], [2, 2, 2]),
    "lora": ([3, 3, 4], [5, 4, 5]),
    "dypam": ([7, 7, 8], [9, 10, 9]),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    for backbone in ("tiny", "mini"):
        for method, (sums, picks) in RIGHT.items():
            for seed, s, p in zip(SEEDS, sums, picks, strict=True):
                if (backbone, method, seed) != ("mini", "lora", 2000):
                    toy.finish(root, backbone, method, seed, {"sums": s, "picks": p})
    return root


def table(results, backbones=("tiny",), methods=tuple(RIGHT), **layout):
    collection = collect(Grid("toy", backbones, methods, SEEDS), results, workers=1)
    return tables.build(collection, Layout.from_config({"name": "t", "caption": "Toy & test_sets", **layout}))


def line(built, method, backbone="TINY", variant=""):
    return next(x for x in built.lines if (x.backbone, x.method, x.variant) == (backbone, method, variant))


def test_means_marks_and_stars(results):
    built = table(results)
    best, second = line(built, "Dypam").cells, line(built, "Lora").cells
    assert best["sums"].value == pytest.approx(100 * 22 / 24)
    assert best["sums"].sd == pytest.approx(100 / 8 / 3**0.5)
    assert [best[c].mark for c in ("sums", "picks", "micro", "macro")] == ["best"] * 4
    assert [second[c].mark for c in ("sums", "picks", "micro", "macro")] == ["second"] * 4
    assert best["micro"].star
    assert not best["sums"].star
    assert not second["micro"].star
    test = next(t for t in built.tests if t["column"] == "micro")
    assert test["best_baseline"] == "lora"
    expected = stats.t_test(
        {0: 1600 / 18, 1: 1700 / 18, 2: 1700 / 18}, {0: 800 / 18, 1: 700 / 18, 2: 900 / 18}
    )
    assert test["p"] == pytest.approx(expected.p)
    assert "p < 0.05" in " ".join(built.notes)


def test_no_star_without_significance(results):
    built = table(results, methods=("lora", "dypam"), ours="lora")
    assert not any(cell.star for each in built.lines for cell in each.cells.values())


def test_holm_adjusts_over_all_stars_of_the_table(results):
    built = table(results, backbones=("tiny", "mini"), holm=True)
    assert [t["p_used"] for t in built.tests] == pytest.approx(stats.holm([t["p"] for t in built.tests]))
    assert len(built.tests) == 4


def test_seed_beside_mean_and_interval(results):
    built = table(results, show=["seed", "mean", "interval"])
    cells = line(built, "Lora", variant="seed 2333").cells
    assert (cells["sums"].value, cells["sums"].sd, cells["sums"].runs) == (37.5, None, 1)
    low, high = line(built, "Lora", variant="95 % interval").cells["micro"].interval
    assert low < 100 * 8 / 18 < high
    assert line(built, "Dypam", variant="seed 2333").cells["micro"].star


def test_both_protocols_side_by_side(results):
    built = table(results, protocols=["paper", "strict"])
    assert {x.variant for x in built.lines} == {"paper, mean ± sd", "strict, mean ± sd"}


def test_one_seed_gets_mcnemar_and_no_star(results):
    collection = collect(Grid("toy", ["tiny"], list(RIGHT), [2333]), results, workers=1)
    built = tables.build(collection, Layout("t", "One seed"))
    test = built.tests[-1]
    assert (test["best_baseline"], test["only_a"], test["only_b"]) == ("lora", 8, 0)
    assert test["p"] == pytest.approx(2 / 2**8)
    assert "dypam against lora (paper, n = 18): only one right on 8 and 0, p = 0.0078." in " ".join(
        built.notes
    )
    assert not line(built, "Dypam").cells["micro"].star
    assert "*" not in " ".join(built.notes)


def test_published_stands_once_beside_two_protocols(results, tmp_path):
    path = tmp_path / "published.csv"
    path.write_text("backbone,method,sums\ntiny,lora,40.0\n")
    show = ["seed", "published", "difference"]
    built = table(results, published=str(path), show=show, protocols=["paper", "strict"])
    assert len([x for x in built.lines if x.method == "Lora"]) == 5


def test_chance_is_weighted_and_never_marked(results):
    built = table(results, chance=True, methods=("base", "lora"), ours="none")
    cells = built.lines[0].cells
    p = {(t["method"], t["column"]): t["p"] for t in built.tests}
    assert p["base", "picks"] == pytest.approx(1 - 0.8**10 - 10 * 0.2 * 0.8**9)
    assert ("lora", "sums") not in p  # nothing can be guessed there
    assert "base (paper) on 0 of 1 test set, lora (paper) on 0 of 1" in built.notes[-2]
    assert (cells["sums"].value, cells["picks"].value) == (0, 20)
    assert cells["micro"].value == pytest.approx(200 / 18)
    assert cells["macro"].value == pytest.approx(10)
    assert not any(cell.mark for cell in cells.values())


def test_missing_runs_stay_visible(results):
    built = table(results, backbones=("tiny", "mini"), methods=("lora", "dypam"), show=["seed", "mean"])
    assert "1 of 12 runs are missing (—)" in built.caption
    assert built.missing == {"mini/lora/seed2000": "not started"}
    assert line(built, "Lora", "MINI", "mean ± sd").cells["sums"].runs == 2
    gone = table(results, methods=("lora", "vera"))
    assert line(gone, "vera").cells["micro"].value is None
    assert "| vera | — | — | — | — |" in render.to_markdown(gone)


def test_no_star_where_a_method_lacks_a_seed(results):
    built = table(results, backbones=("tiny", "mini"), methods=("lora", "dypam"), show=["mean"])
    assert line(built, "Dypam").cells["micro"].star
    assert not line(built, "Dypam", "MINI").cells["micro"].star
    micro = {test["backbone"]: test for test in built.tests if test["column"] == "micro"}
    assert [micro[name]["complete"] for name in ("tiny", "mini")] == [True, False]
    assert micro["mini"]["n"] == [3, 2]
    assert "No star on mini, where runs are missing." in built.notes
    assert r"*}" in render.to_latex(built)


def test_a_table_without_any_run(results):
    collection = collect(Grid("toy", ["none"], ["lora"], [1]), results, workers=1)
    built = tables.build(collection, Layout("t", "Empty"), toy.suite().tests)
    assert "1 of 1 runs are missing" in built.caption
    assert "—" in render.to_text(built)


def test_published_and_difference(results, tmp_path):
    path = tmp_path / "published.csv"
    path.write_text(
        "backbone,method,param_pct,sums,picks,micro_avg,macro_avg,micro_sig\n"
        "tiny,lora,1.1,40.0,,45.0,46.0,0\n"
        "tiny,dypam,0.9,80.0,70.0,60.0,61.0,1\n"
    )
    built = table(results, published=str(path), show=["seed", "published", "difference"])
    printed, change = (
        line(built, "Lora", variant="published").cells,
        line(built, "Lora", variant="difference").cells,
    )
    assert (printed["sums"].value, printed["picks"].value) == (40.0, None)
    assert change["sums"].value == pytest.approx(-2.5)
    assert change["picks"].value is None
    assert line(built, "Dypam", variant="published").cells["micro"].star
    assert line(built, "Base", variant="difference").cells["micro"].value is None
    text = render.to_markdown(built)
    assert "-2.50" in text
    assert "+7.50" in text
    assert not any(cell.mark for cell in change.values())


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"shows": ["mean"]}, "table.shows is unknown"),
        ({"show": ["median"]}, "table.show has 'median'"),
        ({"protocols": ["lax"]}, "table.protocols has 'lax'"),
        ({"test": "z"}, "table.test has 'z'"),
        ({"caption": None}, "table.caption is None"),
        ({"show": ["published"]}, "table.published names no file"),
        ({"show": ["published"], "published": "x.csv", "rehearsal": True}, "beside a rehearsal"),
        ({"published": "nowhere.csv"}, "'nowhere.csv', which does not exist"),
    ],
)
def test_wrong_layouts_are_refused(results, layout, message):
    with pytest.raises(ConfigError, match=message):
        table(results, **layout)


def test_markdown(results):
    text = render.to_markdown(table(results, chance=True))
    assert "| Method | SUMS (n = 8) | PICKS† (n = 10) | Micro (n = 18) | Macro (n = 18) |" in text
    assert "| Chance | 0.00 | 20.00 | 11.11 | 10.00 |" in text
    assert r"**92.59 ± 3.21**\*" in text
    assert "_41.67 ± 7.22_" in text
    assert "† contaminated by training data. PICKS: 2 of 10 questions." in text
    assert " of 1 test set." in text  # SUMS has no chance


def test_csv_and_json_carry_n_and_full_precision(results):
    built = table(results, backbones=("tiny", "mini"))
    rows = list(csv.DictReader(io.StringIO(render.to_csv(built))))
    row = next(r for r in rows if (r["backbone"], r["method"], r["column"]) == ("MINI", "Lora", "micro"))
    assert (row["runs"], row["examples"]) == ("2", "18")
    assert float(row["value"]) == pytest.approx(100 * 15 / 36)
    whole = json.loads(render.to_json(built))
    assert whole["missing"] == {"mini/lora/seed2000": "not started"}
    assert len(whole["values"]) == len(rows) == 6 * 4
    assert whole["tests"][0]["n"] == [3, 3]


def test_json_has_no_bare_infinity(results):
    built = table(results)
    built.tests[0]["t"] = float("inf")
    assert json.loads(render.to_json(built), parse_constant=pytest.fail)["tests"][0]["t"] == "inf"


def test_rehearsal_is_labelled_in_every_format(results, tmp_path):
    built = table(results, rehearsal=True)
    for path in render.write(built, tmp_path):
        assert "rehearsal" in path.read_text().lower(), path.name
    assert "Rehearsal" in render.to_text(built)


def test_a_rehearsals_backbone_labels_its_table_whatever_the_layout_says(results):
    assert "Rehearsal" in render.to_text(table(results, ("nano-llama",)))
    assert "Rehearsal" not in render.to_text(table(results))


def test_latex_compiles(results, tmp_path):
    """By a real engine, with several backbones, variants, missing cells and characters that TeX knows."""
    layout = {"show": ["seed", "mean", "interval"], "chance": True, "rehearsal": True, "params": True}
    built = table(results, ("tiny", "mini"), (*RIGHT, "vera"), **layout)
    built.notes.append(r"50 % of #1 & $x_2^3$ {~} \ <→")
    built.notes[-1] = built.notes[-1].replace("→", "")
    (pdf,) = [p for p in render.write(built, tmp_path, pdf=True) if p.suffix == ".pdf"]
    assert pdf.read_bytes().startswith(b"%PDF")
    latex = (tmp_path / "t.tex").read_text()
    assert r"\multirow{12}{*}{\textbf{MINI}}" in latex
    assert r"\textbf{92.59 $\pm$ 3.21}" in latex
    assert r"\underline{41.67 $\pm$ 7.22}" in latex
    assert "---" in latex


def test_latex_of_differences_compiles(results, tmp_path):
    path = tmp_path / "published.csv"
    path.write_text("backbone,method,sums\ntiny,lora,40.0\n")
    built = table(results, published=str(path), show=["seed", "published", "difference"])
    latex = render.to_latex(built)
    assert "$-$2.50" in latex
    assert render.compile_latex(render.standalone(latex)).startswith(b"%PDF")


def test_a_long_latex_table_is_parted_by_backbone(results, monkeypatch):
    built = table(results, ("tiny", "mini"))
    assert render.to_latex(built).count(r"\begin{table}") == 1
    monkeypatch.setattr(render, "PAGE", 5)
    latex = render.to_latex(built)
    assert latex.count(r"\begin{table}") == 2
    assert r"\caption{Toy \& test\_sets. 1 of 18 runs are missing (---). MINI.}" in latex
    assert r"\label{tab:t-mini}" in latex
    assert render.compile_latex(render.standalone(latex)).startswith(b"%PDF")


def test_latex_that_cannot_be_compiled_says_why():
    with pytest.raises(ConfigError, match="Undefined control sequence"):
        render.compile_latex(render.standalone(r"\nonsense"))


def test_no_engine_is_one_sentence(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="pdflatex was not found"):
        render.compile_latex("")


def test_backbones_as_columns_beside_a_published_average(results, tmp_path):
    path = tmp_path / "scaling_macro.csv"
    path.write_text("method,tiny,mini\nlora,40.0,41.0\ndypam,90.0,91.0\n")
    show = ["seed", "published", "difference", "mean"]
    layout = {"columns": ["macro"], "pivot": True, "show": show, "published": str(path), "chance": True}
    built = table(results, ("tiny", "mini"), ("lora", "dypam"), **layout)
    assert [(c.label, c.n) for c in built.columns] == [("TINY", 18), ("MINI", 18)]
    by_name = {(x.method, x.variant): x.cells for x in built.lines}
    assert by_name["Lora", "published"]["MINI"].value == 41
    assert by_name["Lora", "difference"]["TINY"].value == pytest.approx(3.75)
    assert by_name["Dypam", "published"]["MINI"].mark == "best"
    assert by_name["Dypam", "mean ± sd"]["TINY"].star
    assert by_name["Chance", ""]["MINI"].value == pytest.approx(10)
    assert {test["column"] for test in built.tests if "star" in test} == {"macro"}
    latex = render.to_latex(built)
    assert "multirow{" not in latex.replace(r"\usepackage", "")
    assert render.compile_latex(render.standalone(latex)).startswith(b"%PDF")


def test_methods_of_one_label_stay_apart(tmp_path):
    for method, sums in (("adalora", 2), ("adalora_r16", 5)):
        run_dir = toy.finish(tmp_path, "tiny", method, 2333, {"sums": sums, "picks": 1})
        toy.change_record(run_dir, lambda record: record["identity"]["method"].update(label="AdaLoRA"))
    collection = collect(Grid("toy", ["tiny"], ["adalora", "adalora_r16"], [2333]), tmp_path, workers=1)
    for pivot in (False, True):
        layout = Layout.from_config({"name": "t", "caption": "Toy", "pivot": pivot, "columns": ["sums"]})
        built = tables.build(collection, layout)
        (column,) = built.columns
        shown = {line.method: line.cells[column.key].value for line in built.lines}
        assert shown == {"AdaLoRA (adalora)": 25.0, "AdaLoRA (adalora_r16)": 62.5}


def test_published_numbers_of_other_test_sets_are_refused(results, monkeypatch):
    monkeypatch.setattr(numbers, "published_sizes", lambda: {"sums": 600})
    with pytest.raises(ConfigError, match="rows is 8, the published test set has 600"):
        table(results, published="table1_math.csv", show=["seed", "published"])


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"pivot": True}, "table.pivot needs one column"),
        ({"columns": ["median"]}, "table.columns has 'median'"),
        (
            {"show": ["seed"], "seed": 7},
            r"table.seed is 7, which is none .* \(2333, 1000, 2000\): give table.seed=2333",
        ),
    ],
)
def test_wrong_columns_are_refused(results, layout, message):
    with pytest.raises(ConfigError, match=message):
        table(results, **layout)


def test_a_seed_is_cut_where_published_numbers_are(results, tmp_path):
    """13 of 18 are 72.22 %, 16 of 18 88.89 %: cut 88.8, rounded 88.9."""
    path = tmp_path / "micro.csv"
    path.write_text("variant,micro_avg,param_pct\nours,88.7,0.261\n")
    shown = {
        "show": ["seed", "published", "difference"],
        "digits": 1,
        "columns": ["param_pct", "micro"],
        "params": True,
        "params_digits": 3,
        "published": str(path),
        "published_names": {"dypam": "ours"},
        "published_backbone": "tiny",
    }
    texts = {}
    for cut in (True, False):
        built = table(results, methods=("lora", "dypam"), cut=cut, **shown)
        for row in built.lines:
            cells = [render.number(row.cells[c.key], c, row, 1) for c in built.columns]
            texts[cut, row.method, row.variant] = cells
    assert texts[True, "Dypam", "seed 2333"] == ["—", "88.8"]
    assert texts[True, "Dypam", "difference"] == ["—", "+0.1"]
    assert texts[False, "Dypam", "seed 2333"] == ["—", "88.9"]
    assert texts[False, "Dypam", "difference"] == ["—", "+0.2"]
    assert texts[True, "Dypam", "published"] == ["0.261", "88.7"]
    assert texts[True, "Lora", "published"] == ["—", "—"]
    other = table(results, ("mini",), ("lora", "dypam"), **shown)
    assert all(row.cells["micro"].value is None for row in other.lines if row.kind == "published")


@pytest.mark.parametrize(("value", "cut"), [(33.8999, 33.8), (33.8, 33.8), (100.0, 100.0), (0.1 + 0.2, 0.3)])
def test_cutting(value, cut):
    assert stats.cut(value, 1) == cut


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("name", "../x", "a plain name"),
        ("name", "", "a plain name"),
        ("caption", None, "some text"),
        ("show", [], "a list with something in it"),
        ("show", "mean", "a list with something in it"),
        ("protocols", [], "a list with something in it"),
        ("digits", -1, "a whole number of at least 0"),
        ("digits", True, "a whole number of at least 0"),
        ("seed", "abc", "a whole number of at least 0"),
        ("chance", 5, "true or false"),
        ("published", 5, "text or null"),
        ("published_names", 5, "a mapping"),
    ],
)
def test_a_wrong_value_of_a_layout_is_named(key, value, wanted):
    with pytest.raises(ConfigError, match=re.escape(f"table.{key} is {value!r}; give {wanted}")):
        Layout.from_config({"name": "t", "caption": "T", key: value})
