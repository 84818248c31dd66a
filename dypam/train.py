"""Training: a loop round DeepSpeed's ZeRO-1 for any `Method`; killed anywhere, it goes on exactly.

After a kill at any moment the same command ends in the same weights, bit for bit: every step is a function of
the last checkpoint and the configuration.  With several processes each calls `train`; rank 0 alone has the
lease, and writes.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dypam import distributed, engine, events, machine, schedule, validate
from dypam.adapter import save_adapter
from dypam.checkpoint import Checkpoints
from dypam.config import ConfigError, RunConfig
from dypam.count import count
from dypam.lease import Lease
from dypam.method import Method
from dypam.record import Preempted, Record
from dypam.session import Session
from dypam.step import ZeroStep
from dypam.tracking import Tracker


class Diverged(RuntimeError):  # noqa: N818
    """The loss or a gradient is not a finite number any more."""


def train(config: RunConfig, lease: Lease | None) -> None:
    """Train a run to its end, or from where it was left, and write its best adapter and its record.

    A method that trains nothing is only recorded.  A run that is trained already is left as it is.

    Args:
        config: the run.
        lease: the right to write; None on all processes but the first.

    Raises:
        ConfigError: the configuration and the machine, the data or an earlier attempt do not fit.
        Diverged: NaN or infinity in the loss or a gradient; nothing of it is saved.
        Preempted: SIGTERM came; there is a checkpoint of the last step, or training is done.
    """
    device = distributed.pick_device(config.runtime.device)
    if config.runtime.threads:
        torch.set_num_threads(config.runtime.threads)
    method = validate.check_targets(config)
    distributed.start(device)
    record = Record.open(config.run_dir, config, lease)
    if distributed.broadcast(record.finished("train")):
        return
    stopped = False
    with record.stage("train"):
        # another instance: attaching it to a model without weights leaves traces in a method
        record.update(parameters=vars(count(validate.check_targets(config), config.backbone)))
        if method.trainable:
            stopped = Trainer(config, method, lease, record, device).run()
    machine.release(device)
    if lease is not None:  # not before the record says that they are needed no more
        Checkpoints(config.run_dir, lease).clear()
    if stopped:
        raise Preempted


class Trainer:
    """One process's part of one training run; `run` does all of it."""

    def __init__(
        self, config: RunConfig, method: Method, lease: Lease | None, record: Record, device: str
    ) -> None:
        self.config, self.method, self.lease, self.record, self.device = config, method, lease, record, device
        together: dict[str, Any] = {"share": distributed.broadcast, "gather": distributed.gather}
        self.checkpoints = Checkpoints(config.run_dir, lease, config.train.keep_checkpoints, **together)
        self.step, self.best = 0, {"step": 0, "val_loss": math.inf}
        self.tokens = {"read": 0, "supervised": 0}
        self.stopping = False
        with record.phase("load"):
            self.session = Session(config, method, device)
        record.update(**self.session.describe())

    def run(self) -> bool:
        """Train from the last whole checkpoint, or the beginning, to the end.

        Returns whether SIGTERM came too late for a checkpoint, in the last step: nothing may follow then.
        """
        train, total = self.config.train, self.session.total
        self._resume()
        identifier = self.record.data.get("wandb_id") or secrets.token_hex(8)
        self.record.update(wandb_id=identifier)
        tracker = Tracker(self.config, identifier, total, self.step, mute=self.session.rank > 0)
        finished = False
        try:
            with self._sigterm_between_steps():
                while self.step < total:
                    self.step += 1
                    with self.record.phase("train"):
                        self._optimizer_step(tracker)
                    if self.step % train.eval_every == 0 or self.step == total:
                        self._evaluate(tracker)
                    if self.step < total and (self.stopping or self.step % train.checkpoint_every == 0):
                        self._checkpoint()
                        if self.stopping:
                            raise Preempted
            self._finish()
            finished = True
            return self.asked_to_stop
        finally:
            tracker.close(failed=not finished)
            engine.close(self.session.engine)

    @contextlib.contextmanager
    def _sigterm_between_steps(self) -> Iterator[None]:
        """Let SIGTERM wait for the end of a step, where all processes can stop and a checkpoint is exact."""
        self.asked_to_stop = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, lambda *_: setattr(self, "asked_to_stop", True))
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _optimizer_step(self, tracker: Tracker) -> None:
        session, train, start = self.session, self.config.train, time.monotonic()
        corpus, batching = session.corpus, session.batching
        examples = schedule.examples_of(self.step, len(corpus.train), batching.global_batch, self.config.seed)
        supervised, read = corpus.supervised(examples), corpus.read(examples)
        factor = schedule.lr_factor(self.step, session.total, train.warmup_ratio)
        engine.set_lr(session.engine, factor)
        view = ZeroStep(session.engine, self.step, session.total)
        loss = torch.zeros((), device=self.device)
        parts = batching.parts(examples, session.rank)
        for number, part in enumerate(parts):
            loss += session.micro_step(part, supervised, first=number == 0)
            events.reach("train.micro_step")
            if number == len(parts) - 1:
                mean = self._agree(loss.item())
                self.method.before_step(session.model, view)
            session.engine.step()
        view.restore()
        self.method.after_step(session.model, view)
        for parameter in session.untrained:
            parameter.grad = None
        self.tokens["read"] += read
        self.tokens["supervised"] += supervised
        self.record.log("losses", {"step": self.step, "loss": mean, "lr": train.lr * factor})
        tracker.step(self.step, mean, train.lr * factor, read, time.monotonic() - start)

    def _agree(self, share: float) -> float:
        """Return the loss over all processes and learn whether to stop; `Diverged` before a bad step."""
        finite = engine.gradients_are_finite(self.session.engine)
        loss, broken, stopping = distributed.sum_over_processes(
            [share, float(not finite), float(self.asked_to_stop)], self.device
        )
        self.stopping = stopping > 0
        if broken or not math.isfinite(loss):
            what = "a gradient" if math.isfinite(loss) else "the loss"
            raise Diverged(
                f"{what} is not finite at step {self.step} of {self.session.total} (learning rate "
                f"{self.config.train.lr}, precision {self.session.precision}): lower train.lr, set "
                "train.clip_grad, or try train.precision=fp32; the checkpoints before it are kept."
            )
        return loss

    def _evaluate(self, tracker: Tracker) -> None:
        with self.record.phase("validate"):
            val_loss = self.session.validate()
        if not math.isfinite(val_loss):
            raise Diverged(f"the validation loss is not finite at step {self.step}; lower train.lr.")
        metrics = self.method.metrics(self.session.model)
        self.record.log("losses", {"step": self.step, "val_loss": val_loss})
        if metrics:
            self.record.log("metrics", {"step": self.step, **metrics})
        if val_loss < self.best["val_loss"]:
            self.best = {"step": self.step, "val_loss": val_loss}
            with self.record.phase("save"):
                self._save_adapter()
        tracker.evaluation(self.step, val_loss, metrics)
        self._note_progress()

    def _save_adapter(self) -> None:
        if self.lease is None:
            return
        about = {
            "backbone": self.config.backbone.name,
            "weights_digest": self.session.digest,
            "method": self.config.method["_target_"],
            "precision": self.session.precision,
            **self.best,
        }
        save_adapter(self.method, self.session.model, Path(self.config.run_dir), self.lease, about)

    def _note_progress(self) -> None:
        peak = {"train_bytes": machine.peak_memory(self.device)}
        self.record.update(tokens=self.tokens, best=self.best, peak_memory=peak)

    def _setting(self) -> dict[str, Any]:
        """Return what must be the same for a checkpoint to be gone on from exactly."""
        session = self.session
        return {
            "processes": session.batching.processes,
            "precision": session.precision,
            "backbone weights": session.digest,
        }

    def _checkpoint(self) -> None:
        with self.record.phase("save"):
            self._note_progress()
            best = self.best if math.isfinite(self.best["val_loss"]) else None
            state = {"setting": self._setting(), "best": best, "tokens": self.tokens}
            self.checkpoints.save(
                self.step, lambda tmp: torch.save(self.session.state(), self._shard(tmp)), state
            )

    def _shard(self, directory: Path) -> Path:
        return directory / f"process-{self.session.rank}.pt"

    def _resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        found = distributed.broadcast(self.checkpoints.newest_whole() if self.lease else None)
        if found is None:
            return self.record.rewind(0)
        for key, here in self._setting().items():
            if (there := found.state["setting"].get(key)) != here:
                raise ConfigError(
                    f"{found.path} was written with {key} {there}, and here it is {here}; "
                    f"go on with {there}, or remove {found.path.parent}."
                )
        self.session.load_state(torch.load(self._shard(found.path), map_location="cpu", weights_only=True))
        self.step, self.tokens = found.step, found.state["tokens"]
        self.best = found.state["best"] or self.best
        self.record.rewind(self.step)

    def _finish(self) -> None:
        self._note_progress()
        self.record.update(final_weights=engine.trained_digest(self.session.model))
