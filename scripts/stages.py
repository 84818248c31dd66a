"""The stages of one run, and the run as a whole; torch is loaded only where a model is needed."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from data.fetch import Files
from dypam.config import ConfigError, RunConfig
from dypam.distributed import rank
from dypam.lease import Lease
from dypam.record import Record
from dypam.validate import check_targets
from eval.score import ScoreError, score_run


def run(config: RunConfig) -> None:
    """Train, generate and score; stages that are done are not done again, nor is torch loaded for them."""
    record = Record.open(config.run_dir, config, None)
    if not record.finished():
        train(config)
        generate(config)
    if rank() == 0:
        try:
            score(config)
        except ScoreError:  # a prediction file that is damaged or has lost rows
            generate(config, again=True)
            score(config)


def train(config: RunConfig) -> None:
    """Train the run's adapter (every process of a launcher calls this)."""
    if Record.open(config.run_dir, config, None).finished("train"):
        return _say(f"{config.run_dir}: trained before.")
    check_targets(config)
    prepare_backbone(config)
    from dypam.train import train as stage

    with _lease(config) as lease:
        stage(config, lease)


def generate(config: RunConfig, *, again: bool = False) -> None:
    """Generate the responses to every test set, on the first process alone."""
    if rank() != 0:
        return
    if Record.open(config.run_dir, config, None).finished("generate") and not again:
        return _say(f"{config.run_dir}: predictions are there.")
    check_targets(config)
    prepare_backbone(config)
    from eval.generate import generate as stage

    with _lease(config) as lease:
        stage(config, lease)


def score(config: RunConfig) -> None:
    """Score the predictions under every protocol and print the accuracies; no torch."""
    if Record.open(config.run_dir, config, None).status is None:
        raise ConfigError(f"{config.run_dir} holds no run yet; start it with scripts/run.py.")
    run_dir = Path(config.run_dir)
    with Lease.acquire(run_dir, config.runtime.lease_ttl) as lease:
        scores = score_run(run_dir, config.suite, files_of(config), guard=lease.guard)
    for protocol, sets in scores["protocols"].items():
        cells = [f"{name} {100 * row['correct'] / row['n']:.2f} (n={row['n']})" for name, row in sets.items()]
        _say(f"{run_dir}: {protocol}: {', '.join(cells)}")


def files_of(config: RunConfig) -> Files:
    """Return the source of data files that a run's configuration names."""
    runtime = config.runtime
    return Files(runtime.cache_dir, runtime.data_mirror, runtime.offline)


def prepare_backbone(config: RunConfig) -> None:
    """Make a backbone that comes in no hub's format, unless it was made before."""
    call = dict(config.backbone.convert or {})
    if call and not Path(config.backbone.path).is_dir():
        from hydra.utils import get_method

        cache = Path(config.runtime.cache_dir)
        # not `instantiate`, which would hide a DataError in its own
        get_method(call.pop("_target_"))(cache / "backbones" / config.backbone.path, cache=cache, **call)


def _lease(config: RunConfig) -> Any:
    return Lease.acquire(config.run_dir, config.runtime.lease_ttl) if rank() == 0 else nullcontext()


def _say(message: str) -> None:
    if rank() == 0:
        print(message, flush=True)
