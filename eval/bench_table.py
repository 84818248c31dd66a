"""Table 7 from measurements: medians over rounds, ratios to the bare backbone, published numbers beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from dypam.config import Backbone
from eval import stats
from eval.aggregate import is_rehearsal
from eval.captions import REHEARSAL
from eval.layout import Cell, Column, Layout, Line, Table
from eval.published.numbers import read_published

if TYPE_CHECKING:
    from eval.bench import How, Measured, Options

NO_OVERHEAD = {"flops_overhead_m": Cell(text=""), "flops_overhead_pct": Cell(text="")}
"""Where overhead means nothing: that of the backbone over itself, and a ratio of it."""


def table(
    layout: Layout, backbone: Backbone, measured: Mapping[str, Measured], how: How, options: Options
) -> Table:
    """Lay out measurements by method; `measured` has the bare backbone once."""
    layout = replace(layout, rehearsal=layout.rehearsal or is_rehearsal(backbone.name))
    columns = _columns(options)
    base = next(one for one in measured.values() if not one.trainable)
    beside = bool(layout.published) and backbone.name == layout.published_backbone and not layout.rehearsal
    published = {
        method: row for (_, method), row in (read_published(str(layout.published)) if beside else {}).items()
    }
    bare = next(
        (published[name] for name, one in measured.items() if one is base and name in published), None
    )
    lines = []
    for name, one in measured.items():
        shown = {"measured": _measured(one, base)}
        if one is not base:
            ratios = _ratios(one, base)
            shown["× base"] = {key: replace(cell, interval=None) for key, cell in ratios.items()}
            shown["interval"] = ratios
        if row := published.get(name):
            shown["published"] = {key: Cell(value, runs=1) for key, value in row.items()}
            if one is base:
                shown["published"] |= NO_OVERHEAD
            elif bare:
                both = {key: Cell(row[key] / bare[key], runs=1) for key in row.keys() & bare.keys()}
                shown["published × base"] = both | NO_OVERHEAD
        for kind, cells in shown.items():
            whole = {column.key: cells.get(column.key, Cell()) for column in columns}
            lines.append(Line("", one.label, kind, kind, whole))
    missing = (
        {}
        if base.memory
        else {"memory": "only a GPU's allocator counts it by method; measure on a GPU (runtime.device=cuda)."}
    )
    caption = f"{layout.caption.rstrip('.')}, {backbone.label}{' with random weights' * options.random}."
    notes = _notes(layout, base, how, options, beside)
    return Table(layout, columns, lines, caption, notes, missing, tests=_rounds(measured))


def _columns(options: Options) -> list[Column]:
    each = [Column(f"bs{b}_ms_per_token", f"Batch {b} (ms/token)", "measure") for b in options.batches]
    memory = Column("memory_gb", f"Memory, batch {options.batches[0]} (GiB)", "measure")
    flops = Column("flops_overhead_m", "FLOPs added (M/token)", "measure")
    return [*each, memory, flops, Column("flops_overhead_pct", "FLOPs added (%)", "measure")]


def _measured(one: Measured, base: Measured) -> dict[str, Cell]:
    cells = {
        f"bs{batch}_ms_per_token": Cell(median(values), runs=len(values)) for batch, values in one.ms.items()
    }
    if one.memory:
        cells["memory_gb"] = Cell(median(one.memory) / 2**30, runs=len(one.memory))
    if one is base:
        return cells | NO_OVERHEAD
    added = one.flops - base.flops
    cells["flops_overhead_m"] = Cell(added / 1e6, runs=1)
    cells["flops_overhead_pct"] = Cell(100 * added / base.flops, runs=1)
    return cells


def _ratios(one: Measured, base: Measured) -> dict[str, Cell]:
    """Return medians and intervals of the ratios that each round gives."""
    pairs: dict[str, tuple[list[float], list[float]]] = {
        f"bs{batch}_ms_per_token": (values, base.ms[batch]) for batch, values in one.ms.items()
    }
    if one.memory:
        pairs["memory_gb"] = ([float(v) for v in one.memory], [float(v) for v in base.memory])
    cells = dict(NO_OVERHEAD)
    for key, (ours, theirs) in pairs.items():
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        cells[key] = Cell(median(ratios), interval=stats.median_interval(ratios), runs=len(ratios))
    return cells


def _notes(layout: Layout, base: Measured, how: How, options: Options, beside: bool) -> list[str]:
    notes = [REHEARSAL] if layout.rehearsal else []
    notes += [
        f"{how.name}, backbone in {how.precision.replace('_', ' ')}, untrained adapters in fp32; "
        f"{options.prompt_tokens} random tokens of prompt and {options.new_tokens} new ones, whose time is "
        "divided by the number of new tokens of all sequences.",
        f"Medians of {options.rounds} rounds, in which the methods take turns; ratios within a round, with "
        f"intervals of their median ({100 * stats.median_coverage(options.rounds):.1f} %, order statistics).",
        f"FLOPs are counted, two for a multiplication; the backbone alone: {base.flops / 1e6:,.1f} M/token.",
    ]
    if beside:
        notes.append(
            "Published times were measured on an RTX 4090; lengths of prompt and response are not stated."
        )
    elif layout.published:
        notes.append(
            f"Published numbers are those of {layout.published_backbone}, so they are not shown here."
        )
    return notes


def _rounds(measured: Mapping[str, Measured]) -> list[dict[str, object]]:
    """Return every single measurement, for the JSON."""
    return [
        {"test": "rounds", "method": name, "batch": batch, "ms_per_token": values, "peak_bytes": one.memory}
        for name, one in measured.items()
        for batch, values in one.ms.items()
    ]
