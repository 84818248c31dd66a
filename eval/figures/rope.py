"""Figure 2: how each RoPE pair's share of the attention score answers to relative distance, in closed form.

A query and a key whose pair i points the same way contribute |q_i||k_i| cos(Δ θ_i) to the score at relative
distance Δ.  θ comes from the backbone YAML's numbers alone, context-extension scaling included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dypam.config import ConfigError
from eval.figures import style


def head_dim(architecture: Mapping[str, Any]) -> int:
    """Return d_h of an attention head."""
    return int(
        architecture.get("head_dim") or architecture["hidden_size"] // architecture["num_attention_heads"]
    )


def rope_kinds(architecture: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each kind of rotary embedding in a model: name → rope_type, rope_theta and scaling numbers.

    Reads both spellings of Transformers' configuration: `rope_theta` with `rope_scaling` (and Gemma 3's
    `rope_local_base_freq`), and `rope_parameters`, flat or by layer type.  Raises `ConfigError` without RoPE.
    """
    parameters = architecture.get("rope_parameters")
    if parameters and all(isinstance(value, Mapping) for value in parameters.values()):
        return {kind: dict(value) for kind, value in parameters.items()}
    if parameters:
        return {"full_attention": dict(parameters)}
    if architecture.get("rope_theta") is None:
        raise ConfigError(
            f"backbone.architecture.model_type={architecture.get('model_type')} has no rope_theta: "
            "choose a backbone with rotary position embeddings for this figure."
        )
    scaling = dict(architecture.get("rope_scaling") or {})
    kinds = {"full_attention": {"rope_theta": architecture["rope_theta"], **scaling}}
    if local := architecture.get("rope_local_base_freq"):
        kinds["sliding_attention"] = {"rope_theta": local}
    return kinds


def inverse_frequencies(parameters: Mapping[str, Any], d: int) -> np.ndarray:
    """Return θ of the d/2 pairs (radians per token) for rope_type default, linear or llama3."""
    theta = float(parameters["rope_theta"]) ** -(np.arange(0, d, 2, dtype=np.float64) / d)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return theta
    if kind == "linear":
        return theta / float(parameters["factor"])
    if kind == "llama3":
        low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
        turns = float(parameters["original_max_position_embeddings"]) * theta / (2 * math.pi)
        keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return theta * (keep + (1 - keep) / float(parameters["factor"]))
    raise ConfigError(f"rope_type={kind} has no closed form here: use default, linear or llama3.")


def response(theta: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Return cos(Δ θ_i), [pairs, distances]."""
    return np.cos(np.outer(theta, distances))


def binned_response(theta: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the mean of cos(Δ θ_i) over the whole distances of each half-open bin, [pairs, bins].

    Sampling one distance a pixel would draw moiré where a pair turns faster than the axis runs; the mean over
    the bin is what a reader can see there, and goes to 0 for such a pair.
    """
    counts = np.diff(edges)
    sums = np.stack([response(theta, np.arange(a, b)).sum(1) for a, b in pairwise(edges)])
    return (sums / counts[:, None]).T


def distance_edges(longest: int, bins: int = 96) -> np.ndarray:
    """Return bin edges from distance 1 to `longest`, whole numbers, evenly spaced in the logarithm."""
    return np.unique(np.geomspace(1, longest + 1, bins).round().astype(int))


@style.styled
def rope_response(
    architecture: Mapping[str, Any], label: str, *, longest: int = 4096, pairs: int = 4
) -> Figure:
    """Draw (a) the response of a few pairs and (b) the map of all, over the logarithm of the distance.

    A model with two kinds of RoPE (Gemma 3: full and sliding attention) gets a row for each.
    """
    kinds = rope_kinds(architecture)
    d = head_dim(architecture)
    edges = distance_edges(longest)
    figure = style.canvas(style.COLUMN, 0.1 + 1.75 * len(kinds))
    grid = figure.subplots(len(kinds), 2, squeeze=False)
    for row, (kind, parameters) in zip(grid, kinds.items(), strict=True):
        theta = inverse_frequencies(parameters, d)
        means = binned_response(theta, edges)
        _lines(row[0], means, edges, pairs)
        row[0].set_title("\n".join([label] + [kind.replace("_", " ")] * (len(kinds) > 1)))
        _map(row[1], means, edges)
    return figure


def _lines(axes: Axes, means: np.ndarray, edges: np.ndarray, pairs: int) -> None:
    """Draw the rows of pairs spread evenly from the fastest, 0, to the slowest."""
    middle = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
    for i in np.linspace(0, len(means) - 1, pairs).round().astype(int):
        axes.plot(middle, means[i], label=f"pair {i}", linewidth=0.8)
    axes.set_xscale("log")
    axes.set(
        xlabel="Distance Δ (tokens)",
        ylabel="Response cos(Δθ)",
        xlim=(1, edges[-1]),
        ylim=(-1.1, 2.15),
        yticks=[-1, 0, 1],
    )
    axes.legend(ncols=2, loc="upper left", columnspacing=0.8, borderaxespad=0, handlelength=0.9)


def _map(axes: Axes, means: np.ndarray, edges: np.ndarray) -> None:
    """Draw the map of all pairs."""
    rows = np.arange(len(means) + 1) - 0.5
    mesh = axes.pcolormesh(edges, rows, means, cmap=style.DIVERGING, vmin=-1, vmax=1, rasterized=True)
    axes.set_xscale("log")
    axes.set(xlabel="Distance Δ (tokens)", ylabel="RoPE pair", ylim=(len(means) - 0.5, -0.5))
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.colorbar(mesh, ax=axes, pad=0.03, aspect=14, ticks=[-1, 0, 1])
