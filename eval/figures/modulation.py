"""Figures 5 and 6, and both across models and tasks: what trained DyPAM adapters have learned, from files.

Every function takes what `eval.figures.scales` wrote; none loads torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from eval.figures import style

PARTS = {"q": "Query", "k": "Key"}
STATISTICS = ("mean", "low", "high", "min", "max")
"""Columns of `scale_q` and `scale_k`, over tokens, heads and pairs; low, high: 5th, 95th percentile."""


@dataclass(frozen=True)
class Modulation:
    """One trained adapter, by part: layer biases [layers, d_h/2] and factors [layers, STATISTICS]."""

    bias: dict[str, np.ndarray]
    scale: dict[str, np.ndarray]
    about: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Modulation:
        """Read one file of the collection step."""
        with np.load(path) as data:
            about = json.loads(str(data["about"]))
            bias = {part: data[f"bias_{part}"] for part in PARTS if f"bias_{part}" in data}
            return cls(bias, {part: data[f"scale_{part}"] for part in PARTS}, about)


def _grid(
    runs: Sequence[Modulation], height: float
) -> tuple[Figure, Iterator[tuple[int, int, Axes, Modulation]]]:
    """Return a figure with a row for each backbone and a column for each suite, and what goes where."""
    backbones = list(dict.fromkeys(run.about["backbone"] for run in runs))
    suites = list(dict.fromkeys(run.about["suite"] for run in runs))
    figure = style.canvas(
        style.COLUMN, 0.35 + height * len(backbones), [run.about.get("note") for run in runs]
    )
    axes = figure.subplots(len(backbones), len(suites), squeeze=False, sharex="row", sharey="row")
    for panel in axes.flat:
        panel.set_visible(False)

    def panels() -> Iterator[tuple[int, int, Axes, Modulation]]:
        for run in runs:
            row, column = backbones.index(run.about["backbone"]), suites.index(run.about["suite"])
            panel = axes[row, column]
            panel.set_visible(True)
            panel.set_title(f"{run.about['backbone']}\n{run.about['suite']}")
            yield row, column, panel, run

    return figure, panels()


@style.styled
def bias_maps(runs: Sequence[Modulation], part: str = "q") -> Figure:
    """Draw Figure 5 (one backbone) or its comparison across models: the layer bias, layers by RoPE pairs.

    One scale for the panels of a row, so that the tasks of one backbone can be compared.
    """
    figure, panels = _grid(runs, 1.45)
    limits: dict[str, float] = {}
    for run in runs:
        top = float(np.percentile(np.abs(run.bias[part]), 99.5))
        limits[run.about["backbone"]] = max(limits.get(run.about["backbone"], 0.0), top)
    last = {run.about["backbone"]: run.about["suite"] for run in runs}
    for _, column, axes, run in panels:
        backbone = run.about["backbone"]
        bar = last[backbone] == run.about["suite"]
        style.heat(axes, run.bias[part], diverging=True, limit=limits[backbone] or 1.0, bar=bar)
        axes.set_xlabel(f"{PARTS[part]} pair")
        if column == 0:
            axes.set_ylabel("Layer")
    return figure


@style.styled
def ranges(runs: Sequence[Modulation]) -> Figure:
    """Draw Figure 6 (one backbone) or its comparison: each layer's modulation factor of query and key.

    Line: mean; band: 5th to 95th percentile; dotted: minimum and maximum, over tokens, heads and pairs.
    """
    figure, panels = _grid(runs, 1.4)
    for row, column, axes, run in panels:
        for (part, name), colour in zip(PARTS.items(), style.COLOURS, strict=False):
            mean, low, high, least, most = run.scale[part].T
            layers = np.arange(len(mean))
            axes.plot(layers, mean, color=colour, label=name, linestyle="-" if part == "q" else "--")
            axes.fill_between(layers, low, high, color=colour, alpha=0.25, linewidth=0)
            for edge in (least, most):
                axes.plot(layers, edge, color=colour, linewidth=0.6, linestyle=":")
        axes.axhline(1, color="0.6", linewidth=0.5, zorder=0)
        axes.margins(x=0.02)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_xlabel("Layer")
        if column == 0:
            axes.set_ylabel("Factor s")
            if row == 0:
                style.legend_above(axes)
    return figure
