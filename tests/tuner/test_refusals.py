"""What cannot be adapted is refused in one sentence that names it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from peft import get_peft_model
from torch import nn

from dypam import DyPAMConfig
from dypam.config import ConfigError
from tests.tiny import tiny, tokens
from tests.tuner.support import SMALL, adapted, logits


def refused(model: nn.Module) -> str:
    with pytest.raises(ConfigError) as error:
        get_peft_model(model, DyPAMConfig(**SMALL))
    message = str(error.value)
    assert message.count(". ") == 0
    assert message.endswith(".")
    return message


@pytest.mark.parametrize(("family", "attention"), [("bloom", "Bloom"), ("opt", "OPT")])
def test_a_backbone_without_rope(family: str, attention: str) -> None:
    message = refused(tiny(family))
    assert "no rotary position embeddings" in message
    assert f"attention: {attention}" in message


def test_an_unknown_attention() -> None:
    config = transformers.PhiConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    message = refused(transformers.PhiForCausalLM(config))
    assert "PhiForCausalLM has an attention that is not known here (PhiAttention)" in message


def test_a_subclass_of_a_known_attention() -> None:
    model = tiny()
    for layer in model.model.layers:
        layer.self_attn.__class__ = type("MyAttention", (type(layer.self_attn),), {"__module__": __name__})
    assert "MyAttention" in refused(model)


def test_remote_code() -> None:
    model = tiny()
    model.__class__ = type("Remote", (type(model),), {"__module__": "transformers_modules.someone.modeling"})
    for layer in model.model.layers:
        layer.self_attn.__class__ = type(
            "A", (type(layer.self_attn),), {"__module__": "transformers_modules.x"}
        )
    assert "runs remote code" in refused(model)


def test_partial_rotation() -> None:
    model = tiny()
    model.config.partial_rotary_factor = 0.5
    assert "rotates only a part of each head" in refused(model)


def test_partial_rotation_that_the_config_hides() -> None:
    model = adapted()
    rotary = model.get_base_model().model.rotary_emb
    rotary.inv_freq = rotary.inv_freq[:4]
    with pytest.raises(ConfigError, match="8 of 16 dimensions"):
        logits(model, tokens())


def test_an_attention_that_does_not_call_the_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapted()
    attention = type(model.get_base_model().model.layers[0].self_attn.base_layer)

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **kwargs):
        return hidden_states, None

    monkeypatch.setattr(attention, "forward", forward)
    with pytest.raises(RuntimeError, match="rotated query and key 0 times"):
        logits(model, tokens())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"rank": 0}, "rank=0"),
        ({"d_e": 1.5}, "d_e=1.5"),
        ({"alpha": -0.1}, "alpha=-0.1"),
        ({"projection": "both"}, "projection='both'"),
        ({"modulate": "after_rope"}, "modulate='after_rope'"),
        ({"normalize": "softmax"}, "normalize='softmax'"),
        ({"fold": "train"}, "fold='train'"),
        ({"train_norms": "some"}, "train_norms='some'"),
        ({"dim_mod": False, "head_bias": False, "layer_bias": False}, "dim_mod=False"),
        ({"normalize": "raw", "head_bias": False, "layer_bias": False}, "normalize='raw'"),
    ],
)
def test_a_wrong_option(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as error:
        DyPAMConfig(**fields)
    assert str(error.value).startswith(named)


def test_the_vision_tower_is_left_alone() -> None:
    model = tiny("gemma3")
    backbone = logits(model, tokens())
    wrapped = get_peft_model(model, DyPAMConfig(**{**SMALL, "train_norms": True}))
    names = [name for name, p in wrapped.named_parameters() if p.requires_grad]
    assert names
    assert not any("vision" in name or "projector" in name for name in names)
    assert torch.equal(logits(wrapped, tokens()), backbone)
    tower = next(m for n, m in wrapped.named_modules() if n.endswith("vision_tower"))
    assert not any(hasattr(module, "base_layer") for module in tower.modules())
