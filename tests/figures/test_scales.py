import json

import numpy as np
import pytest
import torch

from dypam.adapter import save_adapter
from dypam.backbone import load_backbone
from dypam.config import ConfigError
from dypam.files import as_json
from dypam.lease import Lease
from dypam.method import RunContext
from dypam.record import EMPTY
from dypam.tuner.digest import weights_digest
from dypam.tuner.method import DyPAM
from eval.figures import scales
from eval.figures.modulation import Modulation
from eval.figures.scales import measure
from scripts import compose, figures
from tests.tiny import tokens

EXAMPLES = tokens(batch=3, length=10).tolist()


def attach(model, **fields):
    return DyPAM("dypam", rank=4, d_e=4, **fields).attach(model, RunContext(seed=0, total_steps=1)).eval()


def adapted(tiny, **fields):
    return attach(tiny("llama"), **fields)


def parameters(model, name):
    return [p for key, p in model.named_parameters() if name in key]


def test_a_fresh_adapter_scales_by_one(tiny):
    found = measure(adapted(tiny), EXAMPLES)
    assert found["bias_q"].shape == found["bias_k"].shape == (2, 8)
    np.testing.assert_array_equal(found["scale_q"], np.ones((2, 5)))
    np.testing.assert_array_equal(found["bias_q"], 0)


def test_biases_alone_give_known_factors(tiny):
    model = adapted(tiny, dim_mod=False, head_bias=False)
    with torch.no_grad():
        for layer, bias in enumerate(parameters(model, "layer_bias_Q")):
            bias.copy_(torch.linspace(-1, 1, 8) * (layer + 1))
    found = measure(model, EXAMPLES)
    for layer in range(2):
        g = np.linspace(-1, 1, 8) * (layer + 1)
        s = 1 + 0.3 * (1 / (1 + np.exp(-g)) - 0.5)
        mean, low, high, least, most = found["scale_q"][layer]
        np.testing.assert_allclose(found["bias_q"][layer], g, rtol=1e-6)
        np.testing.assert_allclose([mean, least, most], [1, s.min(), s.max()], rtol=1e-6)
        assert least <= low < mean < high <= most
    np.testing.assert_array_equal(found["scale_k"], 1)


@pytest.mark.parametrize("modulate", ["after_norm", "before_norm"])
def test_the_range_is_that_of_all_tokens_wherever_factors_act(tiny, modulate):
    model = attach(tiny("qwen3"), modulate=modulate)
    with torch.no_grad():
        for weight in parameters(model, ".B_"):
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    found = measure(model, EXAMPLES)
    for side in "qk":
        mean, low, high, least, most = found[f"scale_{side}"].T
        assert (least >= 0.85).all()
        assert (most <= 1.15).all()
        assert (np.diff([least, low, mean, high, most], axis=0) > 0).all()


@pytest.mark.parametrize("tokens", [80, 171, 256])
def test_the_drawn_factors_are_of_all_pairs(tiny, tokens, monkeypatch):
    """The number of pairs is a power of two, and so may be the distance of equally spaced samples."""
    monkeypatch.setattr(scales, "DRAWN", 512)
    model = attach(tiny("qwen3"))
    pairs = {}
    for name, weight in model.named_parameters():
        if "layer_bias_Q" in name:
            pairs["q"] = weight.numel()
            with torch.no_grad():
                weight.copy_(torch.linspace(-1, 1, weight.numel()))
    layers = [m for m in model.modules() if hasattr(m, "layer_bias_Q")]
    with torch.no_grad(), scales._recorded(layers) as seen:
        model(input_ids=torch.arange(tokens)[None] % 50)
    values, counts = np.unique(seen["Q", 0][0][4:].round(6), return_counts=True)
    assert len(values) == pairs["q"]
    assert counts.max() < 2 * 512 / pairs["q"]


def test_the_model_is_as_before(tiny):
    model = adapted(tiny)
    measure(model, EXAMPLES)
    assert not any("factors" in vars(module) for module in model.modules())


def test_without_layer_biases_only_the_range_is_there(tiny):
    assert set(measure(adapted(tiny, layer_bias=False), EXAMPLES)) == {"scale_q", "scale_k"}


def test_another_method_is_refused(tiny):
    with pytest.raises(ConfigError, match="no DyPAM adapter"):
        measure(tiny("llama"), EXAMPLES)


def test_figures_5_and_6_from_a_saved_adapter(tiny_backbone_dir, tmp_path):
    directory = tiny_backbone_dir("llama")
    given = [f"results={tmp_path}", "backbone=llama-3.2-3b", f"backbone.path={directory}", "suite=minimath",
             "method.rank=4", "method.d_e=4", "train.validation_size=4"]  # fmt: skip
    config = compose.run_config([*given, "method=dypam"])
    backbone, _ = load_backbone(config.backbone, dtype=torch.float32, device="cpu", runtime=config.runtime)
    model = attach(backbone)
    with torch.no_grad():
        for bias in parameters(model, "layer_bias"):
            bias.fill_(0.25)
    run_dir = tmp_path / "runs/minimath/llama-3.2-3b/dypam/seed2333"
    run_dir.mkdir(parents=True)
    with Lease.acquire(run_dir) as lease:
        about = {"weights_digest": weights_digest(model)}
        save_adapter(DyPAM("dypam", rank=4, d_e=4), model, run_dir, lease, about)
    identity = as_json(config.identity())
    record = {**EMPTY, "identity": identity, "status": "running", "stages": {"train": "now"}}
    (run_dir / "record.json").write_text(json.dumps(record))
    assert str(run_dir) == config.run_dir
    assert len(figures.draw(["experiment=figure5", *given])) == 4
    assert len(figures.draw(["experiment=figure6", *given])) == 2
    (data,) = (tmp_path / "figures/data").iterdir()
    found = Modulation.read(data)
    np.testing.assert_allclose(found.bias["q"], 0.25)
    assert found.about["backbone"] == "LLaMA-3.2-3B"
