"""Pretrain a nano backbone of the rehearsal on a CPU (`python scripts/convert.py backbone=nano-llama`).

Its words, its weights and its text come from a seed alone.  A backbone that is whole is not made again, but
for one that was made by other numbers or other code than now.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data import collate, examples, minimath, nano
from dypam.config import ConfigError
from dypam.files import as_json
from dypam.schedule import lr_factor
from scripts.once import made_once

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
BATCH = 16


def pretrained(
    target: Path,
    *,
    architecture: dict[str, Any],
    steps: int,
    lr: float,
    seed: int,
    cache: Path,
    offline: bool,
) -> Path:
    """Make a Transformers model directory of a model trained on `data.nano.documents`, and its tokenizer.

    Args:
        target: the directory to make; it appears by one rename.
        architecture: fields of its Transformers configuration; its vocabulary may be larger than the text's.
        steps: of AdamW, 16 documents each, cosine.
        lr: its peak.
        seed: of weights and text.
        cache: not used, as `offline`; every maker of a backbone takes both.
        offline: not used.

    Raises:
        ConfigError: a number that cannot be, or weights that are not finite in the end.
    """
    del cache, offline
    _check(steps, lr, seed)
    proof = {"architecture": architecture, "steps": steps, "lr": lr, "seed": seed, "source": _source()}
    return made_once(
        target, as_json(proof), lambda made: _make(made, target.name, architecture, steps, lr, seed)
    )


def _check(steps: int, lr: float, seed: int) -> None:
    """Refuse numbers with which nothing can be trained."""
    if not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"backbone.convert.steps is {steps!r}; give a number of steps, 1 or more.")
    if not isinstance(lr, int | float) or not 0 < lr < math.inf:
        raise ConfigError(f"backbone.convert.lr is {lr!r}; give a learning rate above 0.")
    if not isinstance(seed, int):
        raise ConfigError(f"backbone.convert.seed is {seed!r}; give a whole number.")


def _source() -> str:
    """Return a digest of everything that decides on the weights and is not in the YAML."""
    modules = (__file__, nano.__file__, minimath.__file__, examples.__file__, collate.__file__)
    return hashlib.sha256(b"".join(Path(name).read_bytes() for name in modules)).hexdigest()


def _make(made: Path, name: str, architecture: dict[str, Any], steps: int, lr: float, seed: int) -> None:
    """Train on one thread, so that another number of them changes nothing, and save."""
    import torch

    tokenizer = _tokenizer(seed)
    size = architecture.get("vocab_size", 0)
    if len(tokenizer) > size:
        raise ConfigError(
            f"backbone.architecture.vocab_size is {size}, and the text has {len(tokenizer)} words; "
            "give as many or more."
        )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = _model(architecture)
            _fit(model, _batches(tokenizer, seed), steps, lr, name)
    finally:
        torch.set_num_threads(threads)
    model.eval().save_pretrained(made)
    tokenizer.save_pretrained(made)


def _model(architecture: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**architecture))
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        raise ConfigError(f"backbone.architecture makes no model ({error}); correct it.") from error


def _fit(model: Any, batches: Iterator[dict[str, Any]], steps: int, lr: float, name: str) -> None:
    """Learn the responses alone: the questions' words are drawn, and sums would take far longer with them."""
    import torch
    from tqdm import tqdm

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in tqdm(range(1, steps + 1), desc=f"Pretraining {name}, once", disable=None):
        loss = model(**next(batches)).loss
        if not math.isfinite(loss.item()):
            raise ConfigError(f"{name}: the loss is not finite at step {step}; lower backbone.convert.lr.")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr * lr_factor(step, steps, 0.05)
        optimizer.step()
        optimizer.zero_grad()


def _batches(tokenizer: Any, seed: int) -> Iterator[dict[str, Any]]:
    """Yield batches without end, of documents of like length."""
    documents = nano.documents(seed)
    while True:
        rows = [collate.encode(tokenizer, *pair) for pair in itertools.islice(documents, 4 * BATCH)]
        rows.sort(key=lambda row: len(row["input_ids"]))
        for start in range(0, len(rows), BATCH):
            yield collate.collate(rows[start : start + BATCH], tokenizer.pad_token_id)


def _tokenizer(seed: int) -> Any:
    """Return a tokenizer of whole words, numbers and marks: all those of the text, by first place in it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    text = itertools.islice(nano.documents(seed), 20_000)
    words = itertools.chain.from_iterable(re.findall(r"\w+|[^\w\s]+", " ".join(pair)) for pair in text)
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*SPECIAL, *words]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[3]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    pad, bos, eos, unk = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=bos, eos_token=eos, unk_token=unk
    )
