"""The stages of one run, and the run as a whole; torch is loaded only where a model is needed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from dypam.checkpoint import Checkpoints
from dypam.config import ConfigError, RunConfig
from dypam.corpus import files_of
from dypam.distributed import rank
from dypam.lease import Lease
from dypam.record import Record
from dypam.validate import check_call, check_targets
from eval.score import ScoreError, are_current, expected, score_run


def run(config: RunConfig) -> None:
    """Train, generate and score; stages that are done are not done again, nor is torch loaded for them."""
    record = Record.open(config.run_dir, config, None)
    if not record.finished():
        _prepare(config)
    if not record.finished("train"):
        _check_tests(config)
    with _lease(
        config
    ) as lease:  # one for all stages, so that no other worker begins the next one in between
        _train(config, lease)
        if lease is None:
            return
        _generate(config, lease)
        try:
            _score(config, lease)
        except ScoreError:  # a prediction file that is damaged or has lost rows
            _prepare(config)
            _generate(config, lease, again=True)
            _score(config, lease)


def train(config: RunConfig) -> None:
    """Train the run's adapter (every process of a launcher calls this)."""
    if not Record.open(config.run_dir, config, None).finished("train"):
        _prepare(config)
    with _lease(config) as lease:
        _train(config, lease)


def generate(config: RunConfig) -> None:
    """Generate the responses to every test set, on the first process alone."""
    if rank() != 0:
        return
    if not Record.open(config.run_dir, config, None).finished("generate"):
        _prepare(config)
    with _acquire(config) as lease:
        _generate(config, lease)


def score(config: RunConfig) -> None:
    """Score the predictions under every protocol and print the accuracies; no torch."""
    if Record.open(config.run_dir, config, None).status is None:
        raise ConfigError(f"{config.run_dir} holds no run yet; start it with scripts/run.py.")
    with _lease(config) as lease:
        if lease is not None:
            _score(config, lease)


def is_run(config: RunConfig) -> bool:
    """Whether a run is finished and its predictions are those scored; `ConfigError` if it is another run."""
    return Record.open(config.run_dir, config, None).finished() and are_current(Path(config.run_dir))


def is_trained(config: RunConfig) -> bool:
    """Whether training is done."""
    return Record.open(config.run_dir, config, None).finished("train")


def is_generated(config: RunConfig) -> bool:
    """Whether generation is done."""
    return Record.open(config.run_dir, config, None).finished("generate")


def _prepare(config: RunConfig) -> None:
    """Refuse what cannot be run before anything is written, and make the backbone."""
    check_targets(config)
    prepare_backbone(config)


def _check_tests(config: RunConfig) -> None:
    """Refuse test sets that cannot be had, or answers of another format, before hours of training."""
    if rank() == 0:
        files = files_of(config.runtime)
        for test in config.suite.tests.values():
            expected(test, files)


def _train(config: RunConfig, lease: Lease | None) -> None:
    if Record.open(config.run_dir, config, None).finished("train"):
        if lease:  # a worker killed just after training was recorded leaves them
            Checkpoints(config.run_dir, lease).clear()
        return _say(f"{config.run_dir}: trained before.")
    from dypam.train import train as stage

    stage(config, lease)


def _generate(config: RunConfig, lease: Lease, *, again: bool = False) -> None:
    if Record.open(config.run_dir, config, None).finished("generate") and not again:
        return _say(f"{config.run_dir}: predictions are there.")
    from eval.generate import generate as stage

    stage(config, lease)


def _score(config: RunConfig, lease: Lease) -> None:
    run_dir = Path(config.run_dir)
    scores = score_run(run_dir, config.suite, files_of(config.runtime), guard=lease.guard)
    for protocol, sets in scores["protocols"].items():
        cells = [f"{name} {100 * row['correct'] / row['n']:.2f} (n={row['n']})" for name, row in sets.items()]
        _say(f"{run_dir}: {protocol}: {', '.join(cells)}")


def prepare_backbone(config: RunConfig) -> None:
    """Make a backbone that comes in no hub's format, unless it was made before."""
    call = dict(config.backbone.convert or {})
    if call and not Path(config.backbone.path).is_dir():
        make = check_call(call, "backbone.convert", "target", "cache", "offline")
        del call["_target_"]
        cache, offline = Path(config.runtime.cache_dir), config.runtime.offline
        make(cache / "backbones" / config.backbone.path, cache=cache, offline=offline, **call)


def _acquire(config: RunConfig) -> Lease:
    return Lease.acquire(config.run_dir, config.runtime.lease_ttl)


def _lease(config: RunConfig) -> AbstractContextManager[Lease | None]:
    return _acquire(config) if rank() == 0 else nullcontext()


def _say(message: str) -> None:
    if rank() == 0:
        print(message, flush=True)
