"""Logits of the response alone give the loss and gradients that all logits give."""

import pytest
import torch
from torch.nn import functional

from dypam.config import ConfigError
from dypam.loss import ResponseLoss
from tests.tiny import FAMILIES, tiny, tokens

CHANGES = {"gemma2": {"final_logit_softcapping": 3.0}, "gemma3_text": {"final_logit_softcapping": 3.0}}
ALL = (*FAMILIES, "bloom", "opt")


def batch(prompt: int = 5) -> dict[str, torch.Tensor]:
    """Two examples of 12 and 9 tokens, the first `prompt` of each not supervised."""
    ids = tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :prompt] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def model(family: str) -> torch.nn.Module:
    made = tiny(family, **CHANGES.get(family, {}))
    return made.requires_grad_(False)  # in evaluation mode: OPT has dropout


def with_all_logits(made: torch.nn.Module, data: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = made(data["input_ids"], attention_mask=data["attention_mask"], use_cache=False).logits
    wanted = data["labels"][:, 1:]
    kept = wanted != -100
    return functional.cross_entropy(logits[:, :-1][kept].float(), wanted[kept], reduction="sum")


def trained(made: torch.nn.Module) -> torch.nn.Parameter:
    weight = next(
        p for name, p in made.named_parameters() if "layers.0" in name or "h.0" in name if p.dim() == 2
    )
    return weight.requires_grad_(True)


@pytest.mark.parametrize("family", ALL)
def test_equals_full_logits_bit_for_bit(family: str) -> None:
    made, data = model(family), batch()
    weight = trained(made)
    full = with_all_logits(made, data)
    (expected,) = torch.autograd.grad(full, weight)
    loss, count = ResponseLoss(made)(**data)
    (gradient,) = torch.autograd.grad(loss, weight)
    assert torch.equal(loss, full)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
    assert count == (data["labels"] != -100).sum()


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_chunks_of_rows_change_nothing(family: str, rows: int) -> None:
    made, data = model(family).double(), batch()
    weight = trained(made)
    whole, _ = ResponseLoss(made)(**data)
    (expected,) = torch.autograd.grad(whole, weight)
    loss, _ = ResponseLoss(made, logit_rows=rows)(**data)
    (gradient,) = torch.autograd.grad(loss, weight)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_output_embedding_sees_supervised_rows_only() -> None:
    made, data = model("llama"), batch()
    seen: list[torch.Size] = []
    made.lm_head.register_forward_hook(lambda _, inputs, output: seen.append(output.shape))
    ResponseLoss(made)(**data)
    ResponseLoss(made, logit_rows=4)(**data)
    supervised = int((data["labels"] != -100).sum())
    assert seen[0] == (supervised, made.config.vocab_size)
    assert max(shape[0] for shape in seen[1:]) == 4


def test_an_example_alone_has_the_loss_it_has_in_a_padded_batch() -> None:
    made, data = model("gemma3_text"), batch()
    together, _ = ResponseLoss(made)(**data)
    apart = sum(
        ResponseLoss(made)(**{key: value[i : i + 1, :length] for key, value in data.items()})[0]
        for i, length in enumerate((12, 9))
    )
    torch.testing.assert_close(together, apart)


def test_chunks_with_a_family_that_scales_logits_are_refused() -> None:
    made = model("llama")
    made.config.logit_scale = 0.5
    ResponseLoss(made)
    with pytest.raises(ConfigError, match="logit_rows=4: llama scales its logits"):
        ResponseLoss(made, logit_rows=4)
