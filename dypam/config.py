"""The typed run configuration: what a resolved Hydra config must look like, and what it must not.

`RunConfig.from_resolved` is the one place that validates; it imports no torch, so a wrong key or value costs
a fraction of a second.  `identity` is the part of the config that gives a run its name: two runs may share a
directory only if their identities are equal.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

IDENTITY = ("backbone", "method", "suite", "prompt", "train", "decode", "seed")
"""What two runs must share to share a directory."""
WORDS = ("label", "note", "license", "gated", "contaminated")
"""Keys at any depth that only describe: mending them makes no other run."""


class ConfigError(ValueError):
    """Bad input: one sentence that names the field, its value and the fix.  Scripts exit with code 2."""


@dataclass
class Backbone:
    """A pretrained causal language model (`configs/backbone/*.yaml`).

    `architecture` holds the Transformers config fields (with `model_type`), so that counting and planning
    need no hub; `whole_checkpoint` is the same for the checkpoint that the text model is a part of
    (Gemma-3-4B is published inside a vision-language model), and is what published Param(%) counts.
    """

    name: str
    label: str
    path: str
    architecture: dict[str, Any]
    revision: str | None = None
    whole_checkpoint: dict[str, Any] | None = None
    gated: bool = False
    license: str | None = None
    convert: dict[str, Any] | None = None


@dataclass
class TestSet:
    """One test set (`configs/testset/*.yaml`): where its examples come from and how its answers read.

    `chance` is the fraction of answers that guessing gets right.
    """

    __test__ = False

    name: str
    label: str
    source: dict[str, Any]
    answer: str
    rows: int
    chance: float
    contaminated: str | None = None


@dataclass
class Suite:
    """A training set and its test sets (`configs/suite/*.yaml`)."""

    name: str
    label: str
    train: dict[str, Any]
    tests: dict[str, TestSet]
    note: str | None = None


@dataclass
class Train:
    """Training hyperparameters; the defaults are the paper's (Appendix B) where it states them."""

    lr: float = 1e-3
    warmup_ratio: float = 0.05
    weight_decay: float = 0.0
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    micro_batch: int = 2
    global_batch: int = 4
    epochs: float = 3.0
    max_steps: int | None = None
    max_length: int = 2048
    validation_size: int = 300
    eval_every: int = 200
    checkpoint_every: int = 200
    keep_checkpoints: int = 2
    precision: str = "auto"
    loss_on: str = "response"
    loss_normalization: str = "step"
    clip_grad: float | None = 1.0
    gradient_checkpointing: bool = False
    logit_rows: int | None = None
    attn_implementation: str = "sdpa"


@dataclass
class Decode:
    """Greedy generation (Appendix D)."""

    max_new_tokens: int = 256
    batch_size: int = 32
    precision: str = "auto"
    merge: bool = False


@dataclass
class Runtime:
    """How, not what: none of these fields is part of a run's identity."""

    device: str = "auto"
    threads: int | None = None
    workers: int | None = None
    cache_dir: str = ".cache"
    data_mirror: str | None = None
    offline: bool = False
    wandb: str = "auto"
    wandb_project: str = "dypam"
    experiment: str | None = None
    progress: bool = True
    lease_ttl: float = 60.0
    retry_failed: bool = False


@dataclass
class Prompt:
    """How prompts are built, in training and in generation alike."""

    bos: str = "tokenizer"


@dataclass
class RunConfig:
    """One run: backbone × method × suite × seed, with everything resolved."""

    backbone: Backbone
    method: dict[str, Any]
    suite: Suite
    prompt: Prompt
    train: Train
    decode: Decode
    runtime: Runtime
    seed: int
    results: str
    run_dir: str

    @classmethod
    def from_resolved(cls, resolved: dict[str, Any]) -> RunConfig:
        """Build from a resolved plain dict; `ConfigError` on a wrong key, type, value or combination."""
        from dypam import validate

        return validate.run_config(resolved)

    def identity(self) -> dict[str, Any]:
        """Return the nested dict that two runs must share to share a directory."""
        whole = asdict(self)
        return {key: whole[key] for key in IDENTITY}


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return which known name a misspelt one means, by the whole or by its last part; None if none."""
    names = list(known)
    last = {name.rpartition(".")[2]: name for name in names}
    whole = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    part = difflib.get_close_matches(word.rpartition(".")[2], list(last), n=1, cutoff=0.75)
    return whole[0] if whole else last[part[0]] if part else None


def differences(recorded: dict[str, Any], asked: dict[str, Any], prefix: str = "") -> list[str]:
    """Return one phrase per dotted key whose values differ between two identities, `WORDS` aside."""
    phrases: list[str] = []
    for key in dict.fromkeys([*recorded, *asked]):
        if key in WORDS:
            continue
        old, new, name = recorded.get(key), asked.get(key), f"{prefix}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            phrases += differences(old, new, f"{name}.")
        elif old != new or (key in recorded) != (key in asked):
            there, here = (repr(d[key]) if key in d else "absent" for d in (recorded, asked))
            phrases.append(f"{name} is {there} there, {here} here")
    return phrases
