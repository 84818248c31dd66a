"""Collect what a trained DyPAM adapter does: the torch half of Figures 5 and 6.

Factors are those of the run's own validation examples, prompt and response, as they act in the forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from dypam.config import ConfigError, RunConfig
from dypam.corpus import Corpus
from dypam.tuner.modulation import Modulation
from eval.generate import Generator

EXAMPLES = 64
DRAWN = 4096
"""Factors that are kept of one layer and example for the percentiles; mean and extremes are of all."""

Seen = dict[tuple[str, int], list[np.ndarray]]


def of_run(config: RunConfig, examples: int = EXAMPLES) -> dict[str, np.ndarray]:
    """Return a finished run's biases and factors (see `measure`); `ConfigError` if it has no adapter."""
    generator = Generator.of_run(config)
    held_out = Corpus.load(config, generator.tokenizer).validation[:examples]
    return measure(generator.model, [example["input_ids"] for example in held_out])


@torch.inference_mode()
def measure(model: nn.Module, examples: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Return the layer biases and the range of the modulation factors of an adapted model.

    Args:
        model: with one DyPAM adapter.
        examples: token ids of some texts.

    Returns:
        `bias_q`, `bias_k` [layers, d_h/2], where the adapter has layer biases; `scale_q`, `scale_k` [layers,
        5]: mean, 5th and 95th percentile, minimum, maximum over tokens, heads and pairs.

    Raises:
        ConfigError: the model has no DyPAM adapter.
    """
    layers = [module for module in model.modules() if isinstance(module, Modulation)]
    if not layers:
        raise ConfigError("method: the run has no DyPAM adapter; choose a method that modulates attention.")
    device = next(model.parameters()).device
    with _recorded(layers) as seen:
        for ids in examples:
            model(input_ids=torch.tensor([list(ids)], device=device))
    found = {
        f"scale_{side.lower()}": np.stack([_statistics(seen[side, i]) for i in range(len(layers))])
        for side in "QK"
    }
    for side in "QK" if hasattr(layers[0], "layer_bias_Q") else "":
        biases = [getattr(layer, f"layer_bias_{side}").float().cpu().numpy() for layer in layers]
        found[f"bias_{side.lower()}"] = np.stack(biases)
    return found


@contextmanager
def _recorded(layers: list[Modulation]) -> Iterator[Seen]:
    """Keep, for each side and layer, one row an example: count, sum, minimum, maximum, drawn factors."""
    seen: Seen = {(side, i): [] for side in "QK" for i in range(len(layers))}
    chance = torch.Generator().manual_seed(0)

    def recording(i: int, original: Any) -> Any:
        def factors(side: Any, hidden: torch.Tensor) -> torch.Tensor:
            s: torch.Tensor = original(side, hidden)
            values = s.float().flatten()
            # at random: a stride would share factors with the number of pairs, and miss some of them
            drawn = torch.randint(len(values), (DRAWN,), generator=chance).to(values.device)
            whole = torch.stack([values.new_tensor(len(values)), values.sum(), values.min(), values.max()])
            seen[side, i].append(torch.cat([whole, values[drawn]]).cpu().numpy().astype(np.float64))
            return s

        return factors

    for i, layer in enumerate(layers):
        layer.factors = recording(i, layer.factors)  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        for layer in layers:
            del layer.factors


def _statistics(rows: list[np.ndarray]) -> np.ndarray:
    """Return mean, 5th and 95th percentile, minimum, maximum of one layer and side."""
    count, total, least, most = np.stack([row[:4] for row in rows]).T
    low, high = np.quantile(np.concatenate([row[4:] for row in rows]), [0.05, 0.95])
    return np.array([total.sum() / count.sum(), low, high, least.min(), most.max()])
