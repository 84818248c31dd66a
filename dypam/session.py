"""What one process trains with: data, adapted model, loss and engine, built from a run's configuration."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from dypam import distributed, engine, machine, precision, schedule
from dypam.backbone import check_architecture, checkpoint_activations, load_backbone
from dypam.config import RunConfig
from dypam.corpus import Corpus
from dypam.loss import ResponseLoss
from dypam.method import Method, RunContext, attached
from dypam.tuner.digest import weights_digest

VALIDATION_BATCH = 4
"""Validation, which keeps no activations, takes this many micro-batches at a time."""


class Session:
    """Everything that a training step needs on this process.

    Attributes:
        corpus: tokenised examples.
        total: optimizer steps of the whole run.
        model: the backbone with the method attached; `loss` is it with its loss, `engine` trains that.
        untrained: parameters in no optimizer group; a method may want gradients of some at some steps.

    Raises:
        ConfigError: the configuration does not fit the backbone, the data or the number of processes.
    """

    def __init__(self, config: RunConfig, method: Method, device: str) -> None:
        self.config, self.method, self.device = config, method, device
        self.rank = distributed.rank()
        self.batching = schedule.batching(config.train, distributed.world_size())
        self.precision = precision.resolve(config.train.precision, device)
        machine.make_deterministic(device)
        backbone, tokenizer = load_backbone(
            config.backbone,
            dtype=precision.backbone_dtype(self.precision),
            device=device,
            runtime=config.runtime,
            attn_implementation=config.train.attn_implementation,
        )
        check_architecture(backbone, config.backbone)
        self.digest = weights_digest(backbone)
        self.corpus = Corpus.load(config, tokenizer)
        self.total = schedule.total_steps(config.train, len(self.corpus.train))
        machine.seed(config.seed)
        self.model = attached(method, backbone, RunContext(config.seed, self.total))
        precision.keep_trained_in_fp32(self.model)
        if config.train.gradient_checkpointing:
            checkpoint_activations(self.model)
        self._start_engine()
        machine.seed(config.seed + 2**32 * self.rank)  # dropout differs between processes

    def _start_engine(self) -> None:
        train = self.config.train
        context = partial(precision.forward_context, self.precision, self.device)
        self.loss = ResponseLoss(self.model, train.logit_rows, context)
        self.loss.train()
        groups = self.method.parameter_groups(self.model)
        trained = {id(p) for group in groups for p in group["params"]}
        self.untrained = [p for p in self.model.parameters() if id(p) not in trained]
        before = precision.dtypes(self.model)
        self.engine = engine.build(self.loss, groups, train, self.batching, self.precision, self.device)
        self.rounded = precision.rounded_by(self.model, before)

    def describe(self) -> dict[str, Any]:
        """Return what the run's record says of backbone, data and engine."""
        source = self.config.backbone
        return {
            "backbone": {
                "path": source.path,
                "revision": source.revision,
                "weights_digest": self.digest,
                "attention": self.model.config._attn_implementation,
            },
            "data": self.corpus.blobs,
            "precision": {"mode": self.precision, "rounded": self.rounded},
            "batching": vars(self.batching),
            "threads": torch.get_num_threads(),
            "steps": self.total,
        }

    def micro_step(self, part: list[int], supervised: int, first: bool) -> torch.Tensor:
        """Run forward and backward on one micro-batch; return its share of the step's loss.

        Args:
            part: indices of its training examples.
            supervised: number of supervised tokens of the whole step, on all processes.
            first: whether it is the step's first one, which takes the method's penalty.
        """
        total, _ = self.engine(**self.corpus.batch(self.corpus.train, part, self.device))
        tokens = supervised
        if self.config.train.loss_normalization == "micro_batch":
            tokens = self.corpus.supervised(part) * self.batching.accumulation * self.batching.processes
        share = total / tokens
        # DeepSpeed takes the mean over processes; the shares of all of them are to be summed.
        objective = share * self.batching.processes
        penalty = self.method.penalty(self.model) if first else None
        if penalty is not None:
            objective = objective + penalty
        self.engine.backward(objective, scale_wrt_gas=False)
        return share.detach()

    @torch.no_grad()
    def validate(self) -> float:
        """Return the mean cross-entropy (nats) over the validation set's supervised tokens."""
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

    def state(self) -> dict[str, Any]:
        """Return what this process must save to go on exactly (at the end of an optimizer step)."""
        return {
            "engine": engine.shard(self.engine),
            "method": self.method.state_dict(),
            "random": machine.random_state(self.device),
        }

    def load_state(self, saved: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        engine.load_shard(self.engine, saved["engine"])
        self.method.load_state_dict(saved["method"])
        machine.set_random_state(saved["random"], self.device)
