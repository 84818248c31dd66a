"""RoAE on every family: the equations, the start, gradients, caches, saving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel, get_peft_model

from baselines.rosa import RoSAConfig
from dypam.attention import call
from dypam.config import ConfigError
from dypam.tuner.layers import CannotMergeError
from tests.reference import rosa as numpy_reference
from tests.rosa.support import SMALL, adapted
from tests.tiny import WINDOW, cache_arguments, new_cache, tiny, tokens
from tests.tuner.support import attention_layers, logits, move, trainable

LONG = 2 * WINDOW + 4


def test_starts_as_the_backbone_bit_for_bit(family: str) -> None:
    ids = tokens(2, LONG)
    for dtype in (torch.float32, torch.bfloat16):
        backbone = logits(tiny(family, dtype=dtype), ids)
        model = adapted(family, dtype=dtype, train_norms=True)
        assert torch.equal(logits(model, ids), backbone)
        assert {p.dtype for p in trainable(model).values()} == {torch.float32}


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_every_parameter_gets_a_gradient_within_two_steps(key_heads: int) -> None:
    model = get_peft_model(tiny(num_key_value_heads=key_heads), RoSAConfig(**SMALL))
    parameters, ids = trainable(model), tokens()
    assert len(parameters) == 2 * (2 if key_heads == 4 else 4)
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    assert [n for n, p in parameters.items() if p.grad is None or not p.grad.abs().max() > 0] == []


@pytest.mark.parametrize("r_low", [0.25, 0.5])
def test_layer_computes_the_equations(r_low: float, family: str) -> None:
    """What leaves RoPE, seen by an outer carrier, against NumPy in float64, at a random angle."""
    model = move(adapted(family, r_low=r_low)).double()
    layer, seen = attention_layers(model)[1], {}

    def keep(name: str):
        def hook(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            seen[name] = (q[0].detach().numpy(), k[0].detach().numpy())
            return q, k

        return hook

    hidden = torch.randn(1, 5, layer.q_proj.in_features, dtype=torch.float64)
    position = torch.randn(2, 1, 5, 16, dtype=torch.float64)
    kwargs = {"hidden_states": hidden, "position_embeddings": tuple(position), "attention_mask": None}
    call(layer.base_layer, (), kwargs, None, keep("plain"))
    call(layer, (), kwargs, None, keep("enhanced"))
    p = {name: value.detach().numpy() for name, value in layer.active()[0].named_parameters()}
    wanted = numpy_reference.roae(hidden[0].numpy(), *seen["plain"], p, 0.1, r_low)
    slow = numpy_reference.slow_dimensions(16, r_low)
    for got, expected, plain in zip(seen["enhanced"], wanted, seen["plain"], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10)
        changed = np.abs(got - plain).max(axis=(0, 1)) > 1e-4
        assert list(np.flatnonzero(changed)) == slow


def test_cached_decoding_equals_the_full_forward(family: str) -> None:
    model, ids = move(adapted(family)), tokens(2, LONG)
    whole = logits(model, ids)
    cache, start, parts = new_cache(model, 2, LONG), 0, []
    with torch.no_grad():
        for piece in (ids[:, : LONG - 6], *ids[:, LONG - 6 :].split(1, dim=1)):
            parts.append(model(input_ids=piece, **cache_arguments(cache, start, piece.shape[1])).logits)
            start += piece.shape[1]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("train_norms", [False, "blocks"])
def test_saved_and_loaded_is_the_same_model(train_norms: bool | str, family: str, tmp_path: Path) -> None:
    model, ids = move(adapted(family, train_norms=train_norms)), tokens()
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(tiny(family), tmp_path)
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    with pytest.raises(ConfigError, match="other weights"):
        PeftModel.from_pretrained(tiny(family, seed=1), tmp_path)


def test_refusals() -> None:
    with pytest.raises(CannotMergeError, match="rosa adapter cannot be merged"):
        adapted().merge_and_unload()
    with pytest.raises(ConfigError, match=r"r_low=0.3: .* multiple of 1/8"):
        adapted(r_low=0.3)
    for fields, named in (({"rank": 0}, "rank=0"), ({"r_low": 0}, "r_low=0"), ({"alpha": 0}, "alpha=0")):
        with pytest.raises(ConfigError, match=named):
            RoSAConfig(**fields)
