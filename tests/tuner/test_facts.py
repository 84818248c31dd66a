"""The facts of DyPAM on every family: the start, gradients, sides of the norm, caches, padding, dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dypam.attention import call
from tests.reference import dypam as numpy_reference
from tests.tiny import WINDOW, cache_arguments, new_cache, tiny, tokens
from tests.tuner.support import CASES, VARIANTS, adapted, attention_layers, logits, move, moved, trainable

LONG = 2 * WINDOW + 4
WITH_NORM = ("qwen3", "gemma3_text")


@pytest.mark.parametrize(("variant", "family"), CASES)
def test_starts_as_the_backbone_bit_for_bit(variant: str, family: str) -> None:
    ids = tokens(2, LONG)
    for dtype in (torch.float32, torch.bfloat16):
        backbone = logits(tiny(family, dtype=dtype), ids)
        model = adapted(family, dtype=dtype, **VARIANTS[variant])
        assert torch.equal(logits(model, ids), backbone)
        assert {p.dtype for p in trainable(model).values()} == {torch.float32}


@pytest.mark.parametrize(("variant", "family"), CASES)
def test_every_parameter_gets_a_gradient_within_two_steps(variant: str, family: str) -> None:
    model, ids = adapted(family, **VARIANTS[variant]), tokens(2, LONG)
    parameters = trainable(model)
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    assert [n for n, p in parameters.items() if p.grad is None or not p.grad.abs().max() > 0] == []


def test_layer_computes_the_equations(family: str) -> None:
    """What enters RoPE, seen by a second carrier, against NumPy in float64."""
    for projection in ("separate", "shared"):
        model = moved(family, projection=projection).double()
        layer, seen = attention_layers(model)[1], {}

        def keep(name: str, seen: dict = seen):
            def hook(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                seen[name] = (q[0].detach().numpy(), k[0].detach().numpy())
                return q, k

            return hook

        attention = layer.base_layer
        hidden = torch.randn(1, 5, attention.q_proj.in_features, dtype=torch.float64)
        position = torch.randn(2, 1, 5, 16, dtype=torch.float64)
        kwargs = {"hidden_states": hidden, "position_embeddings": tuple(position), "attention_mask": None}
        call(attention, (), kwargs, keep("before"), None)
        call(layer, (), kwargs, keep("after"), None)
        adapter = layer.active()[0]
        p = {name: value.detach().numpy() for name, value in adapter.named_parameters()}
        wanted = numpy_reference.modulate(hidden[0].numpy(), *seen["before"], p, 0.3, projection=projection)
        for got, expected in zip(seen["after"], wanted, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-10)
        assert np.abs(seen["after"][0] - seen["before"][0]).max() > 1e-2


@pytest.mark.parametrize("variant", ["default", "before_norm", "shared"])
def test_cached_decoding_equals_the_full_forward(variant: str, family: str) -> None:
    model, ids = moved(family, **VARIANTS[variant]), tokens(2, LONG)
    whole = logits(model, ids)
    cache, start, parts = new_cache(model, 2, LONG), 0, []
    with torch.no_grad():
        for piece in (ids[:, : LONG - 6], *ids[:, LONG - 6 :].split(1, dim=1)):
            parts.append(model(input_ids=piece, **cache_arguments(cache, start, piece.shape[1])).logits)
            start += piece.shape[1]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=2e-4, atol=2e-4)


def test_left_padding_changes_nothing(family: str) -> None:
    model, ids = moved(family), tokens(1, 10)
    padded = torch.cat((torch.zeros(1, 5, dtype=torch.long), ids), dim=1)
    mask = (torch.arange(15) >= 5).long()[None]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    out = logits(model, padded, attention_mask=mask, position_ids=positions)[:, 5:]
    torch.testing.assert_close(out, logits(model, ids), rtol=2e-4, atol=2e-4)


def test_generation_with_cache_equals_generation_without(family: str) -> None:
    model, ids = moved(family), tokens(2, 12)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "do_sample": False}
    cached = model.generate(input_ids=ids, use_cache=True, **options)
    assert torch.equal(cached, model.generate(input_ids=ids, use_cache=False, **options))


@pytest.mark.parametrize("projection", ["separate", "shared"])
def test_folded_form_is_the_same_function(projection: str, family: str) -> None:
    ids = tokens(2, LONG)
    plain = moved(family, projection=projection)
    for fold in ("eval", "always"):
        folded = moved(family, projection=projection, fold=fold)
        for _ in range(2):  # the second call uses the kept matrices
            torch.testing.assert_close(logits(folded, ids), logits(plain, ids), rtol=1e-4, atol=1e-4)


def test_folded_matrices_follow_the_weights() -> None:
    ids, model = tokens(), moved(fold="eval")
    first = logits(model, ids)
    move(model, seed=9)
    changed = logits(model, ids)
    assert not torch.allclose(first, changed, atol=1e-3)
    torch.testing.assert_close(changed, logits(move(moved(), seed=9), ids), rtol=1e-4, atol=1e-4)
    for parameter in trainable(model).values():  # as an engine writes them: past autograd's version counter
        parameter.data.mul_(0.5)
    assert not torch.allclose(logits(model.train().eval(), ids), changed, atol=1e-3)


def test_both_sides_of_the_norm_differ_where_there_is_one(family: str) -> None:
    ids = tokens(2, LONG)
    after, before = logits(moved(family), ids), logits(moved(family, modulate="before_norm"), ids)
    assert torch.equal(after, before) == (family not in WITH_NORM)


@pytest.mark.parametrize("family", WITH_NORM)
def test_the_norm_undoes_a_heads_common_factor_and_keeps_a_pairs(family: str) -> None:
    ids = tokens(2, LONG)
    backbone = logits(tiny(family), ids)
    fields = {"modulate": "before_norm", "dim_mod": False, "normalize": "raw_centered", "alpha": 1.0}
    model = adapted(family, **fields)
    with torch.no_grad():
        for name, parameter in trainable(model).items():
            if "head_bias" in name:
                parameter.copy_(torch.rand(parameter.shape[0], 1).expand_as(parameter))
    torch.testing.assert_close(logits(model, ids), backbone, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(logits(moved(family, **fields), ids), backbone, atol=0.1)


def test_key_factors_live_on_key_heads(family: str) -> None:
    """Changing one key head's bias reaches exactly the query heads of its group."""
    model, ids = adapted(family), tokens(1, 6)
    layer = attention_layers(model)[0]
    adapter, attention = layer.active()[0], layer.base_layer
    assert (adapter.head_bias_Q.shape, adapter.head_bias_K.shape) == ((4, 8), (2, 8))
    attention.config._attn_implementation = "eager"
    kept = []
    attention.o_proj.register_forward_pre_hook(lambda _, args: kept.append(args[0].unflatten(-1, (4, 16))))
    logits(model, ids)
    with torch.no_grad():
        adapter.head_bias_K[1].add_(torch.linspace(-3, 3, 8))
    logits(model, ids)
    change = (kept[1] - kept[0]).abs().amax(dim=(0, 1, 3))
    assert torch.equal(change > 1e-6, torch.tensor([False, False, True, True]))


def test_adapter_arithmetic_is_fp32_on_a_bf16_backbone(family: str) -> None:
    """The factors are those of an FP32 run on the same hidden states, not BF16 roundings of them."""
    model = moved(family, dtype=torch.bfloat16)
    adapter = attention_layers(model)[0].active()[0]
    hidden = torch.randn(1, 5, adapter.geometry.hidden).to(torch.bfloat16)
    s = adapter.factors("Q", hidden)
    assert s.dtype == torch.float32
    torch.testing.assert_close(s, adapter.factors("Q", hidden.float()), rtol=0, atol=0)
    assert not torch.equal(s, s.to(torch.bfloat16).float())
    assert logits(model, tokens()).dtype == torch.bfloat16


def checkpoint_layers(model: torch.nn.Module, reentrant: bool) -> None:
    old = "gradient_checkpointing_enable"  # its name before Transformers 5.24
    enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, old)
    enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_no_gradient(reentrant: bool, family: str) -> None:
    ids, gradients = tokens(2, LONG), []
    for checkpointing in (False, True):
        model = moved(family, train_norms=True).train()
        if checkpointing:
            checkpoint_layers(model, reentrant)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        gradients.append({name: p.grad for name, p in trainable(model).items()})
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name
