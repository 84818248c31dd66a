"""Measure what methods cost at inference: time a token, memory and FLOPs, in turns on one backbone.

One backbone is in memory.  Each method is attached, measured and taken off again, once a round and from
another start each round, so that what slows the machine down slows all methods.  Adapters are untrained, as
no value of a weight changes the cost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from hydra.utils import instantiate
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

from dypam.backbone import load_backbone, random_backbone
from dypam.config import ConfigError, RunConfig
from dypam.distributed import pick_device
from dypam.machine import peak_memory, release
from dypam.method import Method, RunContext, attached
from dypam.precision import backbone_dtype, forward_context
from eval.generate import decode_precision, set_greedy

WARM_UP = 4
"""Tokens generated before a measurement of the same shape."""


@dataclass(frozen=True)
class Options:
    """How inference is measured (`bench` of a configuration).

    Attributes:
        batches: batch sizes; memory is that of the first.
        prompt_tokens: random tokens before the first new one.
        new_tokens: tokens generated, none of which ends the text.
        rounds: how often every method is measured.
        random: give the backbone random weights instead of its own.
    """

    batches: tuple[int, ...] = (1, 32)
    prompt_tokens: int = 128
    new_tokens: int = 64
    rounds: int = 9
    random: bool = False

    @classmethod
    def from_config(cls, given: Mapping[str, Any]) -> Options:
        """Build from a plain dict; raise `ConfigError` on an unknown key or a value out of range."""
        if unknown := set(given) - {f.name for f in fields(cls)}:
            raise ConfigError(f"bench.{min(unknown)} is unknown; remove it.")
        batches = given["batches"]
        for key in ("prompt_tokens", "new_tokens", "rounds"):
            if type(given[key]) is not int or given[key] < 1:
                raise ConfigError(f"bench.{key} is {given[key]!r}; give a whole number above 0.")
        if not isinstance(given["random"], bool):
            raise ConfigError(f"bench.random is {given['random']!r}; give true or false.")
        if not (isinstance(batches, list) and batches and all(type(b) is int and b > 0 for b in batches)):
            raise ConfigError(f"bench.batches is {batches!r}; give batch sizes, as in [1, 32].")
        return cls(**{**given, "batches": tuple(batches)})


@dataclass
class Measured:
    """One method: ms a token by batch size, one value a round; peak bytes a round (none on a CPU); FLOPs."""

    label: str
    trainable: bool
    ms: dict[int, list[float]] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)
    flops: int = 0


@dataclass(frozen=True)
class How:
    """On what it was measured."""

    device: str
    name: str
    precision: str


def measure(configs: list[RunConfig], options: Options) -> tuple[dict[str, Measured], How]:
    """Measure the method of every configuration, all on the backbone of the first.

    Raises:
        ConfigError: several backbones, no bare one among the methods, or a method that cannot be taken off.
    """
    first = configs[0]
    if others := {c.backbone.name for c in configs} - {first.backbone.name}:
        raise ConfigError(f"inference is measured on one backbone, not on {min(others)} too: choose one.")
    methods: dict[str, Method] = {str(c.method["name"]): instantiate(c.method) for c in configs}
    if [method.trainable for method in methods.values()].count(False) != 1:
        raise ConfigError(
            "inference is measured against the bare backbone: have method=base in the grid, once."
        )
    bench = Bench(first, options)
    found = {name: Measured(method.label, method.trainable) for name, method in methods.items()}
    names = list(methods)
    turns = [
        name for r in range(options.rounds) for name in names[r % len(names) :] + names[: r % len(names)]
    ]
    for name in tqdm(turns, desc="turns", disable=not first.runtime.progress):
        bench.turn(methods[name], found[name])
    return found, bench.how


class Bench:
    """A bare backbone on its device, and prompts of random tokens."""

    def __init__(self, config: RunConfig, options: Options) -> None:
        if config.runtime.threads:
            torch.set_num_threads(config.runtime.threads)
        self.options, self.seed = options, config.seed
        self.device = pick_device(config.runtime.device)
        self.precision = decode_precision(config, self.device)
        place: dict[str, Any] = {
            "dtype": backbone_dtype(self.precision),
            "device": self.device,
            "attn_implementation": config.train.attn_implementation,
        }
        if options.random:
            self.model = random_backbone(config.backbone, seed=config.seed, **place)
        else:
            self.model, _ = load_backbone(config.backbone, runtime=config.runtime, **place)
        self._modules = [name for name, _ in self.model.named_modules()]
        generator = torch.Generator().manual_seed(config.seed)
        shape = (max(options.batches), options.prompt_tokens)
        drawn = torch.randint(self.model.config.vocab_size, shape, generator=generator)  # type: ignore[arg-type]
        self.prompts = drawn.to(self.device)

    @property
    def how(self) -> How:
        """Return device, its name and the precision."""
        name = "CPU" if self.device == "cpu" else torch.cuda.get_device_name(self.device)
        return How(self.device, name, self.precision)

    def turn(self, method: Method, into: Measured) -> None:
        """Attach a method, measure it at every batch size, and take it off again."""
        adapted = attached(method, self.model, RunContext(self.seed, total_steps=1000)).eval()
        set_greedy(adapted, [], pad=0, max_new_tokens=self.options.new_tokens)
        for batch in self.options.batches:
            self._generate(adapted, batch, min(WARM_UP, self.options.new_tokens))
            seconds, peak = self._generate(adapted, batch, self.options.new_tokens)
            into.ms.setdefault(batch, []).append(1000 * seconds / (batch * self.options.new_tokens))
            if batch == self.options.batches[0] and self.device != "cpu":
                into.memory.append(peak)
        into.flops = into.flops or self._flops(adapted)
        self.model = adapted.unload() if hasattr(adapted, "unload") else adapted  # type: ignore[operator]
        self.model.__dict__.pop(
            "peft_config", None
        )  # PEFT 0.18 leaves it there, and warns at the next method
        if [name for name, _ in self.model.named_modules()] != self._modules:
            raise ConfigError(
                f"method {method.name}: cannot be taken off the backbone again, so it cannot be measured in "
                "turns; leave it out of the grid."
            )
        del adapted
        release(self.device)

    def _generate(self, model: nn.Module, batch: int, tokens: int) -> tuple[float, int]:
        """Return the seconds that a batch's new tokens take, prompt included, and the peak bytes."""
        ids = self.prompts[:batch]
        on_gpu = self.device != "cpu"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
            torch.cuda.synchronize(self.device)
        with torch.inference_mode(), forward_context(self.precision, self.device):
            start = time.perf_counter()
            made = model.generate(  # type: ignore[operator]
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens
            )
            if on_gpu:
                torch.cuda.synchronize(self.device)
            seconds = time.perf_counter() - start
        if made.shape[1] != ids.shape[1] + tokens:
            raise RuntimeError(
                f"{made.shape[1] - ids.shape[1]} tokens were made where {tokens} were asked for."
            )
        return seconds, peak_memory(self.device)

    def _flops(self, model: nn.Module) -> int:
        """Return the FLOPs of one token's forward pass without context: two for each multiplication."""
        token = self.prompts[:1, :1]
        with (
            torch.no_grad(),
            forward_context(self.precision, self.device),
            FlopCounterMode(display=False) as counter,
        ):
            model(input_ids=token, use_cache=False)
        return counter.get_total_flops()
