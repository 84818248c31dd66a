"""What of the published numbers fits, and what does not: recomputed from the CSVs beside this file; no torch.

Tables 1 to 7 are the paper's (and its thesis chapter's, whose marks are `*_marks.csv`); `rosa_*` are the RoSA
chapter's, whose cells are cut after one decimal where the paper rounds to two.  Parameter counts need models:
they are in `scripts/params.py`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from data.fetch import manifest
from eval.aggregate import macro, micro
from eval.layout import Cell, Column, Line
from eval.published.numbers import published_sizes
from eval.tables import mark

HERE = Path(__file__).parent
BACKBONES = HERE.parents[1] / "configs" / "backbone"
RANKED = {"Table 1": "table1_math", "Table 3": "table3_commonsense"}
CHAPTER = {"RoSA math": "rosa_math", "RoSA commonsense": "rosa_commonsense"}
NOT_A_TASK = {"backbone", "method", "param_pct", "micro_avg", "macro_avg", "micro_sig", "macro_sig"}
HALF = Fraction(1, 200) + Fraction(1, 10**9)

Row = dict[str, str]


@dataclass(frozen=True)
class Misfit:
    """A published value that does not fit: where it stands, what does not fit, and the reason."""

    where: str
    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} — {self.reason}"


@dataclass
class Check:
    """One kind of check: how many values were looked at, and those that do not fit."""

    title: str
    checked: int = 0
    misfits: list[Misfit] = field(default_factory=list)

    def add(self, fits: bool, where: str, what: str, reason: str) -> None:
        """Count a value, and keep it if it does not fit."""
        self.checked += 1
        if not fits:
            self.misfits.append(Misfit(where, what, reason))


def read(name: str) -> list[Row]:
    """Return the rows of `<name>.csv`."""
    with open(HERE / f"{name}.csv", newline="") as lines:
        return list(csv.DictReader(lines))


def tasks(row: Row) -> dict[str, Fraction]:
    """Return a row's accuracies by test set, as printed."""
    return {key: Fraction(value) for key, value in row.items() if key not in NOT_A_TASK}


def place(table: str, row: Row) -> str:
    """Return where a row stands."""
    return f"{table}, {row['backbone']}, {row['method']}"


def correct(accuracy: Fraction, n: int) -> int:
    """Return the number of right answers that a rounded accuracy (percent) stands for."""
    return round(accuracy * n / 100)


def attainability() -> Check:
    """Check that every accuracy of Tables 1 and 3 is some k/N, rounded to two decimals."""
    check, n_of = Check("Tables 1 and 3: every accuracy is some k/N, rounded"), published_sizes()
    for table, name in RANKED.items():
        for row in read(name):
            for task, value in tasks(row).items():
                n = n_of[task]
                k = correct(value, n)
                near = sorted({k, k + (1 if Fraction(100 * k, n) < value else -1)})
                shown = " and ".join(f"{i}/{n} = {100 * i / n:.2f}" for i in near)
                fits = abs(Fraction(100 * k, n) - value) <= HALF
                check.add(fits, f"{place(table, row)}, {task}", f"{float(value):.2f}", f"nearest are {shown}")
    return check


def truncated_attainability() -> Check:
    """Check that every accuracy of the RoSA chapter is some k/N, cut after one decimal."""
    check, n_of, rounded = (
        Check("RoSA chapter: every accuracy is some k/N, cut after one decimal"),
        published_sizes(),
        0,
    )
    for table, name in CHAPTER.items():
        for row in read(name):
            for task, value in tasks(row).items():
                n = n_of[task]
                low = math.ceil(value * n / 100)
                rounded += abs(Fraction(100 * correct(value, n), n) - value) > Fraction(1, 20)
                fits = Fraction(100 * low, n) < value + Fraction(1, 10)
                near = f"{low - 1}/{n} = {100 * (low - 1) / n:.3f} and {low}/{n} = {100 * low / n:.3f}"
                check.add(fits, f"{place(table, row)}, {task}", f"{float(value)}", f"nearest are {near}")
    check.title += f" (rounded, {rounded} would fit no k/N)"
    return check


def averages() -> Check:
    """Check that the cells of Tables 1 and 3, read as counts, give each row's micro and macro average."""
    check, n_of = Check("Tables 1 and 3: a row's counts give its averages"), published_sizes()
    impossible = attainability().misfits
    for table, name in RANKED.items():
        for row in read(name):
            counts = [(correct(value, n_of[task]), n_of[task]) for task, value in tasks(row).items()]
            found = {"micro": micro(counts), "macro": macro(counts)}
            wrong = [
                f"{label} {value:.2f}, printed {row[f'{label}_avg']}"
                for label, value in found.items()
                if abs(value - float(row[f"{label}_avg"])) > HALF
            ]
            bad = sum(misfit.where.startswith(f"{place(table, row)},") for misfit in impossible)
            reason = f"{bad} of its cells are no k/N" if bad else "all of its cells are possible"
            check.add(not wrong, place(table, row), "; ".join(wrong), reason)
    return check


def truncated_averages() -> Check:
    """Check that counts behind the cells of RoSA commonsense can give the printed micro average."""
    check, n_of = Check("RoSA commonsense: the printed micro average is possible"), published_sizes()
    for row in read("rosa_commonsense"):
        low = high = 0
        for task, value in tasks(row).items():
            n = n_of[task]
            low += math.ceil(value * n / 100)
            high += math.ceil((value + Fraction(1, 10)) * n / 100) - 1
        total, printed = sum(n_of[task] for task in tasks(row)), Fraction(row["micro_avg"])
        ends = [Fraction(100 * k, total) for k in (low, high)]
        fits = ends[0] < printed + Fraction(1, 10) and ends[1] >= printed
        reason = f"its cells allow {float(ends[0]):.3f} to {float(ends[1]):.3f}"
        check.add(fits, place("RoSA commonsense", row), f"micro {row['micro_avg']}", reason)
    return check


def marks() -> Check:
    """Check bold and underline of Tables 1 and 3 against our own tables; stars need runs of all seeds."""
    check = Check("Tables 1 and 3: bold and underline (dense ranking, ties share)")
    for table, name in RANKED.items():
        rows, printed = read(name), read(f"{name}_marks")
        columns = [Column(key, key, "set") for key in printed[0] if key not in ("backbone", "method")]
        lines = [_line(row, columns) for row in rows]
        mark(lines, columns, 2)
        for line, row in zip(lines, printed, strict=True):
            for column in columns:
                cell, theirs = line.cells[column.key], row[column.key].rstrip("*")
                what = f"{cell.value} is printed {theirs or 'plain'}"
                where = f"{place(table, row)}, {column.key}"
                check.add(cell.mark == theirs, where, what, f"by its rank it is {cell.mark or 'plain'}")
    return check


def _line(row: Row, columns: Iterable[Column]) -> Line:
    cells = {column.key: Cell(float(row[column.key])) for column in columns}
    return Line(row["backbone"], row["method"], "", "published", cells)


def repeated_parameters() -> Check:
    """Table 3's Param(%) against Table 1's: the methods and backbones are the same, so must be the counts."""
    check = Check("Table 3 repeats Table 1's Param(%)")
    first = {(row["backbone"], row["method"]): row["param_pct"] for row in read("table1_math")}
    for row in read("table3_commonsense"):
        value, backbone, method = row["param_pct"], row["backbone"], row["method"]
        twins = [b for (b, m), v in first.items() if m == method and b != backbone and v == value]
        reason = f"it is the value of {' and '.join(twins)}" if twins else "no other backbone has it"
        what = f"{value}, Table 1 has {first[backbone, method]}"
        check.add(first[backbone, method] == value, place("Table 3", row), what, reason)
    return check


def linear_shapes(a: dict[str, Any]) -> list[tuple[int, int]]:
    """Return (in, out) of the linear layers of one block, from a backbone's architecture."""
    d, f = a["hidden_size"], a["intermediate_size"]
    q, kv = a["num_attention_heads"] * a["head_dim"], a["num_key_value_heads"] * a["head_dim"]
    return [(d, q), (d, kv), (d, kv), (q, d), (d, f), (d, f), (f, d)]


def flops(a: dict[str, Any]) -> dict[str, int]:
    """Return the FLOPs a token of LoRA (r 24), RoSA and DyPAM, and of the backbone: two for each weight."""
    d, layers = a["hidden_size"], a["num_hidden_layers"]
    heads, keys = a["num_attention_heads"], a["num_key_value_heads"]
    low, half, rank, d_e = a["head_dim"] // 4, a["head_dim"] // 2, 128, 64
    block = linear_shapes(a)
    lora = sum(24 * (i + o) for i, o in block)
    rosa = rank * (d + heads * low) + rank * (heads * low + keys * low)
    dypam = sum(d * rank + rank * h * d_e + h * d_e * half for h in (heads, keys))
    base = layers * (sum(i * o for i, o in block) + 2 * d) + d + a["vocab_size"] * d
    return {
        "lora": 2 * layers * lora,
        "rosa": 2 * layers * rosa,
        "dypam": 2 * layers * dypam,
        "base": 2 * base,
    }


def table7() -> Check:
    """Table 7: the added FLOPs of LLaMA-3.2-3B, and what part of the backbone's they are."""
    check = Check("Table 7: FLOPs of LLaMA-3.2-3B, from its shapes")
    counted = flops(yaml.safe_load((BACKBONES / "llama-3.2-3b.yaml").read_text())["architecture"])
    for row in read("table7_inference_overhead"):
        if row["flops_overhead_m"]:
            added, part = counted[row["method"]] / 1e6, 100 * counted[row["method"]] / counted["base"]
            where, printed = f"Table 7, {row['method']}", row["flops_overhead_m"]
            check.add(f"{added:.1f}" == printed, where, f"{printed} M", f"counted {added:.2f} M")
            printed = row["flops_overhead_pct"]
            cut = "; cut, not rounded" if math.floor(100 * part) == round(100 * float(printed)) else ""
            check.add(f"{part:.2f}" == printed, where, f"{printed} %", f"counted {part:.4f} %{cut}")
    return check


def dataset_sizes() -> Check:
    """Tables 4 to 6 against the files of LLM-Adapters that `data/manifest.yaml` names."""
    check = Check("Tables 4 to 6: rows of the data files, and tokens per sample")
    files = {entry.path.lower(): entry.rows for entry in manifest().values()}
    names = {
        "arc_challenge": "arc-challenge",
        "arc_easy": "arc-easy",
        "obqa": "openbookqa",
        "siqa": "social_i_qa",
    }
    for row in read("table5_6_test_sets"):
        rows = files.get(f"dataset/{names.get(row['dataset'], row['dataset'])}/test.json")
        check.add(
            rows == int(row["samples"]), f"Tables 5, 6, {row['dataset']}", row["samples"], f"file has {rows}"
        )
    for row in read("table4_training_sets"):
        mean = Fraction(int(row["total_tokens"]), int(row["samples"]))
        fits = abs(mean - Fraction(row["avg_tokens"])) <= HALF
        check.add(
            fits, f"Table 4, {row['dataset']}", row["avg_tokens"], f"tokens / samples = {float(mean):.3f}"
        )
    return check


def checks() -> list[Check]:
    """Run every check of numbers (claims in prose are in `eval.published.claims`)."""
    every: tuple[Callable[[], Check], ...] = (
        attainability,
        averages,
        marks,
        repeated_parameters,
        table7,
        dataset_sizes,
        truncated_attainability,
        truncated_averages,
    )
    return [check() for check in every]


def report(found: Iterable[Check]) -> Iterator[str]:
    """Yield the lines of the report: each check with its counts, then what does not fit, with the reason."""
    for check in found:
        yield f"{check.title}: {check.checked - len(check.misfits)} of {check.checked} fit."
        yield from (f"    {misfit}" for misfit in check.misfits)
