"""Collect attention activations of a backbone: the torch half of Figures 1, 7 and 8.

The activation of dimension j of head h is the L2 norm over tokens of the query (key, value) states divided
by the root of their number, √(mean_t x_thj²): the mean L2 norm per dimension and head, whatever the length.
A leading BOS token is left out: it is an attention sink with activations of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

from dypam.config import ConfigError, RunConfig
from dypam.distributed import pick_device

OTHER = "other"
_FUSED = "query_key_value"


@dataclass(frozen=True)
class Corpus:
    """Texts and the pattern that finds each token class in them."""

    texts: list[str]
    classes: dict[str, re.Pattern[str]]

    @classmethod
    def read(cls, path: Path | None = None) -> Corpus:
        """Read a corpus file; by default the project's own."""
        raw = yaml.safe_load((path or Path(__file__).with_name("corpus.yaml")).read_text("utf-8"))
        words = {
            name: re.compile(rf"\b(?:{'|'.join(map(re.escape, w))})\b") for name, w in raw["classes"].items()
        }
        return cls(raw["texts"], {**words, "punctuation": re.compile(raw["punctuation"])})

    def label(self, text: str, spans: list[tuple[int, int]]) -> list[str]:
        """Return each token's class from its character span; a token belongs where any of its letters do."""
        labels = [OTHER] * len(spans)
        for name, pattern in self.classes.items():
            for match in pattern.finditer(text):
                for i, (start, end) in enumerate(spans):
                    if labels[i] == OTHER and start < match.end() and end > match.start():
                        labels[i] = name
        return labels


def load(run: RunConfig, *, random: bool = False) -> tuple[nn.Module, Any]:
    """Return a run's bare backbone and its tokenizer.

    With `random`, weights are drawn from the run's seed by the architecture's own initialisation, and the
    tokenizer is one of bytes: nothing has to be fetched, and nothing is learned.
    """
    from dypam.backbone import load_backbone, random_backbone

    if random:
        return random_backbone(
            run.backbone, seed=run.seed, dtype=torch.float32, device="cpu"
        ), byte_tokenizer()
    device = pick_device(run.runtime.device)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return load_backbone(run.backbone, dtype=dtype, device=device, runtime=run.runtime)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are the 256 bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@torch.inference_mode()
def activations(model: nn.Module, tokenizer: Any, corpus: Corpus | None = None) -> dict[str, np.ndarray]:
    """Return the mean L2 norms of a model's attention states on a corpus, in float32.

    Keys `q`, `k`, `v`: [classes + 1, layers, heads, d_h], the first entry over all tokens, then one for each
    class of `classes`; `counts`: tokens of each entry.  States are those that enter the rotation: after the
    per-head norm where a family has one (Qwen3, Gemma 3).
    """
    corpus = corpus or Corpus.read()
    names = ["all", *corpus.classes]
    device = next(model.parameters()).device
    sums: dict[str, np.ndarray] = {}
    counts = np.zeros(len(names), dtype=np.int64)
    with _states(model) as seen:
        for text in corpus.texts:
            encoded = tokenizer(text, return_offsets_mapping=True)
            spans = [tuple(span) for span in encoded["offset_mapping"]]
            member = _membership(corpus, text, spans, names)
            ids = torch.tensor([encoded["input_ids"]], device=device)
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
            counts += member.sum(1)
            for part, layers in seen.items():
                square = np.stack(layers).astype(np.float64) ** 2
                add = np.einsum("ct,lthd->clhd", member.astype(np.float64), square)
                sums[part] = sums.get(part, 0.0) + add
                layers.clear()
    norms = {part: np.sqrt(total / counts[:, None, None, None].clip(1)) for part, total in sums.items()}
    return {
        **{part: value.astype(np.float32) for part, value in norms.items()},
        "counts": counts,
        "classes": np.array(names[1:]),
    }


def _membership(corpus: Corpus, text: str, spans: list[tuple[int, int]], names: list[str]) -> np.ndarray:
    """Return a boolean [classes + 1, tokens]; tokens without text (BOS) are in none of them."""
    labels = np.array(corpus.label(text, spans))
    real = np.array([end > start for start, end in spans])
    return np.stack([real if name == "all" else real & (labels == name) for name in names])


@contextmanager
def _states(model: nn.Module) -> Iterator[dict[str, list[np.ndarray]]]:
    """Record, for each forward, every layer's q, k, v as [tokens, heads, d_h] (batch of one)."""
    seen: dict[str, list[np.ndarray]] = {part: [] for part in "qkv"}
    handles = []
    for module in model.modules():
        if hasattr(module, _FUSED):
            hook = _fused_hook(seen, module.head_dim)
            handles.append(getattr(module, _FUSED).register_forward_hook(hook))
        elif all(hasattr(module, f"{part}_proj") for part in seen):
            for part, into in seen.items():
                hook = _hook(into, module.head_dim, getattr(module, f"{part}_norm", None))
                handles.append(getattr(module, f"{part}_proj").register_forward_hook(hook))
    if not handles:
        raise ConfigError(
            f"backbone of type {type(model).__name__} has neither q_proj, k_proj, v_proj nor {_FUSED}: "
            "choose another backbone for activation figures."
        )
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _hook(into: list[np.ndarray], d: int, norm: nn.Module | None) -> Callable[..., None]:
    """Return a hook that keeps one projection's output, through the per-head norm where there is one."""

    def keep(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        states = output.reshape(output.shape[-2], -1, d)
        into.append((norm(states) if norm else states).float().cpu().numpy())

    return keep


def _fused_hook(seen: dict[str, list[np.ndarray]], d: int) -> Callable[..., None]:
    """Return a hook that splits BLOOM's fused projection, [tokens, heads, (q, k, v), d_h]."""

    def keep(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        states = output.reshape(output.shape[-2], -1, 3, d).float().cpu().numpy()
        for i, part in enumerate(seen):
            seen[part].append(states[:, :, i])

    return keep
