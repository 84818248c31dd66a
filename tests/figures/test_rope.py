import numpy as np
import pytest

from dypam.config import ConfigError
from eval.figures import rope
from tests.figures.looks import assert_readable

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 3072,
    "num_attention_heads": 24,
    "rope_theta": 5e5,
    "rope_scaling": LLAMA3,
}
GEMMA = {
    "model_type": "gemma3_text",
    "head_dim": 64,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}


@pytest.mark.parametrize(
    "parameters", [LLAMA3, {"rope_type": "linear", "factor": 8.0}, {"rope_type": "default"}]
)
def test_frequencies_are_those_that_transformers_rotates_by(parameters):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    plain = parameters["rope_type"] == "default"
    scaling = {} if plain else {"rope_scaling": parameters}
    config = LlamaConfig(hidden_size=256, num_attention_heads=2, max_position_embeddings=131072, **scaling)
    config.rope_theta = 5e5
    if getattr(config, "rope_parameters", None):
        config.rope_parameters["rope_theta"] = 5e5
    theirs = LlamaRotaryEmbedding(config).inv_freq.numpy()
    ours = rope.inverse_frequencies({**parameters, "rope_theta": 5e5}, 128)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_response_is_the_rotated_dot_product():
    theta = rope.inverse_frequencies({"rope_theta": 100.0}, 8)
    distance = 5
    for i, angle in enumerate(theta):
        rotation = np.array([[np.cos(distance * angle), -np.sin(distance * angle)],
                             [np.sin(distance * angle), np.cos(distance * angle)]])  # fmt: skip
        unit = np.array([0.6, 0.8])
        assert unit @ rotation @ unit == pytest.approx(rope.response(theta, np.array([distance]))[i, 0])


def test_bins_are_means_over_whole_distances():
    theta = np.array([0.3, 0.01])
    edges = np.array([1, 2, 6])
    expected = np.stack([np.cos(theta), np.cos(np.outer(theta, [2, 3, 4, 5])).mean(1)], 1)
    np.testing.assert_allclose(rope.binned_response(theta, edges), expected)
    assert rope.distance_edges(100)[[0, -1]].tolist() == [1, 101]


def test_both_spellings_of_the_configuration_agree():
    new = {
        "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    }
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    assert rope.rope_kinds(new) == rope.rope_kinds(old)
    assert rope.rope_kinds({"rope_parameters": {"rope_theta": 7.0}}) == rope.rope_kinds({"rope_theta": 7.0})


@pytest.mark.parametrize("architecture", [LLAMA, GEMMA])
def test_figure_2_is_readable(architecture):
    assert_readable(rope.rope_response(architecture, "LLaMA-3.2-3B"))


def test_no_rope_and_unknown_scaling_are_refused_in_a_sentence():
    with pytest.raises(ConfigError, match="model_type=bloom has no rope_theta"):
        rope.rope_kinds({"model_type": "bloom"})
    with pytest.raises(ConfigError, match="rope_type=dynamic has no closed form"):
        rope.inverse_frequencies({"rope_theta": 1.0, "rope_type": "dynamic"}, 8)
