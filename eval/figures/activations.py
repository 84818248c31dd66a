"""Figures 1, 7 and 8: activation maps over dimensions, heads, layers and token classes, drawn from files.

Every function takes what `eval.figures.collect` wrote; none loads torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from eval.figures import style

PARTS = {"q": "Query", "k": "Key", "v": "Value"}
_POSITION = {"rope": "RoPE", "alibi": "ALiBi", "learned": "learned positions"}


@dataclass(frozen=True)
class Activations:
    """One backbone's activations by part, [classes + 1, layers, heads, d_h], and what is known of them."""

    arrays: dict[str, np.ndarray]
    classes: list[str]
    counts: np.ndarray
    about: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Activations:
        """Read one file of the collection step."""
        with np.load(path) as data:
            arrays = {part: data[part] for part in PARTS}
            about = json.loads(str(data["about"]))
            return cls(arrays, [str(name) for name in data["classes"]], data["counts"], about)

    @property
    def label(self) -> str:
        """Return the backbone's name for people, with its way of knowing positions."""
        return f"{self.about['label']} ({_POSITION[self.about['position']]})"

    @property
    def note(self) -> str | None:
        """Return what the picture must say on its face, if anything."""
        return style.RANDOM if self.about["weights"] == "random" else self.about.get("note")

    def by_dimension(self, part: str) -> np.ndarray:
        """Return [classes + 1, layers, d_h]: the root mean square over heads."""
        return np.sqrt((self.arrays[part].astype(np.float64) ** 2).mean(2))

    def flat(self, part: str) -> np.ndarray:
        """Return [layers, heads · d_h] over all tokens."""
        values = self.arrays[part][0]
        return values.reshape(len(values), -1)

    def class_ratio(self, part: str) -> np.ndarray:
        """Return log2(class / all tokens), [classes, layers, d_h]."""
        values = self.by_dimension(part)
        return np.log2(np.maximum(values[1:], 1e-12) / np.maximum(values[:1], 1e-12))


def unevenness(values: np.ndarray) -> float:
    """Return the coefficient of variation over the last axis, averaged over the others."""
    return float((values.std(-1) / values.mean(-1)).mean())


@style.styled
def heterogeneity(data: Activations, part: str = "q", depth: float = 0.5) -> Figure:
    """Draw Figure 1 of one backbone for Q, K or V: (a) layers, (b) heads of one, (c, d) classes.

    That one lies at `depth`, a share of all layers.
    """
    layer = int(depth * data.arrays[part].shape[1])
    name = PARTS[part]
    figure = style.canvas(style.COLUMN, 4.7, [data.note])
    a, b, c, d = figure.subplots(4, 1)
    values = data.by_dimension(part)
    style.heat(a, values[0], label="Activation")
    a.set(xlabel=f"{name} dimension", ylabel="Layer", title=f"(a) {data.label}: layers")
    style.heat(b, data.arrays[part][0, layer], label="Activation")
    b.set(xlabel=f"{name} dimension", ylabel="Head", title=f"(b) Heads, layer {layer}")
    _classes_by_layer(c, data, part)
    c.set(xlabel="Layer", title="(c) Token classes across layers")
    style.heat(d, data.class_ratio(part)[:, layer], diverging=True, label="log₂(class / all)")
    d.set_yticks(range(len(data.classes)), data.classes)
    d.set(xlabel=f"{name} dimension", title=f"(d) Token classes, layer {layer}")
    return figure


def _classes_by_layer(axes: Axes, data: Activations, part: str) -> None:
    """Draw each class's overall activation relative to all tokens', by layer."""
    norms = np.sqrt((data.by_dimension(part) ** 2).sum(-1))
    for i, name in enumerate(data.classes):
        marker = "os^Dv"[i % 5]
        axes.plot(norms[i + 1] / norms[0], marker=marker, markersize=2, linewidth=0.8, label=name)
    axes.axhline(1, color="0.6", linewidth=0.6, zorder=0)
    axes.set_ylabel("Activation / all")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    style.legend_above(axes, columns=4)


@style.styled
def parts(data: Activations) -> Figure:
    """Draw Q, K and V of one backbone side by side, layers by dimensions: V is flat where Q and K are not."""
    figure = style.canvas(style.COLUMN * 2, 1.75, [data.note])
    for axes, (part, name) in zip(figure.subplots(1, 3), PARTS.items(), strict=True):
        values = data.by_dimension(part)[0]
        style.heat(axes, values)
        axes.set(xlabel=f"{name} dimension", ylabel="Layer", title=f"{name}, CV {unevenness(values):.2f}")
    return figure


@style.styled
def across_models(models: Sequence[Activations], part: str = "q") -> Figure:
    """Draw Figure 7: layers by dimensions of each model, heads averaged (above) and all H · d_h side by side.

    The lower row is the fair one for models without RoPE, where dimension j of two heads has nothing in
    common.  CV is the coefficient of variation over dimensions, averaged over layers.
    """
    name = PARTS[part]
    figure = style.canvas(style.COLUMN * 2, 3.4, [_named_note(data) for data in models])
    for data, axes in zip(models, figure.subplots(2, len(models), squeeze=False).T, strict=True):
        for ax, values, what in (
            (axes[0], data.by_dimension(part)[0], f"{name} dimension, mean of heads"),
            (axes[1], data.flat(part), f"{name} dimension, all heads"),
        ):
            style.heat(ax, values)
            ax.set(xlabel=what, ylabel="Layer")
            ax.set_title(f"CV {unevenness(values):.2f}")
        axes[0].set_title(f"{_short(data)}\nCV {unevenness(data.by_dimension(part)[0]):.2f}")
    return figure


@style.styled
def token_classes(models: Sequence[Activations], part: str = "q") -> Figure:
    """Draw Figure 8: log2(class / all), layers by dimensions, of each model (row) and token class (column).

    |r| is the mean absolute ratio: how much a model's activations depend on the class of the token.
    """
    columns = max(len(data.classes) for data in models)
    figure = style.canvas(style.COLUMN * 2, 0.3 + 1.35 * len(models), [_named_note(data) for data in models])
    grid = figure.subplots(len(models), columns, squeeze=False, sharex="row", sharey="row")
    for row, data in zip(grid, models, strict=True):
        ratio = data.class_ratio(part)
        limit = float(np.percentile(np.abs(ratio), 99.5)) or 1.0
        for i, axes in enumerate(row):
            style.heat(axes, ratio[i], diverging=True, limit=limit, bar=i == columns - 1)
            axes.set_title(f"{data.classes[i]}, |r| {np.abs(ratio[i]).mean():.2f}")
            axes.set_xlabel(f"{PARTS[part]} dimension")
        row[0].set_ylabel(f"{_short(data)}\nLayer")
    return figure


def _short(data: Activations) -> str:
    """Return a two-line name that fits over a narrow panel."""
    return f"{data.about['label']}\n{_POSITION[data.about['position']]}"


def _named_note(data: Activations) -> str | None:
    """Return the note with its model's name, for pictures of several."""
    return f"{data.about['label']}: {data.note}" if data.note else None
