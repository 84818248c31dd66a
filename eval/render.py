"""Write a table as text, Markdown, LaTeX (booktabs), CSV and JSON, and compile LaTeX to a PDF."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from dypam.config import ConfigError
from dypam.files import as_json, write_atomic
from eval.layout import Cell, Column, Line, Table

MISSING = "—"
LATEX_PACKAGES = ("booktabs", "multirow", "adjustbox")
PAGE = 45
"""Most lines of one LaTeX table, if it can be parted."""


def write(table: Table, directory: Path | str, *, pdf: bool = False) -> list[Path]:
    """Write `<name>.md .tex .csv .json` (and `.pdf`) of a table into `directory`; return the paths."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    renderers: dict[str, Callable[[Table], str]] = {
        "md": to_markdown,
        "tex": to_latex,
        "csv": to_csv,
        "json": to_json,
    }
    paths = []
    for suffix, render in renderers.items():
        paths.append(directory / f"{table.layout.name}.{suffix}")
        write_atomic(paths[-1], render(table))
    if pdf:
        paths.append(directory / f"{table.layout.name}.pdf")
        write_atomic(paths[-1], compile_latex(standalone(to_latex(table))))
    return paths


def number(cell: Cell, column: Column, line: Line, digits: int) -> str:
    """Return a cell's number as printed, without its marks: `63.58`, `63.58 ± 0.40`, `+0.53`, `—`."""
    if cell.text is not None:
        return cell.text
    digits = digits if column.digits is None else column.digits
    if cell.value is None:
        return MISSING if line.kind != "chance" or column.kind != "params" else ""
    if cell.interval:
        return f"{cell.interval[0]:,.{digits}f}–{cell.interval[1]:,.{digits}f}"
    shown = f"{cell.value:+,.{digits}f}" if line.kind == "difference" else f"{cell.value:,.{digits}f}"
    return shown if cell.sd is None else f"{shown} ± {cell.sd:.{digits}f}"


def heading(column: Column) -> str:
    """Return a column's label, with a dagger if training data contaminates it."""
    return f"{column.label}†" if column.contaminated else column.label


def _head(table: Table) -> tuple[bool, bool, list[str]]:
    """Return whether backbones and variants get a column, and all labels."""
    backbones = len({line.backbone for line in table.lines if line.kind != "chance"}) > 1
    variants = any(line.variant for line in table.lines)
    backbone, method, shown = table.heads
    first = [backbone] * backbones + [method] + [shown] * variants
    return backbones, variants, first + [heading(column) for column in table.columns]


def _first_cells(line: Line, backbones: bool, variants: bool) -> list[str]:
    return [line.backbone] * backbones + [line.method] + [line.variant] * variants


def _sizes(table: Table) -> list[str]:
    """Return the second heading, if there is one: the number of examples of each column."""
    sizes = [f"n = {column.n}" if column.n else "" for column in table.columns]
    return sizes if any(sizes) else []


def to_text(table: Table) -> str:
    """Return an aligned plain-text table; best `**`, second `_`, as in Markdown."""
    backbones, variants, head = _head(table)
    first = len(head) - len(table.columns)
    sizes = _sizes(table)
    rows = [head, *([[""] * first + sizes] if sizes else [])]
    lines_of_head = len(rows)
    rows += [_first_cells(line, backbones, variants) + _plain_cells(table, line) for line in table.lines]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            text.ljust(w) if i < first else text.rjust(w)
            for i, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.insert(lines_of_head, "-" * len(lines[0]))
    return "\n".join([table.caption, "", *lines, "", *table.notes]) + "\n"


def _plain_cells(table: Table, line: Line) -> list[str]:
    around = {"best": "**{}**", "second": "_{}_"}
    texts = []
    for column in table.columns:
        cell = line.cells[column.key]
        text = number(cell, column, line, table.layout.digits)
        texts.append(around.get(cell.mark, "{}").format(text) + "*" * cell.star)
    return texts


def to_markdown(table: Table) -> str:
    """Return a Markdown table; best bold, second in underscores."""
    backbones, variants, head = _head(table)
    first = len(head) - len(table.columns)
    sizes = [f"({size})" if size else "" for size in _sizes(table)] or [""] * len(table.columns)
    sizes = [""] * first + sizes
    head = [f"{label} {size}".strip() for label, size in zip(head, sizes, strict=True)]
    rows = [head, ["---"] * first + ["---:"] * len(table.columns)]
    for line in table.lines:
        cells = [text.replace("***", r"**\*") for text in _plain_cells(table, line)]
        rows.append(_first_cells(line, backbones, variants) + cells)
    body = "\n".join("| " + " | ".join(text.replace("|", r"\|") for text in row) + " |" for row in rows)
    notes = "\n".join(f"- {note}" for note in table.notes)
    return f"{table.caption}\n\n{body}\n\n{notes}\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "—": "---",
    "–": "--",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "×": r"$\times$",
    "α": r"$\alpha$",
    "−": "$-$",
    "<": "$<$",
    ">": "$>$",
}


def escape(text: str) -> str:
    """Return plain text as LaTeX."""
    return "".join(_LATEX.get(char, char) for char in text)


def to_latex(table: Table) -> str:
    """Return LaTeX in the paper's layout: one `table`, or a long one as one for each backbone."""
    groups = [list(lines) for _, lines in groupby(table.lines, key=lambda line: line.backbone)]
    parts = [table.lines] if len(table.lines) <= PAGE or len(groups) < 2 else groups
    needs = f"% needs \\usepackage{{{','.join(LATEX_PACKAGES)}}}"
    return "\n".join([needs, *(_latex_float(table, lines, len(parts) > 1) for lines in parts), ""])


def _latex_float(table: Table, lines: list[Line], part: bool) -> str:
    backbones, variants, head = _head(table)
    first = len(head) - len(table.columns)
    sizes = [rf"{{\scriptsize {size}}}" if size else "" for size in _sizes(table)]
    body = [" & ".join(rf"\textbf{{{escape(label)}}}" for label in head) + r" \\"]
    if sizes:
        body.append(" & ".join([""] * first + sizes) + r" \\")
    for _, group in groupby(lines, key=lambda line: line.backbone):
        body += [r"\midrule", *_latex_group(table, list(group), backbones, variants)]
    caption = f"{table.caption} {lines[0].backbone}." if part and lines[0].backbone else table.caption
    label = "-".join([table.layout.name.replace("_", "-"), *([lines[0].backbone.lower()] if part else [])])
    banner = [r"\textbf{REHEARSAL}\par\smallskip"] if table.layout.rehearsal else []
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering",
            *banner,
            rf"\caption{{{escape(caption)}}}",
            rf"\label{{tab:{label}}}",
            r"\begin{adjustbox}{max width=\linewidth, max totalheight=0.8\textheight}",
            rf"\begin{{tabular}}{{{'l' * first}{'r' * len(table.columns)}}}",
            r"\toprule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
            rf"\par\smallskip\footnotesize {escape(' '.join(table.notes))}",
            r"\end{table}",
        ]
    )


def _latex_group(table: Table, lines: list[Line], backbones: bool, variants: bool) -> Iterable[str]:
    for index, line in enumerate(lines):
        cells = [_latex_cell(table, line, column) for column in table.columns]
        same = index > 0 and lines[index - 1].method == line.method
        method = "" if same else escape(line.method)
        method = rf"\textbf{{{method}}}" if line.ours and method else method
        start = [""] * backbones
        if backbones and index == 0 and line.backbone:
            start = [rf"\multirow{{{len(lines)}}}{{*}}{{\textbf{{{escape(line.backbone)}}}}}"]
        yield " & ".join([*start, method, *([escape(line.variant)] * variants), *cells]) + r" \\"


def _latex_cell(table: Table, line: Line, column: Column) -> str:
    cell = line.cells[column.key]
    text = escape(number(cell, column, line, table.layout.digits))
    if line.kind == "difference":
        text = text.replace("-", "$-$", 1) if text.startswith("-") and cell.value is not None else text
    text += "*" * cell.star
    around = {"best": r"\textbf{%s}", "second": r"\underline{%s}"}
    return around.get(cell.mark, "%s") % text


def to_csv(table: Table) -> str:
    """Return one row for each line and column, with full precision and n on every number."""
    out = io.StringIO()
    records = list(_records(table))
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def to_json(table: Table) -> str:
    """Return everything about the table as JSON: values, tests behind the stars, missing runs, notes."""
    whole = {
        "name": table.layout.name,
        "caption": table.caption,
        "rehearsal": table.layout.rehearsal,
        "notes": table.notes,
        "values": list(_records(table)),
        "tests": [_finite(test) for test in table.tests],
        "missing": table.missing,
    }
    return json.dumps(as_json(whole), indent=2, ensure_ascii=False) + "\n"


def _finite(test: dict[str, Any]) -> dict[str, Any]:
    """Keep an infinite t as text, which JSON has no number for."""
    return {k: str(v) if isinstance(v, float) and math.isinf(v) else v for k, v in test.items()}


def _records(table: Table) -> Iterable[dict[str, Any]]:
    backbone, method, shown = (head.lower() for head in table.heads)
    for line in table.lines:
        for column in table.columns:
            cell = line.cells[column.key]
            low, high = cell.interval or (None, None)
            yield {
                backbone: line.backbone,
                method: line.method,
                shown: line.variant or line.kind,
                "column": column.key,
                "examples": column.n,
                "runs": cell.runs,
                "value": cell.value if cell.text is None else cell.text,
                "sd": cell.sd,
                "low": low,
                "high": high,
                "mark": cell.mark,
                "star": cell.star,
                "rehearsal": table.layout.rehearsal,
            }


def standalone(latex: str) -> str:
    """Return a whole LaTeX document with tables on landscape pages."""
    packages = "\n".join(rf"\usepackage{{{name}}}" for name in LATEX_PACKAGES)
    return (
        "\\documentclass{article}\n\\usepackage[utf8]{inputenc}\n\\usepackage[T1]{fontenc}\n"
        f"\\usepackage[a4paper,landscape,margin=15mm]{{geometry}}\n{packages}\n\\pagestyle{{empty}}\n"
        f"\\begin{{document}}\n{latex}\\end{{document}}\n"
    )


TEX_LIVE = (
    "install TeX Live (Debian, Ubuntu: apt-get install texlive-latex-recommended texlive-latex-extra), "
    "or do without the PDF."
)


def compile_latex(document: str) -> bytes:
    """Return the PDF of a whole LaTeX document.

    Raises:
        ConfigError: pdflatex is not installed, or refuses the document, with its message.
    """
    engine = shutil.which("pdflatex")
    if engine is None:
        raise ConfigError(f"pdflatex was not found, which makes PDFs of tables: {TEX_LIVE}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "table.tex").write_text(document)
        command = [engine, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "table.tex"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120
        )
        if done.returncode:
            errors = [line for line in done.stdout.splitlines() if line.startswith("!")]
            why = " ".join(errors) or done.stdout[-300:]
            raise ConfigError(f"pdflatex fails: {why} If it lacks a package, {TEX_LIVE}")
        return (Path(folder) / "table.pdf").read_bytes()
