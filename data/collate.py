"""From text to token ids: encode one example, pad a batch.

Prompt and response are tokenised apart, so the border between them is a token border, and generation sees the
very ids that training saw.  A training example longer than `max_length` loses its right end, EOS first, as in
LLM-Adapters; a prompt to generate from is never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from data.fetch import DataError

if TYPE_CHECKING:
    import torch

IGNORE = -100


def encode(
    tokenizer: Any,
    prompt: str,
    response: str | None = None,
    *,
    max_length: int = 2048,
    bos: str = "tokenizer",
    loss_on: str = "response",
) -> dict[str, list[int]]:
    """Tokenise an example into `input_ids` and, with a response, `labels` (both lists of one length).

    Args:
        tokenizer: a Transformers tokenizer.
        prompt: the whole prompt, without BOS.
        response: what to learn; EOS is appended and supervised.  None: a prompt to generate from.
        max_length: most tokens of a training example, BOS and EOS included.
        bos: `tokenizer` = its BOS where it has one, `literal` = the text "<s>" before the prompt, `none`.
        loss_on: `response`, or `all` to supervise the prompt too (never BOS).

    Raises:
        DataError: nothing of the response is left within `max_length`.
    """
    start = [tokenizer.bos_token_id] if bos == "tokenizer" and tokenizer.bos_token_id is not None else []
    text = f"<s>{prompt}" if bos == "literal" else prompt
    prompt_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if response is None:
        return {"input_ids": start + prompt_ids}
    room = max_length - len(start) - len(prompt_ids)
    if room < 1:
        raise DataError(
            f"The prompt that ends in {prompt[-80:]!r} fills all {max_length} tokens, so nothing of its "
            "response would be learnt; raise train.max_length."
        )
    response_ids = tokenizer(response, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    response_ids = response_ids[:room]
    prompt_labels = prompt_ids if loss_on == "all" else [IGNORE] * len(prompt_ids)
    return {
        "input_ids": start + prompt_ids + response_ids,
        "labels": [IGNORE] * len(start) + prompt_labels + response_ids,
    }


def pad_id(tokenizer: Any) -> int:
    """Return the id to pad with: the tokenizer's, else EOS (which one never matters: it is masked)."""
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id


def collate(
    examples: Sequence[dict[str, list[int]]], pad: int, *, side: str = "right"
) -> dict[str, torch.Tensor]:
    """Pad encoded examples to their longest into int64 tensors of shape [batch, tokens].

    Returns `input_ids`, `attention_mask` (1 on tokens, 0 on padding) and, if the examples have them, `labels`
    (-100 on padding).  Train with `side="right"`, generate with `side="left"`.
    """
    import torch

    def stack(rows: list[list[int]], fill: int) -> torch.Tensor:
        width = max(map(len, rows))
        fills = [[fill] * (width - len(row)) for row in rows]
        both = zip(rows, fills, strict=True)
        return torch.tensor([row + end if side == "right" else end + row for row, end in both])

    ids = [example["input_ids"] for example in examples]
    batch = {"input_ids": stack(ids, pad), "attention_mask": stack([[1] * len(row) for row in ids], 0)}
    if "labels" in examples[0]:
        batch["labels"] = stack([example["labels"] for example in examples], IGNORE)
    return batch
