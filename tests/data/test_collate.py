"""Encoding and padding: borders, BOS, EOS, labels, truncation."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from data.collate import collate, encode, pad_id
from data.fetch import DataError


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes are tokens, except that "\\nA" is one: so the border of prompt and response can be seen."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, "ĊA", "<bos>", "<eos>", "<pad>"])}
    raw = Tokenizer(models.BPE(vocabulary, [("Ċ", "A")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )


@pytest.fixture(scope="module")
def plain(tokenizer) -> PreTrainedTokenizerFast:
    """The same without BOS and padding token, as Qwen's has no BOS."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<eos>")


def test_prompt_and_response_are_tokenised_apart(tokenizer) -> None:
    found = encode(tokenizer, "Q\n", "A b")
    apart = tokenizer("Q\n")["input_ids"], tokenizer("A b")["input_ids"]
    assert found["input_ids"] == [tokenizer.bos_token_id, *apart[0], *apart[1], tokenizer.eos_token_id]
    assert tokenizer("Q\nA b")["input_ids"] != [*apart[0], *apart[1]]
    assert found["labels"] == [-100] * 3 + [*apart[1], tokenizer.eos_token_id]
    assert encode(tokenizer, "Q\n") == {"input_ids": found["input_ids"][:3]}


def test_bos_options(tokenizer, plain) -> None:
    ids = tokenizer("Q")["input_ids"]
    assert encode(tokenizer, "Q", bos="none")["input_ids"] == ids
    assert encode(tokenizer, "Q", bos="literal")["input_ids"] == tokenizer("<s>Q")["input_ids"]
    assert encode(plain, "Q", bos="tokenizer")["input_ids"] == ids


def test_bos_is_not_doubled(tokenizer) -> None:
    class Adding:
        bos_token_id, eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict:
            start = [self.bos_token_id] if add_special_tokens else []
            return {"input_ids": start + tokenizer(text)["input_ids"]}

    assert encode(Adding(), "Q", "A") == encode(tokenizer, "Q", "A")


def test_loss_on_all_supervises_the_prompt_but_not_bos(tokenizer) -> None:
    found = encode(tokenizer, "Q", "A", loss_on="all")
    assert found["labels"] == [-100, *found["input_ids"][1:]]


def test_a_long_example_loses_its_right_end(tokenizer) -> None:
    whole = encode(tokenizer, "QQ", "1234")
    cut = encode(tokenizer, "QQ", "1234", max_length=5)
    assert cut == {key: ids[:5] for key, ids in whole.items()}
    assert encode(tokenizer, "QQ", "1234", max_length=8) == whole
    assert encode(tokenizer, "QQ", max_length=2) == encode(tokenizer, "QQ")


def test_an_example_without_any_response_left_is_refused(tokenizer) -> None:
    assert encode(tokenizer, "QQ", "1", max_length=4)["labels"][-1] != -100
    with pytest.raises(DataError, match="max_length"):
        encode(tokenizer, "QQ", "1", max_length=3)


def test_padding_on_both_sides(tokenizer, plain) -> None:
    batch = [encode(tokenizer, "Q", "1"), encode(tokenizer, "Q", "123")]
    pad = pad_id(tokenizer)
    right = collate(batch, pad)
    assert right["input_ids"].tolist() == [batch[0]["input_ids"] + [pad] * 2, batch[1]["input_ids"]]
    assert right["attention_mask"].tolist() == [[1] * 4 + [0] * 2, [1] * 6]
    assert right["labels"].tolist() == [batch[0]["labels"] + [-100] * 2, batch[1]["labels"]]
    prompts = [encode(tokenizer, text) for text in ("Q", "QQQ")]
    left = collate(prompts, pad, side="left")
    assert left["input_ids"].tolist() == [[pad] * 2 + prompts[0]["input_ids"], prompts[1]["input_ids"]]
    assert left["attention_mask"].tolist() == [[0] * 2 + [1] * 2, [1] * 4]
    assert set(left) == {"input_ids", "attention_mask"}
    assert pad_id(plain) == plain.eos_token_id
