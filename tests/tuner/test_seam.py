"""The seam itself: installed once, without effect on others, without shared state."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dypam.attention import Geometry, call, install, rotary_attentions
from tests.tiny import tiny, tokens
from tests.tuner.support import adapted, attention_layers, logits, moved


def test_installing_twice_wraps_once(family: str) -> None:
    attention = next(iter(rotary_attentions(tiny(family)).values()))
    install(attention)
    modeling = sys.modules[type(attention).__module__]
    wrapped = modeling.apply_rotary_pos_emb
    adapted(family)
    install(attention)
    assert modeling.apply_rotary_pos_emb is wrapped


def test_another_model_of_the_family_feels_nothing(family: str) -> None:
    ids, other = tokens(), tiny(family)
    before = logits(other, ids)
    logits(moved(family), ids)
    assert torch.equal(logits(other, ids), before)


def test_before_and_after_the_rotation_are_two_places(family: str) -> None:
    """A pair's factor commutes with RoPE; a shift of every dimension does not."""
    model, outputs = tiny(family), {}
    attention = rotary_attentions(model)["model.layers.0.self_attn"]
    install(attention)
    hidden = torch.randn(1, 6, Geometry.of(attention).hidden)
    cos, sin = model.model.rotary_emb(hidden, torch.arange(6)[None], **_layer_type(model, attention))
    kwargs = {"hidden_states": hidden, "position_embeddings": (cos, sin), "attention_mask": None}
    for name, change in (("shift", lambda q, k: (q + 1, k)), ("scale", lambda q, k: (q * 1.5, k))):
        for place in ("before", "after"):
            hooks = {"before": None, "after": None, place: change}
            outputs[name, place] = call(attention, (), kwargs, **hooks)[0]
    assert not torch.allclose(outputs["shift", "before"], outputs["shift", "after"], atol=1e-3)
    torch.testing.assert_close(outputs["scale", "before"], outputs["scale", "after"], rtol=1e-4, atol=1e-5)


def _layer_type(model, attention) -> dict:
    kind = getattr(attention, "layer_type", None)
    return {"layer_type": kind} if kind and "gemma3" in type(model).__module__ else {}


def test_threads_do_not_meet(family: str) -> None:
    models = [moved(family, seed=seed) for seed in range(3)] + [tiny(family)]
    inputs = [tokens(2, 12, seed=seed) for seed in range(6)]
    alone = [[logits(model, ids) for ids in inputs] for model in models]

    def work(index: int) -> bool:
        model = models[index % len(models)]
        return all(
            torch.equal(logits(model, ids), wanted)
            for ids, wanted in zip(inputs, alone[index % len(models)], strict=True)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


def test_attributes_of_the_attention_pass_through(family: str) -> None:
    layer = attention_layers(adapted(family))[1]
    assert layer.layer_idx == 1
    assert layer.head_dim == 16
    assert layer.q_proj is layer.base_layer.q_proj
    if family.startswith("gemma"):
        assert layer.sliding_window is None
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = layer.nothing_of_the_kind


def test_geometry_is_read_off_the_projections(family: str) -> None:
    attention = next(iter(rotary_attentions(tiny(family)).values()))
    geometry = Geometry.of(attention)
    assert (geometry.query_heads, geometry.key_heads, geometry.head_dim, geometry.pairs) == (4, 2, 16, 8)


def test_eager_attention_is_adapted_too(family: str) -> None:
    ids, eager = tokens(), moved(family)
    wanted = logits(eager, ids)
    for module in eager.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"
    torch.testing.assert_close(logits(eager, ids), wanted, rtol=1e-4, atol=1e-4)
