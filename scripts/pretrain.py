"""Pretrain a nano backbone of the rehearsal on a CPU, once: `python scripts/pretrain.py backbone=nano-llama`.

Its words, its weights and its text come from a seed alone.  A backbone that is whole is not made again; one
that another text, architecture or version of this file made is.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data import collate, examples, minimath, nano
from dypam.config import ConfigError
from dypam.files import as_json, read_json, staged_directory, write_json
from dypam.lock import FileLock
from dypam.schedule import lr_factor

PROOF = "source.json"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
BATCH = 16


def pretrained(
    target: Path, *, architecture: dict[str, Any], steps: int, lr: float, seed: int, cache: Path
) -> Path:
    """Make a Transformers model directory of a model trained on `data.nano.documents`, and its tokenizer.

    Args:
        target: the directory to make; it appears by one rename.
        architecture: fields of its Transformers configuration; the vocabulary's size is that of the text.
        steps: of AdamW, 16 documents each, cosine.
        lr: its peak.
        seed: of weights and text.
        cache: not used; every maker of a backbone takes it.
    """
    del cache
    proof = as_json(
        {"architecture": architecture, "steps": steps, "lr": lr, "seed": seed, "source": _source()}
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(target.name + ".lock"))
    if not _is_whole(target, proof):
        lock.take()
        try:
            if not _is_whole(target, proof):
                with staged_directory(target) as made:
                    _make(made, architecture, steps, lr, seed)
                    write_json(made / PROOF, proof)
        finally:
            lock.free()
    return target


def _is_whole(target: Path, proof: dict[str, Any]) -> bool:
    return (target / PROOF).is_file() and read_json(target / PROOF) == proof


def _source() -> str:
    """Return a digest of everything that decides on the weights and is not in the YAML."""
    modules = (__file__, nano.__file__, minimath.__file__, examples.__file__, collate.__file__)
    return hashlib.sha256(b"".join(Path(name).read_bytes() for name in modules)).hexdigest()


def _make(made: Path, architecture: dict[str, Any], steps: int, lr: float, seed: int) -> None:
    """Train on one thread, so that another number of them changes nothing, and save."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = _tokenizer(seed)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(**{**architecture, **ids})
    if len(tokenizer) > config.vocab_size:
        raise ConfigError(
            f"backbone.architecture.vocab_size is {config.vocab_size}, and the text has {len(tokenizer)} "
            "words; give as many or more."
        )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config)
            _fit(model, _batches(tokenizer, seed), steps, lr, made.name)
    finally:
        torch.set_num_threads(threads)
    model.eval().save_pretrained(made)
    tokenizer.save_pretrained(made)


def _fit(model: Any, batches: Iterator[dict[str, Any]], steps: int, lr: float, name: str) -> None:
    """Learn the responses alone: the questions' words are drawn, and sums would take far longer with them."""
    import torch
    from tqdm import tqdm

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in tqdm(range(1, steps + 1), desc=f"Pretraining {name}, once", disable=None):
        loss = model(**next(batches)).loss
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


if __name__ == "__main__":
    from scripts import command, stages

    command.main(stages.prepare_backbone, str(__doc__))
