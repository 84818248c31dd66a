"""Training: a loop round DeepSpeed's ZeRO-1 for any `Method`; killed anywhere, it goes on exactly.

After a kill at any moment the same command ends in the same weights, bit for bit: every step is a function of
the last checkpoint and the configuration.  With several processes each calls `train`; rank 0 alone has the
lease, and writes.
"""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dypam import distributed, engine, events, machine, precision, schedule, validate
from dypam.adapter import save_adapter
from dypam.backbone import checkpoint_activations, load_backbone, weights_digest
from dypam.checkpoint import Checkpoints
from dypam.config import ConfigError, RunConfig
from dypam.corpus import Corpus
from dypam.count import count as count_parameters
from dypam.lease import Lease
from dypam.loss import ResponseLoss
from dypam.method import Method, RunContext
from dypam.record import Record
from dypam.step import ZeroStep
from dypam.tracking import Tracker

VALIDATION_BATCH = 4
"""Validation, which keeps no activations, takes this many micro-batches at a time."""


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
    """
    device = distributed.pick_device(config.runtime.device)
    if config.runtime.threads:
        torch.set_num_threads(config.runtime.threads)
    method = validate.check_targets(config)
    distributed.start(device)
    record = Record.open(config.run_dir, config, lease)
    if distributed.broadcast(record.finished("train")):
        return
    with record.stage("train"):
        # another instance: attaching it to a model without weights leaves traces in a method
        record.update(parameters=vars(count_parameters(validate.check_targets(config), config.backbone)))
        if method.trainable:
            Trainer(config, method, lease, record, device).run()
    machine.release(device)


class Trainer:
    """One process's part of one training run; `run` does all of it."""

    def __init__(
        self, config: RunConfig, method: Method, lease: Lease | None, record: Record, device: str
    ) -> None:
        self.config, self.method, self.lease, self.record = config, method, lease, record
        self.device, self.rank = device, distributed.rank()
        self.batching = schedule.batching(config.train, distributed.world_size())
        self.precision = precision.resolve(config.train.precision, device)
        together: dict[str, Any] = {"share": distributed.broadcast, "gather": distributed.gather}
        self.checkpoints = Checkpoints(config.run_dir, lease, config.train.keep_checkpoints, **together)
        self.step, self.best = 0, {"step": 0, "val_loss": math.inf}
        self.tokens = {"read": 0, "supervised": 0}
        with record.phase("load"):
            self._build()

    def _build(self) -> None:
        config, train = self.config, self.config.train
        machine.make_deterministic(self.device)
        backbone, tokenizer = load_backbone(
            config.backbone,
            dtype=precision.backbone_dtype(self.precision),
            device=self.device,
            runtime=config.runtime,
            attn_implementation=train.attn_implementation,
        )
        self.corpus = Corpus.load(config, tokenizer)
        self.total = schedule.total_steps(train, len(self.corpus.train))
        self.digest = weights_digest(backbone)
        machine.seed(config.seed)
        self.model = self.method.attach(backbone, RunContext(config.seed, self.total))
        precision.keep_trained_in_fp32(self.model)
        if train.gradient_checkpointing:
            checkpoint_activations(self.model)
        self.loss = ResponseLoss(
            self.model, train.logit_rows, partial(precision.forward_context, self.precision, self.device)
        )
        before = precision.dtypes(self.model)
        groups = self.method.parameter_groups(self.model)
        in_groups = {id(p) for group in groups for p in group["params"]}
        self.scored = [p for p in self.model.parameters() if p.requires_grad and id(p) not in in_groups]
        self.engine = engine.build(self.loss, groups, train, self.batching, self.precision)
        machine.seed(config.seed + 2**32 * self.rank)  # dropout differs between processes
        self.record.update(
            backbone={
                "path": config.backbone.path,
                "revision": config.backbone.revision,
                "weights_digest": self.digest,
                "attention": self.model.config._attn_implementation,
            },
            data=self.corpus.blobs,
            precision={"mode": self.precision, "rounded": precision.rounded_by(self.model, before)},
            batching=vars(self.batching),
            steps=self.total,
        )

    def run(self) -> None:
        """Train from the last whole checkpoint, or the beginning, to the end."""
        train = self.config.train
        self._resume()
        tracker = Tracker(self.config, self.total, self.step, mute=self.rank > 0)
        finished = False
        try:
            while self.step < self.total:
                self.step += 1
                with self.record.phase("train"):
                    self._optimizer_step(tracker)
                if self.step % train.eval_every == 0 or self.step == self.total:
                    self._evaluate(tracker)
                if self.step % train.checkpoint_every == 0 and self.step < self.total:
                    self._checkpoint()
            self._finish()
            finished = True
        finally:
            tracker.close(failed=not finished)
            engine.close(self.engine)

    def _optimizer_step(self, tracker: Tracker) -> None:
        train, batching, start = self.config.train, self.batching, time.monotonic()
        examples = schedule.examples_of(
            self.step, len(self.corpus.train), batching.global_batch, self.config.seed
        )
        supervised = self.corpus.supervised(examples)
        factor = schedule.lr_factor(self.step, self.total, train.warmup_ratio)
        engine.set_lr(self.engine, factor)
        view = ZeroStep(self.engine, self.step, self.total)
        loss = torch.zeros((), device=self.device)
        parts = batching.parts(examples, self.rank)
        for number, part in enumerate(parts):
            loss += self._micro_step(part, supervised, first=number == 0)
            events.reach("train.micro_step")
            if number == len(parts) - 1:
                self._refuse_not_finite(loss)
                self.method.before_step(self.model, view)
            self.engine.step()
        view.restore()
        self.method.after_step(self.model, view)
        for parameter in self.scored:
            parameter.grad = None
        self.tokens["read"] += self.corpus.read(examples)
        self.tokens["supervised"] += supervised
        row = {"step": self.step, "loss": self.last_loss, "lr": train.lr * factor}
        self.record.log("losses", row)
        seconds = time.monotonic() - start
        tracker.step(self.step, self.last_loss, row["lr"], self.corpus.read(examples), seconds)

    def _micro_step(self, part: list[int], supervised: int, first: bool) -> torch.Tensor:
        """Run forward and backward on one micro-batch; return its share of the step's loss."""
        batch = self.corpus.batch(self.corpus.train, part, self.device)
        total, _ = self.engine(**batch)
        if self.config.train.loss_normalization == "step":
            share = total / supervised
        else:
            share = total / (
                self.corpus.supervised(part) * self.batching.accumulation * self.batching.processes
            )
        # DeepSpeed takes the mean over processes; the shares of all of them are to be summed.
        objective = share * self.batching.processes
        penalty = self.method.penalty(self.model) if first else None
        if penalty is not None:
            objective = objective + penalty
        self.engine.backward(objective, scale_wrt_gas=False)
        return share.detach()

    def _refuse_not_finite(self, loss: torch.Tensor) -> None:
        finite = engine.gradients_are_finite(self.engine)
        self.last_loss, broken = distributed.sum_over_processes([loss.item(), float(not finite)], self.device)
        if broken or not math.isfinite(self.last_loss):
            what = "a gradient" if math.isfinite(self.last_loss) else "the loss"
            raise Diverged(
                f"{what} is not finite at step {self.step} of {self.total} (learning rate "
                f"{self.config.train.lr}, precision {self.precision}): lower train.lr, set train.clip_grad, "
                "or try train.precision=fp32; the checkpoints before it are kept."
            )

    @torch.no_grad()
    def _validate(self) -> float:
        """Return the mean cross-entropy over the validation set's supervised tokens."""
        size = self.batching.micro_batch * VALIDATION_BATCH
        held_out = self.corpus.validation
        order = sorted(range(len(held_out)), key=lambda i: len(held_out[i]["input_ids"]))
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        loss = tokens = 0.0
        self.loss.eval()
        for part in parts[self.rank :: self.batching.processes]:
            total, number = self.loss(**self.corpus.batch(held_out, part, self.device))
            loss, tokens = loss + total.item(), tokens + number.item()
        self.loss.train()
        loss, tokens = distributed.sum_over_processes([loss, tokens], self.device)
        return loss / tokens

    def _evaluate(self, tracker: Tracker) -> None:
        with self.record.phase("validate"):
            val_loss = self._validate()
        if not math.isfinite(val_loss):
            raise Diverged(f"the validation loss is not finite at step {self.step}; lower train.lr.")
        metrics = self.method.metrics(self.model)
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
            "weights_digest": self.digest,
            "method": self.config.method["_target_"],
            "precision": self.precision,
            **self.best,
        }
        save_adapter(self.method, self.model, Path(self.config.run_dir), self.lease, about)

    def _note_progress(self) -> None:
        self.record.update(
            tokens=self.tokens, best=self.best, peak_memory={"train_bytes": machine.peak_memory(self.device)}
        )

    def _checkpoint(self) -> None:
        with self.record.phase("save"):
            self._note_progress()
            state = {
                "processes": self.batching.processes,
                "best": self.best if math.isfinite(self.best["val_loss"]) else None,
                "tokens": self.tokens,
            }
            self.checkpoints.save(self.step, lambda tmp: torch.save(self._state(), self._file(tmp)), state)

    def _file(self, directory: Path) -> Path:
        return directory / f"process-{self.rank}.pt"

    def _state(self) -> dict[str, Any]:
        return {
            "engine": engine.shard(self.engine),
            "method": self.method.state_dict(),
            "random": machine.random_state(self.device),
        }

    def _resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        found = distributed.broadcast(self.checkpoints.newest_whole() if self.lease else None)
        if found is None:
            return self.record.rewind(0)
        if found.state["processes"] != self.batching.processes:
            raise ConfigError(
                f"{found.path} was written by {found.state['processes']} processes, and these are "
                f"{self.batching.processes}; start as many as before, or remove {found.path.parent}."
            )
        saved = torch.load(self._file(found.path), map_location="cpu", weights_only=True)
        engine.load_shard(self.engine, saved["engine"])
        self.method.load_state_dict(saved["method"])
        machine.set_random_state(saved["random"], self.device)
        self.step, self.tokens = found.step, found.state["tokens"]
        self.best = found.state["best"] or self.best
        self.record.rewind(self.step)

    def _finish(self) -> None:
        self._note_progress()
        self.record.update(final_weights=engine.trained_digest(self.model))
        if self.lease is not None:
            self.checkpoints.clear()
