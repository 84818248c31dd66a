import subprocess
import sys

import numpy as np
import pytest

from dypam.config import ConfigError
from eval.figures import activations as drawing
from eval.figures import style
from tests.figures.looks import assert_readable, visible_texts


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_figure_1_is_readable_at_column_width(activation_file, part):
    figure = drawing.heterogeneity(drawing.Activations.read(activation_file()), part)
    assert figure.get_figwidth() == style.COLUMN
    assert_readable(figure)


def test_figures_7_and_8_are_readable_and_random_weights_say_so(activation_file):
    models = [
        drawing.Activations.read(path)
        for path in (
            activation_file(),
            activation_file("b", "random"),
            activation_file("c", "random", layers=24),
        )
    ]
    for figure in (drawing.across_models(models), drawing.token_classes(models), drawing.parts(models[1])):
        assert_readable(figure)
        assert any(style.RANDOM in text.get_text() for text in visible_texts(figure))
    assert not any(style.RANDOM in t.get_text() for t in visible_texts(drawing.parts(models[0])))


def test_class_ratio_is_log2_and_dimension_norm_is_rms(activation_file):
    data = drawing.Activations.read(activation_file())
    data.arrays["q"][1] = 2 * data.arrays["q"][0]
    np.testing.assert_allclose(data.class_ratio("q")[0], 1, rtol=1e-6)
    data.arrays["q"][0] = 3
    np.testing.assert_allclose(data.by_dimension("q")[0], 3)


def test_unevenness_is_zero_for_flat_and_scale_free():
    values = np.random.default_rng(0).lognormal(size=(4, 50))
    assert drawing.unevenness(np.ones((2, 8))) == 0
    assert drawing.unevenness(values) == pytest.approx(drawing.unevenness(7 * values))


def test_files_are_vector_pdf_and_png_and_reproducible(activation_file, tmp_path):
    data = drawing.Activations.read(activation_file())
    first = {p.suffix: p.read_bytes() for p in style.save(drawing.parts(data), tmp_path, "one")}
    second = {p.suffix: p.read_bytes() for p in style.save(drawing.parts(data), tmp_path, "two")}
    assert first == second
    assert first[".pdf"].startswith(b"%PDF")
    assert first[".png"].startswith(b"\x89PNG")


def test_drawing_needs_no_torch():
    modules = ", ".join(f"eval.figures.{name}" for name in ("activations", "rope", "modulation", "curves"))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


class TestCollection:
    """The torch half, on tiny models."""

    @pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "bloom", "opt"])
    def test_equals_attention_inputs_computed_by_hand(self, tiny, tokenizer, family):
        import torch

        from eval.figures.collect import Corpus, activations

        model = tiny(family)
        corpus = Corpus(["Oslo, and Lima."], Corpus.read().classes)
        found = activations(model, tokenizer, corpus)
        q = _first_layer_query(model, torch.tensor([tokenizer("Oslo, and Lima.")["input_ids"]]), family)
        np.testing.assert_allclose(found["q"][0, 0], (q**2).mean(0).sqrt().numpy(), rtol=1e-4)
        comma = found["q"][1 + list(found["classes"]).index("punctuation"), 0]
        np.testing.assert_allclose(comma, (q[[4, 14]] ** 2).mean(0).sqrt().numpy(), rtol=1e-4)
        assert dict(zip(["all", *found["classes"]], found["counts"], strict=True)) == {
            "all": 15, "places": 8, "times": 0, "connectives": 3, "punctuation": 2,
        }  # fmt: skip

    def test_layers_heads_and_dimensions(self, tiny, tokenizer):
        from eval.figures.collect import Corpus, activations

        found = activations(tiny("qwen3"), tokenizer, Corpus(["Lima."], Corpus.read().classes))
        assert found["q"].shape == (5, 2, 4, 16)
        assert found["k"].shape == found["v"].shape == (5, 2, 2, 16)

    def test_hooks_are_gone_afterwards(self, tiny, tokenizer):
        from eval.figures.collect import Corpus, activations

        model = tiny("llama")
        activations(model, tokenizer, Corpus(["Lima."], Corpus.read().classes))
        assert not any(module._forward_hooks for module in model.modules())

    def test_unknown_attention_is_refused(self, tokenizer):
        import transformers

        from eval.figures.collect import activations

        config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=300)
        with pytest.raises(ConfigError, match="GPT2LMHeadModel has neither q_proj"):
            activations(transformers.GPT2LMHeadModel(config), tokenizer)

    def test_the_corpus_has_every_class_in_number(self, tokenizer):
        from eval.figures.collect import Corpus

        corpus = Corpus.read()
        for name, pattern in corpus.classes.items():
            assert sum(len(pattern.findall(text)) for text in corpus.texts) >= 40, name


def _first_layer_query(model, ids, family):
    """Return the query states [tokens, heads, d_h] of the first layer, from its modules one by one."""
    import torch

    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states[0]
        if family == "bloom":
            block = model.transformer.h[0]
            fused = block.self_attention.query_key_value(block.input_layernorm(states))
            return fused.view(ids.shape[1], 4, 3, -1)[:, :, 0]
        if family == "opt":
            layer = model.model.decoder.layers[0]
            return layer.self_attn.q_proj(layer.self_attn_layer_norm(states)).view(ids.shape[1], 4, -1)
        layer = model.model.layers[0]
        query = layer.self_attn.q_proj(layer.input_layernorm(states)).view(ids.shape[1], 4, 16)
        return layer.self_attn.q_norm(query) if hasattr(layer.self_attn, "q_norm") else query
