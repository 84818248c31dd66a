"""How every figure of the project looks: sizes, fonts, colours, the note on its face, and how it is saved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from dypam.files import write_atomic

COLUMN = 3.33
# Okabe and Ito's palette, in an order that also differs in lightness; yellow is left out (too pale on paper).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
SEQUENTIAL = "cividis"
DIVERGING = "PuOr_r"
RANDOM = "RANDOM WEIGHTS – shows nothing learned"
REHEARSAL = "REHEARSAL – nano models, not the paper's"

_RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "legend.fontsize": 6,
    "figure.titlesize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.titlelocation": "left",
    "axes.prop_cycle": cycler(color=COLOURS),
    "pdf.fonttype": 42,
    "image.interpolation": "nearest",
}

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Run a drawing function under the project's style, without touching matplotlib's global settings."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(_RC):
            return draw(*args, **kwargs)

    return wrapper


def canvas(width: float, height: float, notes: Sequence[str | None] = ()) -> Figure:
    """Return an empty figure of `width` × `height` inches, with what must be said written on its face."""
    figure = Figure(figsize=(width, height), layout="constrained")
    if said := [note for note in dict.fromkeys(notes) if note]:
        figure.suptitle("\n".join(said), color=COLOURS[1], fontweight="bold", fontsize=6.5)
    return figure


def heat(
    axes: Axes,
    values: np.ndarray,
    *,
    diverging: bool = False,
    limit: float | None = None,
    label: str | None = None,
    bar: bool = True,
) -> AxesImage:
    """Draw a [rows, columns] map, with a colour bar unless `bar` is false.

    The scale ends at the 99.5th percentile of the absolute values (or at `limit`), so that one massive
    dimension does not turn everything else into one colour; the bar's arrow says that values lie beyond.
    """
    top = float(np.nanpercentile(np.abs(values), 99.5)) if limit is None else limit
    top = top or 1.0
    image = axes.imshow(
        values,
        aspect="auto",
        cmap=DIVERGING if diverging else SEQUENTIAL,
        vmin=-top if diverging else 0.0,
        vmax=top,
        rasterized=True,
    )
    axes.spines[["top", "right"]].set_visible(True)
    if bar:
        _colour_bar(
            axes,
            image,
            extend=("both" if diverging else "max") if np.nanmax(np.abs(values)) > top else "neither",
            label=label,
        )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.MaxNLocator(4, integer=True, min_n_ticks=1))
    return image


def _colour_bar(axes: Axes, image: AxesImage, *, extend: Any, label: str | None) -> None:
    """Put a slim colour bar beside the axes, with few ticks."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(
        image, ax=axes, pad=0.02, fraction=0.06, aspect=14, extend=extend, label=label or ""
    )
    bar.outline.set_linewidth(0.5)  # type: ignore[operator]
    bar.locator = ticker.MaxNLocator(3)
    bar.update_ticks()


def legend_above(axes: Axes, columns: int = 2) -> None:
    """Make room above the data and put the legend there, so that it covers nothing and moves no axis."""
    low, high = axes.get_ylim()
    rows = -(-len(axes.get_legend_handles_labels()[1]) // columns)
    axes.set_ylim(low, high + 0.22 * rows * (high - low))
    legend = axes.legend(
        ncols=columns, loc="upper left", columnspacing=0.8, borderaxespad=0, handletextpad=0.3
    )
    legend.set_in_layout(False)


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """Write `<out>/<name>.pdf` (vector) and `.png` (300 dpi), the same bytes for the same figure."""
    paths = []
    for kind, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
        buffer = BytesIO()
        with matplotlib.rc_context(_RC):
            figure.savefig(buffer, format=kind, dpi=300, metadata=metadata)
        paths.append(out / f"{name}.{kind}")
        write_atomic(paths[-1], buffer.getvalue())
    return paths
