"""The training loss, with logits for supervised positions only.

Logits of a prompt token are never used, and with a large vocabulary they cost more than a small backbone
itself.  A hook on the output embedding hands it only the hidden states whose next token is supervised; what a
family does to logits afterwards (Gemma's soft cap) is elementwise and so none the wiser.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from data.collate import IGNORE
from dypam.config import ConfigError

SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")
"""Configuration fields by which some families change logits in a way that `logit_rows` does not know."""


class ResponseLoss(nn.Module):
    """A causal language model together with its summed cross-entropy; what the engine trains.

    Args:
        model: the adapted model.
        logit_rows: rows of vocabulary logits held at once, recomputed in the backward pass; None = all.
        context: makes the context of the forward pass (inside the module, where DeepSpeed lets it be).

    Raises:
        ConfigError: `logit_rows` with a family whose logits are scaled.
    """

    def __init__(
        self,
        model: nn.Module,
        logit_rows: int | None = None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        super().__init__()
        self.model = model
        self.logit_rows = logit_rows
        self.context = context
        config = model.config.get_text_config()
        self.cap: float | None = getattr(config, "final_logit_softcapping", None)
        if logit_rows and any(getattr(config, name, None) not in (None, 1, 1.0) for name in SCALES):
            raise ConfigError(
                f"train.logit_rows={logit_rows}: {config.model_type} scales its logits; set it to null."
            )

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cross-entropy in nats, summed over supervised tokens in FP32, and their number.

        Args:
            input_ids: int64 [batch, tokens].
            attention_mask: 1 on tokens, 0 on padding.
            labels: the same tokens, -100 where not supervised; position t is predicted from t - 1.
        """
        with self.context():
            return self._forward(input_ids, attention_mask, labels)

    def _forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        supervised = labels[:, 1:] != IGNORE
        targets = labels[:, 1:][supervised]
        kept: list[torch.Tensor] = []

        def select(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            rows = arguments[0][:, :-1][supervised]
            if self.logit_rows:
                kept.append(rows)
                rows = rows[:0]
            return (rows, *arguments[1:])

        head = self.model.get_output_embeddings()
        hook = head.register_forward_pre_hook(select)
        try:
            logits = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        finally:
            hook.remove()
        if self.logit_rows:
            return self._chunked(kept[0], targets), supervised.sum()
        return _cross_entropy(logits, targets), supervised.sum()

    def _chunked(self, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        assert self.logit_rows
        head = self.model.get_output_embeddings()

        def part(hidden: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            logits = head(hidden)
            if self.cap is not None:
                logits = torch.tanh(logits / self.cap) * self.cap
            return _cross_entropy(logits, wanted)

        total = rows.new_zeros((), dtype=torch.float32)
        for hidden, wanted in zip(rows.split(self.logit_rows), targets.split(self.logit_rows), strict=True):
            total = total + checkpoint(part, hidden, wanted, use_reentrant=False)
        return total


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float(), targets, reduction="sum")
