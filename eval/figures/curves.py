"""Figure 4, its RoSA relatives, and loss curves: accuracies over variants and settings, values over steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from eval.figures import style


@dataclass(frozen=True)
class Point:
    """A variant's accuracies in percent, one for each seed that has finished."""

    label: str
    accuracies: list[float]

    @property
    def mean(self) -> float:
        """Return the mean over seeds, NaN without any."""
        return float(np.mean(self.accuracies)) if self.accuracies else float("nan")

    @property
    def sd(self) -> float:
        """Return the sample standard deviation over seeds, 0 where there is only one."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else 0.0


@dataclass(frozen=True)
class Curve:
    """One run's losses as its record has them: rows with `step` and `loss` or `val_loss`."""

    label: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and values of the rows that have `key`."""
        pairs = [(row["step"], row[key]) for row in self.rows if row.get(key) is not None]
        steps, values = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        return steps, values


@style.styled
def ablation_and_sensitivity(
    variants: Sequence[Point],
    settings: Sequence[Point],
    *,
    what: str,
    setting: str = "α",
    notes: Sequence[str | None] = (),
) -> Figure:
    """Draw Figure 4: (a) accuracy of each variant, (b) accuracy over a setting.

    Marks are means, bars ± one standard deviation over seeds, n is printed; a variant without a finished run
    keeps its row, marked with a dash.  `what` names the accuracy, as in "Micro accuracy (%)".
    """
    figure = style.canvas(style.COLUMN, 1.9, notes)
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
    variant_marks(left, variants, what)
    left.set_title("(a) Ablation")
    setting_line(right, settings, what, setting)
    right.set_title("(b) Sensitivity")
    return figure


@style.styled
def sweep(settings: Sequence[Point], *, what: str, setting: str, notes: Sequence[str | None] = ()) -> Figure:
    """Draw accuracy over one setting, such as the layer ratio of DLS."""
    figure = style.canvas(style.COLUMN, 1.8, notes)
    setting_line(figure.subplots(), settings, what, setting)
    return figure


@style.styled
def ablation(variants: Sequence[Point], *, what: str, notes: Sequence[str | None] = ()) -> Figure:
    """Draw the accuracy of each variant, such as RoSA's ablation."""
    figure = style.canvas(style.COLUMN, 0.7 + 0.22 * len(variants), notes)
    variant_marks(figure.subplots(), variants, what)
    return figure


def variant_marks(axes: Axes, variants: Sequence[Point], what: str) -> None:
    """Draw one mark with an error bar a variant; the first variant's mean is the line to compare with."""
    rows = np.arange(len(variants))
    for row, point in zip(rows, variants, strict=True):
        if point.accuracies:
            colour = style.COLOURS[0 if row == 0 else 1]
            axes.errorbar(
                point.mean,
                row,
                xerr=point.sd,
                fmt="o",
                markersize=3.5,
                color=colour,
                capsize=2,
                linewidth=0.9,
            )
        else:
            axes.text(
                0.02, float(row), "— no run", transform=axes.get_yaxis_transform(), va="center", fontsize=6
            )
    if variants and variants[0].accuracies:
        axes.axvline(variants[0].mean, color="0.6", linewidth=0.6, linestyle="--", zorder=0)
    axes.set_yticks(rows, [f"{point.label}, n={len(point.accuracies)}" for point in variants])
    axes.set(xlabel=what, ylim=(len(variants) - 0.5, -0.5))
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(3))


def setting_line(axes: Axes, settings: Sequence[Point], what: str, setting: str) -> None:
    """Draw means with error bars over a setting's values, evenly spaced; a missing one keeps its tick."""
    places = [i for i, point in enumerate(settings) if point.accuracies]
    known = [settings[i] for i in places]
    axes.errorbar(
        places,
        [point.mean for point in known],
        yerr=[point.sd for point in known],
        fmt="o-",
        markersize=3.5,
        capsize=2,
        linewidth=0.9,
    )
    counts = sorted({len(point.accuracies) for point in known})
    seeds = "–".join(map(str, dict.fromkeys([counts[0], counts[-1]]))) if counts else "0"
    axes.set_xticks(range(len(settings)), [point.label for point in settings])
    axes.set_xlim(-0.4, len(settings) - 0.6)
    axes.set(xlabel=f"{setting} (n={seeds} seeds)", ylabel=what)
    axes.margins(y=0.15)
    axes.yaxis.set_major_locator(MaxNLocator(4))


@style.styled
def layer_selection(frequencies: np.ndarray, label: str, *, notes: Sequence[str | None] = ()) -> Figure:
    """Draw how often DLS chose each layer, from the share of its choices [runs, layers], or [layers] of one.

    Bars are means over runs, marks the runs themselves, the dashed line the share that is chosen each time.
    """
    runs = np.atleast_2d(frequencies)
    figure = style.canvas(style.COLUMN, 1.6, notes)
    axes = figure.subplots()
    layers = np.arange(runs.shape[1])
    axes.bar(layers, runs.mean(0), color=style.COLOURS[4], width=0.8)
    if len(runs) > 1:
        marks = axes.plot(np.tile(layers, len(runs)), runs.ravel(), ".", color=style.COLOURS[0], markersize=2)
        marks[0].set_clip_on(False)  # whole at 0 and 1 too
    axes.axhline(runs.mean(), color="0.4", linewidth=0.6, linestyle="--")
    axes.set(xlabel="Layer", ylabel="Selection frequency", ylim=(0, 1), title=f"{label}, n={len(runs)}")
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    return figure


def smooth(values: np.ndarray, weight: float = 0.9) -> np.ndarray:
    """Return the exponential moving average, unbiased at the start."""
    total, mass, out = 0.0, 0.0, np.empty_like(values)
    for i, value in enumerate(values):
        total, mass = weight * total + (1 - weight) * value, weight * mass + (1 - weight)
        out[i] = total / mass
    return out


@style.styled
def losses(curves: Sequence[Curve], *, notes: Sequence[str | None] = ()) -> Figure:
    """Draw training loss (raw, faint; smoothed, strong) and validation loss of some runs, over steps."""
    figure = style.canvas(style.COLUMN, 1.7 + 0.13 * -(-len(curves) // 3), notes)
    left, right = figure.subplots(1, 2)
    for i, curve in enumerate(curves):
        colour, dash = style.COLOURS[i % 7], ("-", "--", ":")[i // 7 % 3]
        steps, values = curve.series("loss")
        left.plot(steps, values, color=colour, alpha=0.2, linewidth=0.5)
        left.plot(steps, smooth(values), color=colour, linestyle=dash, label=curve.label)
        steps, values = curve.series("val_loss")
        right.plot(steps, values, color=colour, linestyle=dash, marker=".", markersize=3, label=curve.label)
    left.set(xlabel="Step", ylabel="Training loss")
    right.set(xlabel="Step", ylabel="Validation loss")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, columnspacing=0.8)
    return figure
