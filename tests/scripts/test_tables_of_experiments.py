"""The tables of experiments: drawn without any run, with every published number in its place."""

import csv
import json
import shutil
from collections import Counter

import pytest

from data.fetch import DataError
from dypam.config import ConfigError
from eval.published.audit import HERE
from scripts import compose, dataset_tables, table

TABLES = {
    "table1": "table1_math",
    "table2": "table2_scaling_math_macro",
    "table3": "table3_commonsense",
    "rosa_commonsense": "rosa_commonsense",
    "rosa_math": "rosa_math",
    "rosa_scaling": "rosa_scaling_commonsense",
    "rosa_ablation": "rosa_ablation_commonsense_micro",
}


def drawn(name, tmp_path, *more):
    paths = table.draw([f"experiment={name}", f"results={tmp_path}", *more], False)
    return json.loads(next(path for path in paths if path.suffix == ".json").read_text())


def lacking(name, tmp_path, *more):
    """Draw a table of data sets that cannot all be had: written all the same, and an error at the end."""
    with pytest.raises(DataError, match="the table lacks"):
        dataset_tables.draw([f"experiment={name}", f"results={tmp_path}", *more])
    return json.loads((tmp_path / "tables" / f"{name}.json").read_text())


def rows_of(name):
    """Return a published file's rows by label of backbone: values by column, in the file's order."""
    with open(HERE / f"{name}.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        row.pop("method", None)
        row.pop("variant", None)
    return rows


@pytest.mark.parametrize("name", TABLES)
def test_without_runs_cells_are_missing_and_published_lines_in_place(name, tmp_path):
    whole = drawn(name, tmp_path, "seed=2333")
    jobs = compose.grid([f"experiment={name}", "seed=2333"])
    assert f"{len(jobs)} of {len(jobs)} runs are missing (—)." in whole["caption"]
    assert set(whole["missing"].values()) == {"not started"}
    ours = [value for value in whole["values"] if value["shown"] in ("seed 2333", "mean ± sd", "difference")]
    assert ours
    assert all(value["value"] is None for value in ours)

    published = [value for value in whole["values"] if value["shown"] == "published"]
    lines = {}
    for value in published:
        lines.setdefault((value["backbone"], value["method"]), {})[value["column"]] = value["value"]
    expected = rows_of(TABLES[name])
    # as many lines as published rows, in their order: each row has exactly one line
    assert len(lines) == len(expected)
    pivoted = compose.table([f"experiment={name}"]).get("pivot")
    for cells, row in zip(lines.values(), expected, strict=True):
        if pivoted:  # columns are the backbones, by their labels
            cells = dict(zip(row, cells.values(), strict=True))
        for column, value in cells.items():
            key = f"{column}_avg" if f"{column}_avg" in row else column
            assert value == (float(row[key]) if key in row else None), (column, row)
        printed = {key.removesuffix("_avg") for key in row if key != "backbone" and not key.endswith("_sig")}
        assert printed <= cells.keys()


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith("rosa")])
def test_published_names_are_those_of_the_files_methods(name):
    """By configuration: what a file calls `lora` stands beside the one method that this project calls so."""
    layout = compose.table([f"experiment={name}"])
    with open(HERE / layout["published"], newline="") as lines:
        theirs = {row.get("method") or row["variant"] for row in csv.DictReader(lines)}
    jobs = compose.grid([f"experiment={name}", "seed=2333"])
    ours = {compose.run_config(job).method["name"] for job in jobs}
    named = Counter(layout["published_names"].get(method, method) for method in ours)
    assert named == Counter(theirs)
    for method, name_in_file in layout["published_names"].items():
        assert method.split("_")[0] == name_in_file.split("_")[0]


def test_the_ablation_of_dypam_has_figure_4s_runs(tmp_path):
    assert compose.run_dirs(["experiment=ablation"]) == compose.run_dirs(["experiment=figure4"])
    whole = drawn("ablation", tmp_path, "seed=2333")
    assert len({value["method"] for value in whole["values"]}) == 9
    assert {value["column"] for value in whole["values"]} == {"micro", "macro"}


def test_published_numbers_of_an_ablation_stand_beside_their_backbone_only(tmp_path):
    whole = drawn("rosa_ablation", tmp_path, "seed=2333", "backbone=llama-3.1-8b")
    assert all(value["value"] is None for value in whole["values"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("rosa=rose", "table.published_names has 'rose', which rosa_ablation.* does not; it has rosa, "),
        ("rosa=rosa_r_low_0.5", "gives one published name to two methods"),
    ],
)
def test_wrong_published_names_are_refused(names, message, tmp_path):
    given = ["experiment=rosa_ablation", "seed=2333", f"results={tmp_path}"]
    with pytest.raises(ConfigError, match=message):
        table.draw([*given, f"+table.published_names.{names}"], False)


@pytest.mark.parametrize(("name", "sets"), [("table5", 7), ("table6", 8), ("table4", 2)])
def test_data_sets_that_cannot_be_had_stay_missing_beside_the_published(name, sets, tmp_path):
    given = ["runtime.offline=true", f"runtime.cache_dir={tmp_path}", "runtime.data_mirror=null"]
    whole = lacking(name, tmp_path, *given)
    assert len(whole["missing"]) == sets
    assert all("runtime.offline is set" in why for why in whole["missing"].values())
    published = [value["value"] for value in whole["values"] if value["shown"] == "published"]
    assert len(published) == sets * (3 if name == "table4" else 2)
    assert None not in published
    assert all(value["value"] is None for value in whole["values"] if value["shown"] == "counted")


def test_embedded_training_sets_are_counted_without_any_file(tmp_path):
    """The suite's own generator; the tokenizer cannot be had, which hides no count of samples."""
    given = [
        "suite=minimath",
        "runtime.offline=true",
        f"runtime.cache_dir={tmp_path}",
        "backbone=gemma3-270m",
    ]
    whole = lacking("table4", tmp_path, *given)
    cells = {value["column"]: value["value"] for value in whole["values"] if value["shown"] == "counted"}
    assert cells == {"samples": 2000.0, "total_tokens": None, "avg_tokens": None}
    assert "scripts/convert.py" in whole["missing"]["minimath"]


def test_an_experiment_without_runs_is_no_table_of_runs(tmp_path):
    with pytest.raises(ConfigError, match="has no runs to tabulate"):
        table.draw(["experiment=figure2", f"results={tmp_path}"], False)


def test_a_wrong_part_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="give tests or training"):
        dataset_tables.draw(["suite=minimath", "datasets.part=all", f"results={tmp_path}"])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_a_table_with_greek_letters_becomes_a_pdf(tmp_path):
    paths = table.draw(["experiment=ablation", "seed=2333", f"results={tmp_path}"], True)
    assert next(path for path in paths if path.suffix == ".pdf").read_bytes().startswith(b"%PDF")
