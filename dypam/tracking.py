"""What a person watches while a run trains: a progress bar, and Weights & Biases where it is wanted."""

from __future__ import annotations

import importlib.util
import netrc
import os
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dypam.config import ConfigError, RunConfig, Runtime


class Tracker:
    """The progress bar (loss, tokens/s, time left) and the W&B run of a process; all but rank 0 are mute.

    Args:
        config: the run; `runtime.progress` and `runtime.wandb` switch both parts.
        identifier: the run's id in W&B, the same in every attempt and in no other run.
        total: optimizer steps of the whole run.
        done: steps that an earlier attempt has behind it.
        mute: show and send nothing.
    """

    def __init__(self, config: RunConfig, identifier: str, total: int, done: int, mute: bool) -> None:
        name = f"{config.method['name']} on {config.backbone.name}, {config.suite.name}, seed {config.seed}"
        self._bar = tqdm(
            total=total, initial=done, desc=name, unit="step", disable=mute or not config.runtime.progress
        )
        self._run = None if mute else start_wandb(config, name, identifier)
        self._seconds, self._tokens = 0.0, 0

    def step(self, step: int, loss: float, lr: float, tokens: int, seconds: float) -> None:
        """Show an optimizer step, the tokens that it read and the time that it took."""
        self._tokens += tokens
        self._seconds += seconds
        speed = self._tokens / self._seconds
        self._bar.set_postfix(loss=f"{loss:.3f}", tokens_per_s=f"{speed:.0f}", refresh=False)
        self._bar.update()
        self._send({"loss": loss, "lr": lr, "tokens_per_s": speed}, step)

    def evaluation(self, step: int, val_loss: float, metrics: dict[str, Any]) -> None:
        """Show a validation and what the method reports with it."""
        if not self._bar.disable:
            self._bar.write(f"step {step}: validation loss {val_loss:.4f}")
        numbers = {f"method/{key}": value for key, value in metrics.items() if isinstance(value, int | float)}
        self._send({"val_loss": val_loss, **numbers}, step)

    def close(self, failed: bool = False) -> None:
        """End bar and W&B run."""
        self._bar.close()
        if self._run is not None:
            self._run.finish(exit_code=int(failed))

    def _send(self, values: dict[str, Any], step: int) -> None:
        if self._run is not None:
            self._run.log(values, step=step)


def wandb_mode(choice: str) -> str | None:
    """Return W&B's mode for `runtime.wandb`, None for no W&B at all.

    `auto` is online with a key, offline without, and off where wandb is not installed.
    """
    if choice == "off" or (choice == "auto" and importlib.util.find_spec("wandb") is None):
        return None
    if choice != "auto":
        return choice
    return "online" if os.environ.get("WANDB_API_KEY") or _has_netrc_key() else "offline"


def start_wandb(config: RunConfig, name: str, identifier: str) -> Any:
    """Return a W&B run that goes on where an earlier attempt of the same run stopped, or None.

    Raises:
        ConfigError: W&B is asked for and not installed, or does not start.
    """
    about = {
        "name": name,
        "id": identifier,
        "dir": config.run_dir,
        "config": config.identity(),
    }
    return _start(config.runtime, about)


def log_drawings(config: RunConfig, paths: list[Path]) -> None:
    """Send files of tables and figures as one artifact, in a run beside those of their experiment.

    Args:
        config: any run of the experiment; `runtime` says where to, `results` where offline files go.
        paths: the files; without any, nothing is done.
    """
    # where wandb keeps what an offline run will send
    os.environ.setdefault("WANDB_DATA_DIR", str(Path(config.results).absolute() / "wandb"))
    name = config.runtime.experiment or "drawings"
    about = {"name": name, "job_type": "tables", "dir": config.results}
    if not paths or (run := _start(config.runtime, about)) is None:
        return
    import wandb

    artifact = wandb.Artifact(name, type="tables")
    for path in paths:
        artifact.add_file(str(path))
    run.log_artifact(artifact)
    run.finish()


def _start(runtime: Runtime, about: dict[str, Any]) -> Any:
    """Return a W&B run in the group of the experiment, None where W&B is off; raise `ConfigError`."""
    mode = wandb_mode(runtime.wandb)
    if mode is None:
        return None
    try:
        import wandb
    except ImportError as error:
        raise ConfigError(
            f"runtime.wandb={runtime.wandb}: wandb is not installed; install it or set runtime.wandb=off."
        ) from error
    try:
        return wandb.init(
            project=runtime.wandb_project,
            group=runtime.experiment,
            resume="allow" if mode == "online" and "id" in about else None,
            mode=mode,
            settings=wandb.Settings(silent=True),
            **about,
        )
    except wandb.Error as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"runtime.wandb={runtime.wandb}: W&B does not start ({reason}); set runtime.wandb=off."
        ) from error


def _has_netrc_key() -> bool:
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False
