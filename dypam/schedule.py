"""When and on what a run trains: batches, their order, the learning rate; functions of the configuration.

Nothing here has a state, so a run resumed at any step goes on exactly.  Orders come from SHA-256, not from a
random generator, and so are the same on every version of every library.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

from dypam.config import ConfigError, Train


@dataclass(frozen=True)
class Batching:
    """One optimizer step = `accumulation` micro-batches of `micro_batch` examples on each of `processes`."""

    micro_batch: int
    accumulation: int
    processes: int

    @property
    def global_batch(self) -> int:
        """Return the number of examples of an optimizer step."""
        return self.micro_batch * self.accumulation * self.processes

    def parts(self, examples: list[int], rank: int) -> list[list[int]]:
        """Return the micro-batches of one process out of the examples of one step."""
        size = self.micro_batch
        whole = [examples[start : start + size] for start in range(0, len(examples), size)]
        return whole[rank :: self.processes]


def batching(train: Train, processes: int) -> Batching:
    """Return how the global batch is split, held whatever the number of processes.

    The micro-batch shrinks where the global batch has no room for it on every process.

    Raises:
        ConfigError: the processes do not divide the global batch, or shrinking would change the loss.
    """
    share, rest = divmod(train.global_batch, processes)
    if rest or not share:
        raise ConfigError(
            f"train.global_batch={train.global_batch} cannot be split over {processes} processes; "
            "start a number of processes that divides it, or give a multiple of theirs."
        )
    micro = max(size for size in range(1, min(train.micro_batch, share) + 1) if share % size == 0)
    if micro != train.micro_batch and train.loss_normalization == "micro_batch":
        raise ConfigError(
            f"train.micro_batch={train.micro_batch} does not fit a global batch of {train.global_batch} on "
            f"{processes} processes, and train.loss_normalization=micro_batch depends on it; "
            f"set train.micro_batch={micro}, or train.loss_normalization=step."
        )
    return Batching(micro, share // micro, processes)


def total_steps(train: Train, examples: int) -> int:
    """Return the number of optimizer steps: `max_steps`, else enough for `epochs` over the examples."""
    return train.max_steps or math.ceil(train.epochs * examples / train.global_batch)


def split(examples: int, validation: int, seed: int) -> tuple[list[int], list[int]]:
    """Return the indices to train on and to validate on, both ascending, chosen by seed.

    Raises:
        ConfigError: nothing would be left to train on.
    """
    if validation >= examples:
        raise ConfigError(
            f"train.validation_size={validation} leaves nothing of {examples} examples to train on; "
            "make it smaller."
        )
    held_out = set(_shuffled(f"validation/{seed}", examples)[:validation])
    return [i for i in range(examples) if i not in held_out], sorted(held_out)


def examples_of(step: int, examples: int, global_batch: int, seed: int) -> list[int]:
    """Return the indices that optimizer step `step` (from 1) sees.

    Every epoch is its own permutation; epochs follow each other without a gap or a smaller last batch.
    """
    places = range((step - 1) * global_batch, step * global_batch)
    return [_shuffled(f"epoch/{seed}/{place // examples}", examples)[place % examples] for place in places]


def lr_factor(step: int, total: int, warmup_ratio: float) -> float:
    """Return the learning rate of step `step` (from 1) as a fraction of its peak: linear up, cosine to zero.

    The same values as Transformers' `get_cosine_schedule_with_warmup`: the first step of a warm-up has 0.
    """
    done, warmup = step - 1, math.ceil(total * warmup_ratio)
    if done < warmup:
        return done / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (done - warmup) / max(1, total - warmup)))


@lru_cache(maxsize=4)
def _shuffled(key: str, count: int) -> list[int]:
    return sorted(range(count), key=lambda index: hashlib.sha256(f"{key}/{index}".encode()).digest())
