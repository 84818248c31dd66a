"""Many runs through a launcher of Hydra's (Slurm, Ray, …): each a job that composes and does one run."""

from __future__ import annotations

import time
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, RunMode

from dypam.lease import held_by
from scripts import command, compose, override
from scripts.sweep import LOOK_AGAIN, settle
from scripts.worker import Run


def launch(stage: command.Stage, done: command.Done, runs: list[Run], overrides: list[str]) -> None:
    """Give the runs that are to be done to the launcher of `overrides`; set every run's exit code."""
    todo = [run for run in runs if not settle(run, done)]
    if not todo:
        return
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(compose.CONFIGS), version_base="1.3"):
        launcher = _launcher(stage, override.fixed(overrides))
        try:
            returned = launcher.launch([compose.expanded(run.job) for run in todo], 0)
        except Exception as error:  # a job that died without a word; the others go on
            print(f"The launcher gave up on a job ({type(error).__name__}: {error}).", flush=True)
            returned = [JobReturn() for _ in todo]
    for run, result in zip(todo, returned, strict=True):
        run.code, run.why = _outcome(result) or _look(run, done)


def _launcher(stage: command.Stage, overrides: list[str]) -> Any:
    hydra = GlobalHydra.instance().hydra
    assert hydra
    config = hydra.compose_config(
        "config", overrides, run_mode=RunMode.MULTIRUN, with_log_configuration=False
    )
    HydraConfig.instance().set_config(config)

    def task(composed: Any) -> tuple[int, str]:
        return command.outcome(stage, compose.validated(composed))

    context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(config))
    return Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)


def _outcome(result: JobReturn) -> tuple[int, str] | None:
    """Return exit code and reason of a job that came to an end of its own."""
    if result.status is JobStatus.UNKNOWN:
        return None
    if result.status is JobStatus.FAILED:
        return command.FAILED, f"{type(result._return_value).__name__}: {result._return_value}"
    code, message = result.return_value
    return code, message


def _look(run: Run, done: command.Done) -> tuple[int, str]:
    """Return what a run's files say, when nobody works on it any more."""
    while held_by(run.config.run_dir):
        time.sleep(LOOK_AGAIN)
    if settle(run, done) and run.code is not None:
        return run.code, run.why
    return command.FAILED, "its job ended without a word, or has not begun"
