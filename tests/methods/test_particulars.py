"""What single methods owe beyond the common suite: seeds, orthogonality, FP32 updates, strict loading."""

import json

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from baselines.lora import LoRA
from baselines.oft import orthogonality_error
from dypam.config import ConfigError
from dypam.method import RunContext
from dypam.peft_method import WEIGHTS, PeftMethod
from tests.methods.cases import logits_of, make, one_step, trained
from tests.tiny import tiny, tokens


def attach(name: str, seed: int = 1, dtype: torch.dtype = torch.float32, **changes):
    return make(name, **changes).attach(tiny("llama", dtype=dtype), RunContext(seed=seed, total_steps=10))


def mask(model) -> torch.Tensor:
    return torch.cat(
        [m.shira_indices["default"] for m in model.modules() if hasattr(m, "shira_indices")], dim=1
    )


def frequencies(model) -> torch.Tensor:
    layers = [m for m in model.modules() if hasattr(m, "fourierft_spectrum")]
    return torch.cat([m.indices["default"] for m in layers], dim=1)


def projection(model) -> torch.Tensor:
    return model.base_model.vera_A["default"]


@pytest.mark.parametrize(
    ("name", "drawn"),
    [("shira", mask), ("fourierft", frequencies), ("rosa_chapter/vera", projection)],
)
def test_the_published_draw_ignores_the_runs_seed_and_the_seeded_one_follows_it(name, drawn, tmp_path):
    assert torch.equal(drawn(attach(name, seed=1)), drawn(attach(name, seed=2)))
    one, same, other = (attach(name, seed=seed, seeded=True) for seed in (1, 1, 2))
    assert torch.equal(drawn(one), drawn(same))
    assert not torch.equal(drawn(one), drawn(other))
    method = make(name)
    method.save(other, tmp_path)
    again = make(name).load(tiny("llama"), tmp_path)
    assert torch.equal(drawn(again), drawn(other))


def test_pefts_draws_are_the_published_ones():
    """Our configurations add nothing to what PEFT draws by itself."""
    plain = peft.get_peft_model(tiny("llama"), peft.ShiraConfig(r=4, target_modules="all-linear"))
    assert torch.equal(mask(attach("shira")), mask(plain))


def test_a_method_without_a_seed_of_its_own_refuses_one():
    with pytest.raises(ConfigError, match="seeded"):
        LoRA("lora", seeded=True)


def test_ofts_series_leaves_the_orthogonal_group_and_the_exact_transform_does_not():
    for name, low, high in (("oft", 1e-2, 1e9), ("oft_exact", 0.0, 1e-4)):
        method = make(name)
        model = method.attach(tiny("llama"), RunContext(seed=1, total_steps=10))
        assert method.metrics(model) == {"orthogonality_error": 0.0}
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
        assert low <= orthogonality_error(model) <= high
        assert logits_of(model).isfinite().all()


@pytest.mark.skipif(not hasattr(peft, "BoneConfig"), reason="this PEFT has no Bone to compare with")
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
@pytest.mark.filterwarnings("ignore:Bone:UserWarning", "ignore:.*Bone.*:FutureWarning")
def test_bone_is_bitwise_pefts_old_bone(family):
    old = peft.get_peft_model(tiny(family), peft.BoneConfig(r=8, target_modules="all-linear"))
    method = make("bone")
    new = method.attach(tiny(family), RunContext(seed=1, total_steps=10))
    assert [p.shape for p in old.parameters()] == [p.shape for p in new.parameters()]
    for model in (old, new):
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for step in range(1, 6):
            one_step(method, model, optimizer, step, 5)
    assert torch.equal(logits_of(old.eval()), logits_of(new.eval()))
    assert all(torch.equal(p, q) for p, q in zip(old.parameters(), new.parameters(), strict=True))


@pytest.mark.parametrize(
    "name", ["shira", "ln_tuning", "rosa_chapter/boft", "rosa_chapter/dora", "rosa_chapter/vera"]
)
def test_over_bf16_it_is_what_it_is_over_the_same_weights_in_fp32(name):
    """Adapters and their start do not depend on the backbone's dtype."""
    rounded = tiny("llama", dtype=torch.bfloat16).float()
    method = make(name)
    exact = method.attach(rounded, RunContext(seed=1, total_steps=10))
    model = method.attach(tiny("llama", dtype=torch.bfloat16), RunContext(seed=1, total_steps=10))
    for p, q in zip(exact.parameters(), model.parameters(), strict=True):
        assert torch.equal(p, q.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_updates_of_shira_are_not_swallowed(dtype):
    """PEFT adds the update into a copy of the BF16 weight, where most of it is lost."""
    model = attach("shira", dtype=dtype)
    layer = next(m for m in model.modules() if hasattr(m, "shira_weight"))
    with torch.no_grad():
        layer.shira_weight["default"].fill_(1e-5)
    x = torch.zeros(1, layer.in_features, dtype=dtype)
    x[0, layer.shira_indices["default"][1, 0]] = 1.0
    rows = layer.shira_indices["default"][0][
        layer.shira_indices["default"][1] == layer.shira_indices["default"][1, 0]
    ]
    from baselines.shira import _SparseProduct

    moved = _SparseProduct.apply(
        x, layer.shira_weight["default"], layer.shira_indices["default"], layer.out_features
    )
    assert torch.equal(moved[0].nonzero().flatten(), rows.long().sort().values)
    assert torch.allclose(moved[moved != 0], torch.tensor(1e-5))


def test_shiras_gradient_is_that_of_a_dense_update():
    from baselines.shira import _dense, _SparseProduct

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    values = torch.randn(9, dtype=torch.float64, generator=generator, requires_grad=True)
    flat = torch.randperm(4 * 7, generator=generator)[:9]
    indices = torch.stack([flat // 7, flat % 7]).int()
    out = _SparseProduct.apply(x, values, indices, 4)
    want = x @ _dense(values, indices, (4, 7)).T
    assert torch.allclose(out, want)
    up = torch.randn(out.shape, dtype=torch.float64, generator=generator)
    got, expect = (torch.autograd.grad(y, (x, values), up) for y in (out, want))
    assert all(torch.allclose(a, b) for a, b in zip(got, expect, strict=True))


def damaged(name: str, directory, change) -> PeftMethod:
    run = trained(name, "llama")
    run.method.save(run.model, directory)
    weights = load_file(directory / WEIGHTS)
    change(weights)
    save_file(weights, directory / WEIGHTS)
    return make(name)


def drop(weights):
    del weights[sorted(weights)[0]]


def rename(weights):
    weights["base_model.model.model.layers.9.q_proj.weight"] = weights.pop(sorted(weights)[0])


def add(weights):
    weights["base_model.model.extra"] = torch.zeros(1)


def reshape(weights):
    key = sorted(weights)[0]
    weights[key] = torch.zeros(*weights[key].shape, 2)


@pytest.mark.parametrize("change", [drop, rename, add, reshape])
@pytest.mark.parametrize("name", ["lora", "shira", "adalora", "dypam", "ln_tuning"])
def test_keys_or_shapes_that_do_not_match_are_an_error(name, change, tmp_path):
    method = damaged(name, tmp_path, change)
    with pytest.raises((ConfigError, ValueError)):
        method.load(tiny("llama"), tmp_path)


def test_another_methods_adapter_is_refused(tmp_path):
    run = trained("lora", "llama")
    run.method.save(run.model, tmp_path)
    with pytest.raises(ConfigError, match="LORA"):
        make("oft").load(tiny("llama"), tmp_path)


def test_another_size_is_refused(tmp_path):
    run = trained("lora", "llama")
    run.method.save(run.model, tmp_path)
    (tmp_path / "backbone.json").write_text(json.dumps({}))
    with pytest.raises(ConfigError, match="shapes"):
        make("lora").load(tiny("llama", intermediate_size=96), tmp_path)
    with pytest.raises(ConfigError, match="lacks"):
        make("lora").load(tiny("llama", num_hidden_layers=3), tmp_path)


def test_an_unknown_field_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"method\.rank"):
        LoRA("lora", rank=3)


def test_pefts_other_releases_read_what_is_saved(tmp_path):
    run = trained("lora", "llama")
    run.method.save(run.model, tmp_path)
    model = peft.PeftModel.from_pretrained(tiny("llama"), str(tmp_path)).eval()
    assert torch.equal(logits_of(model, tokens(2, 12)), logits_of(run.model, tokens(2, 12)))
