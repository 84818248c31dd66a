"""How many parameters a method trains, without weights: on the meta device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dypam.backbone import meta_model
from dypam.config import Backbone
from dypam.method import Method, RunContext, attached


@dataclass(frozen=True)
class Counts:
    """Parameters of a method on a backbone.

    `trained` of `total` (backbone and adapter) are those of the text model that is really trained; the
    published ones are those of PEFT's `get_nb_trainable_parameters` on the whole checkpoint, which for a
    vision-language one has adapters on its vision tower too, inert for text.
    """

    trained: int
    total: int
    published_trained: int
    published_total: int

    @property
    def percent(self) -> float:
        """Param(%) by the published accounting."""
        return 100 * self.published_trained / self.published_total


def count(method: Method, backbone: Backbone) -> Counts:
    """Return the counts of a method on a backbone, from the architecture's numbers alone."""
    trained, total = _parameters(method, meta_model(backbone))
    if backbone.whole_checkpoint is None:
        return Counts(trained, total, trained, total)
    whole = meta_model(backbone, whole=True)
    if not hasattr(method, "everywhere"):
        added = total - _size(meta_model(backbone))
        return Counts(trained, total, trained, _size(whole) + added)
    method.everywhere = True
    try:
        return Counts(trained, total, *_parameters(method, whole))
    finally:
        method.everywhere = False


def _parameters(method: Method, model: nn.Module) -> tuple[int, int]:
    adapted = attached(method, model, RunContext(seed=0, total_steps=1000))
    return method.parameter_counts(adapted)


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
