"""The figures of `configs/experiment/*.yaml`: from the runs and backbones that one names to pictures.

Every function here is a `figure.draw._target_`: it takes a `Request` and options, and returns figures by the
suffix of their file name.  What needs a model is collected once into `<results>/figures/data`, by modules
that are imported only then; everything else needs no torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from matplotlib.figure import Figure

from dypam.config import Backbone, ConfigError, RunConfig
from dypam.files import write_atomic
from dypam.record import Record
from eval.aggregate import Collection, Grid, Source, collect, is_rehearsal
from eval.figures import activations, curves, modulation, style
from eval.figures import rope as rope_figure
from eval.score import adapter_digest

Figures = dict[str, Figure]


@dataclass(frozen=True)
class Request:
    """Which runs (or just backbones) a figure is about, and how what it needs is collected."""

    runs: list[RunConfig]
    random: Sequence[str] = ()
    again: bool = False
    prepare: Callable[[RunConfig], None] = lambda run: None
    """Makes a run's backbone, if it is one that is made, before it is loaded."""

    @property
    def data(self) -> Path:
        """Return the folder of collected data."""
        return Path(self.runs[0].results) / "figures" / "data"

    @property
    def backbones(self) -> list[RunConfig]:
        """Return one run for each backbone."""
        return list({run.backbone.name: run for run in self.runs}.values())


def note(run: RunConfig) -> str | None:
    """Return what a picture of this run must say on its face."""
    return style.REHEARSAL if is_rehearsal(run.backbone.name) else None


def _notes(runs: Sequence[RunConfig]) -> list[str | None]:
    return [note(run) for run in runs]


def _collected(
    request: Request, path: Path, about: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]
) -> Path:
    """Return the file of collected data, made if it is missing, about something else, or wanted again."""
    told = json.dumps(about)
    if request.again or _about(path) != told:
        buffer = BytesIO()
        np.savez_compressed(buffer, about=told, **make())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, buffer.getvalue())
    return path


def _about(path: Path) -> str | None:
    """Return what a file of collected data is about, None if there is no whole file."""
    try:
        with np.load(path) as data:
            return str(data["about"])
    except (OSError, KeyError, ValueError, BadZipFile):
        return None


# --- activations ------------------------------------------------------------------------------------------


def _activations(request: Request, run: RunConfig) -> activations.Activations:
    backbone = run.backbone
    random = backbone.name in request.random or "all" in request.random
    name = f"activations-{backbone.name}{'-random' if random else ''}.npz"

    def make() -> dict[str, np.ndarray]:
        from eval.figures.collect import activations as measure
        from eval.figures.collect import load

        if not random:
            request.prepare(run)
        return measure(*load(run, random=random))

    about = {
        "backbone": backbone.name,
        "label": backbone.label,
        "weights": "random" if random else "pretrained",
        "position": position_kind(backbone),
        "source": {"path": backbone.path, "revision": backbone.revision, "made": backbone.convert},
        "note": note(run),
    }
    return activations.Activations.read(_collected(request, request.data / name, about, make))


def position_kind(backbone: Backbone) -> str:
    """Return how a backbone knows positions: rope, alibi or learned."""
    return {"bloom": "alibi", "opt": "learned"}.get(backbone.architecture["model_type"], "rope")


def heterogeneity(request: Request, parts: Sequence[str] = tuple("qkv"), depth: float = 0.5) -> Figures:
    """Return Figure 1 for each backbone: a picture each of Q, K and V, and one of the three side by side.

    Its heads are those of the layer at `depth`, a share of all layers.
    """
    if not 0 <= depth < 1:
        raise ConfigError(f"figure.draw.depth is {depth}; give a share of the layers, 0 <= depth < 1.")
    found: Figures = {}
    for run in request.backbones:
        data = _activations(request, run)
        suffix = f"-{run.backbone.name}"
        found |= {f"{suffix}-{part}": activations.heterogeneity(data, part, depth) for part in parts}
        found[f"{suffix}-qkv"] = activations.parts(data)
    return found


def across_models(request: Request, part: str = "q") -> Figures:
    """Return Figure 7."""
    return {"": activations.across_models([_activations(request, run) for run in request.backbones], part)}


def token_classes(request: Request, part: str = "q") -> Figures:
    """Return Figure 8."""
    return {"": activations.token_classes([_activations(request, run) for run in request.backbones], part)}


def rope(request: Request, longest: int = 4096) -> Figures:
    """Return Figure 2 for each backbone, in closed form."""
    return {
        f"-{run.backbone.name}": rope_figure.rope_response(
            run.backbone.architecture, run.backbone.label, longest=longest
        )
        for run in request.backbones
    }


# --- trained adapters -------------------------------------------------------------------------------------


def _modulations(request: Request) -> list[modulation.Modulation]:
    """Return what is known of every run that has finished; refuse if none has."""
    found: dict[tuple[str, str], modulation.Modulation] = {}
    for run in request.runs:
        if "train" not in _record(run)["stages"]:
            continue
        name = f"modulation-{run.suite.name}-{run.backbone.name}-{run.method['name']}-seed{run.seed}.npz"
        about = {
            "backbone": run.backbone.label,
            "suite": run.suite.label,
            "note": note(run),
            "adapter": adapter_digest(Path(run.run_dir)),
        }

        def make(run: RunConfig = run) -> dict[str, np.ndarray]:
            from eval.figures.scales import of_run

            return of_run(run)

        if (place := (run.backbone.name, run.suite.name)) in found:
            raise ConfigError(
                f"this figure has one run for a backbone and suite, and {run.run_dir} is another of "
                f"{' on '.join(place)}: choose one method and one seed."
            )
        found[place] = modulation.Modulation.read(_collected(request, request.data / name, about, make))
    if not found:
        raise ConfigError(_nothing(request))
    return list(found.values())


def _record(run: RunConfig) -> dict[str, Any]:
    """Return what a run recorded, no stages if it never started; raise `ConfigError` if it is another run."""
    return Record.open(run.run_dir, run, None).data


def _nothing(request: Request) -> str:
    return (
        f"none of the {len(request.runs)} runs of this figure has finished ({request.runs[0].run_dir}, …): "
        "run them first, with scripts/run.py -m and the same arguments."
    )


def bias_maps(request: Request, parts: Sequence[str] = ("q", "k")) -> Figures:
    """Return Figure 5 (one backbone), or its comparison across models: query biases, and key biases."""
    runs = _modulations(request)
    if lacking := [run.about["backbone"] for run in runs if not set(parts) <= set(run.bias)]:
        raise ConfigError(
            f"the run on {lacking[0]} has no layer bias for {', '.join(parts)}: choose a method that has one."
        )
    return {f"-{part}": modulation.bias_maps(runs, part) for part in parts}


def ranges(request: Request) -> Figures:
    """Return Figure 6 (one backbone), or its comparison across models."""
    return {"": modulation.ranges(_modulations(request))}


# --- accuracies -------------------------------------------------------------------------------------------


def _accuracies(request: Request) -> Collection:
    """Return the scores of the request's runs, which have one backbone and one suite."""
    grid, first = Grid.of(request.runs), request.runs[0]
    if len(grid.backbones) > 1:
        raise ConfigError(
            f"this figure is of one backbone, and the runs have {', '.join(grid.backbones)}: choose one."
        )
    return collect(grid, first.results, Source.of(first.runtime))


def ablation(
    request: Request,
    variants: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    setting: str = "α",
    column: str = "micro",
    protocol: str = "paper",
) -> Figures:
    """Return Figure 4: `variants` (method → label) as marks, `settings` (method → value) as a line."""
    what, notes = f"{column.capitalize()} accuracy (%)", _notes(request.runs)
    found = _accuracies(request)
    (backbone,) = found.grid.backbones

    def point(method: str, label: str) -> curves.Point:
        return curves.Point(label, list(found.by_seed(backbone, method, column, protocol).values()))

    marks, line = ([point(*one) for one in (given or {}).items()] for given in (variants, settings))
    for key, why in found.missing.items():
        print(f"missing: {key}: {why}", file=sys.stderr)
    if not line:
        return {"": curves.ablation(marks, what=what, notes=notes)}
    if not marks:
        return {"": curves.sweep(line, what=what, setting=setting, notes=notes)}
    return {"": curves.ablation_and_sensitivity(marks, line, what=what, setting=setting, notes=notes)}


# --- records ----------------------------------------------------------------------------------------------


def losses(request: Request) -> Figures:
    """Return a picture for each backbone and suite: the losses of its runs."""
    found: dict[str, list[curves.Curve]] = {}
    for run in request.runs:
        record = _record(run)
        if record.get("losses"):
            label = f"{run.method.get('label') or run.method['name']}, {run.seed}"
            place = f"-{run.suite.name}-{run.backbone.name}"
            found.setdefault(place, []).append(curves.Curve(label, record["losses"]))
    if not found:
        raise ConfigError(_nothing(request))
    return {place: curves.losses(rows, notes=_notes(request.runs)) for place, rows in found.items()}


def layer_selection(request: Request) -> Figures:
    """Return, for each backbone, how often DLS chose each layer over the training of the request's runs."""
    found: dict[str, list[np.ndarray]] = {}
    labels = {run.backbone.name: run.backbone.label for run in request.runs}
    for run in request.runs:
        frequency = selection_frequency(_record(run))
        if frequency is not None:
            found.setdefault(run.backbone.name, []).append(frequency)
    if not found:
        raise ConfigError(_nothing(request))
    return {
        f"-{name}": curves.layer_selection(np.array(rows), labels[name], notes=_notes(request.runs))
        for name, rows in found.items()
    }


def selection_frequency(record: Mapping[str, Any]) -> np.ndarray | None:
    """Return for each layer the share of DLS's choices that took it, None if the record has no choice."""
    choices = [choice for row in record.get("metrics", []) for choice in row.get("selections", [])]
    if not choices:
        return None
    taken = np.zeros((len(choices), len(choices[0]["scores"])))
    for row, choice in zip(taken, choices, strict=True):
        row[choice["selected"]] = 1
    frequency: np.ndarray = taken.mean(0)
    return frequency
