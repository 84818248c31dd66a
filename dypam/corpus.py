"""The examples that a run trains and validates on, tokenised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from data.collate import IGNORE, collate, encode, pad_id
from data.examples import load
from data.fetch import Files
from dypam.config import RunConfig, Runtime
from dypam.schedule import split

if TYPE_CHECKING:
    import torch

Encoded = dict[str, list[int]]


def files_of(runtime: Runtime) -> Files:
    """Return the source of data files that a run's configuration names."""
    return Files(runtime.cache_dir, runtime.data_mirror, runtime.offline)


@dataclass(frozen=True)
class Corpus:
    """Tokenised examples (`input_ids`, `labels`), and the blob ids of the files that they come from."""

    train: list[Encoded]
    validation: list[Encoded]
    blobs: dict[str, str]
    pad: int

    @classmethod
    def load(cls, config: RunConfig, tokenizer: Any) -> Corpus:
        """Load the suite's training set and hold out the validation set by the run's seed.

        Raises:
            ConfigError: the validation set leaves nothing to train on.
            DataError: the data cannot be had, or a prompt fills `train.max_length`.
        """
        files = files_of(config.runtime)
        dataset = load(config.suite.train, files)
        encoded = [
            encode(
                tokenizer,
                row["prompt"],
                row["response"],
                max_length=config.train.max_length,
                bos=config.prompt.bos,
                loss_on=config.train.loss_on,
            )
            for row in dataset
        ]
        chosen, held_out = split(len(encoded), config.train.validation_size, config.seed)
        return cls(
            [encoded[i] for i in chosen], [encoded[i] for i in held_out], dict(files.used), pad_id(tokenizer)
        )

    def supervised(self, indices: list[int]) -> int:
        """Return how many tokens of these training examples are learnt (no token predicts the first one)."""
        return sum(label != IGNORE for i in indices for label in self.train[i]["labels"][1:])

    def read(self, indices: list[int]) -> int:
        """Return how many tokens these training examples have."""
        return sum(len(self.train[i]["input_ids"]) for i in indices)

    def batch(self, examples: list[Encoded], indices: list[int], device: str) -> dict[str, torch.Tensor]:
        """Return chosen examples as tensors [batch, tokens], padded on the right."""
        tensors = collate([examples[i] for i in indices], self.pad)
        return {key: value.to(device) for key, value in tensors.items()}
