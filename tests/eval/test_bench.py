"""Inference measured in turns on a tiny model, and Table 7 from measurements whose medians are known."""

import json

import pytest
import torch
from torch import nn

from dypam.backbone import load_backbone
from dypam.config import Backbone, ConfigError
from dypam.method import Method
from eval import bench, bench_table, render, stats
from eval.layout import Layout
from scripts import compose
from tests.eval.test_generate import BASE, DYPAM, LORA, run_config

ROSA = {"_target_": "baselines.rosa.RoSA", "name": "rosa", "rank": 4}
SMALL = bench.Options(batches=(1, 2), prompt_tokens=5, new_tokens=6, rounds=2)


def configs(tmp_path, backbone, *methods):
    return [run_config(tmp_path, backbone, method) for method in methods]


def test_all_methods_are_measured_in_turns(tmp_path, tiny_backbone_dir):
    found, how = bench.measure(configs(tmp_path, tiny_backbone_dir(), BASE, LORA, ROSA, DYPAM), SMALL)
    assert list(found) == ["base", "lora", "rosa", "dypam"]
    for one in found.values():
        assert {batch: len(values) for batch, values in one.ms.items()} == {1: 2, 2: 2}
        assert all(value > 0 for values in one.ms.values() for value in values)
        assert one.memory == []
    assert (how.device, how.precision) == ("cpu", "fp32")
    added = {name: one.flops - found["base"].flops for name, one in found.items()}
    d, layers, q, kv, half, f = 32, 2, 4 * 16, 2 * 16, 8, 64
    shapes = [(d, q), (d, kv), (d, kv), (q, d), (d, f), (d, f), (f, d)]
    assert added["lora"] == 2 * layers * sum(4 * (i + o) for i, o in shapes)
    assert added["dypam"] == 2 * layers * sum(4 * d + 4 * h * 8 + h * 8 * half for h in (4, 2))
    assert added["rosa"] == 2 * layers * 4 * (d + 4 * 4 + 4 * 4 + 2 * 4)


@pytest.mark.parametrize("method", [LORA, ROSA, DYPAM])
def test_a_turn_leaves_the_bare_backbone(tmp_path, tiny_backbone_dir, method):
    from hydra.utils import instantiate

    (config,) = configs(tmp_path, tiny_backbone_dir(), method)
    one = bench.Bench(config, SMALL)
    ids = torch.arange(12)[None]
    before = one.model(input_ids=ids).logits
    one.turn(instantiate(method), bench.Measured("x", True))
    fresh, _ = load_backbone(config.backbone, dtype=torch.float32, device="cpu", runtime=config.runtime)
    assert type(one.model) is type(fresh)
    assert torch.equal(one.model(input_ids=ids).logits, before)
    assert not any(module._forward_hooks for module in one.model.modules())


class Sticky(Method):
    """Leaves something behind."""

    def attach(self, model, run):
        model.extra = nn.Linear(1, 1)
        return model

    def save(self, model, directory):
        raise NotImplementedError

    def load(self, model, directory):
        raise NotImplementedError


def test_a_method_that_stays_is_refused(tmp_path, tiny_backbone_dir):
    sticky = {"_target_": "tests.eval.test_bench.Sticky", "name": "sticky"}
    with pytest.raises(ConfigError, match="method sticky: cannot be taken off the backbone again"):
        bench.measure(configs(tmp_path, tiny_backbone_dir(), BASE, sticky), SMALL)


def test_the_bare_backbone_and_one_backbone_are_asked_for(tmp_path, tiny_backbone_dir):
    with pytest.raises(ConfigError, match="have method=base in the grid, once"):
        bench.measure(configs(tmp_path, tiny_backbone_dir(), LORA), SMALL)
    one, other = configs(tmp_path, tiny_backbone_dir(), BASE, LORA)
    other.backbone = Backbone("other", "Other", other.backbone.path, {})
    with pytest.raises(ConfigError, match="on one backbone, not on other too"):
        bench.measure([one, other], SMALL)


def test_random_weights_need_no_hub(tmp_path):
    (config,) = configs(tmp_path, tmp_path / "none", BASE)
    config.backbone.architecture = {
        "model_type": "llama",
        **dict.fromkeys(("hidden_size", "intermediate_size"), 32),
        **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 2),
        "vocab_size": 50,
    }
    options = bench.Options(batches=(1,), prompt_tokens=3, new_tokens=2, rounds=1, random=True)
    found, _ = bench.measure([config], options)
    assert found["base"].flops > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "bench.rounds is 0; give a whole number above 0"),
        ({"batches": []}, r"bench.batches is \[\]; give batch sizes"),
        ({"batches": [0]}, r"bench.batches is \[0\]"),
        ({"batches": 5}, "bench.batches is 5; give batch sizes"),
        ({"rounds": True}, "bench.rounds is True; give a whole number"),
        ({"random": "maybe"}, "bench.random is 'maybe'; give true or false"),
        ({"speed": 1}, "bench.speed is unknown"),
    ],
)
def test_wrong_options_are_refused(change, message):
    given = compose.section([], "bench")
    assert bench.Options.from_config(given) == bench.Options()
    with pytest.raises(ConfigError, match=message):
        bench.Options.from_config({**given, **change})


GIB = 2**30
MEASURED = {
    "base": bench.Measured("Base", False, {1: [10.0, 20.0, 11.0], 32: [1.0, 1.0, 1.0]}, [6 * GIB] * 3, 1000),
    "dypam": bench.Measured("DyPAM", True, {1: [12.0, 22.0, 11.0], 32: [3.0, 2.0, 1.0]}, [9 * GIB] * 3, 1010),
}
PUBLISHED = {"published": "table7_inference_overhead.csv", "published_backbone": "llama-3.2-3b"}


def table(backbone="llama-3.2-3b", measured=MEASURED, **layout):
    given = Layout.from_config({"name": "t7", "caption": "Overhead", **PUBLISHED, **layout})
    how = bench.How("cuda", "A GPU", "bf16")
    options = bench.Options(rounds=3)
    return bench_table.table(given, Backbone(backbone, backbone.upper(), "", {}), measured, how, options)


def shown(built):
    return {
        (line.method, line.variant): [render.number(line.cells[c.key], c, line, 2) for c in built.columns]
        for line in built.lines
    }


def test_medians_and_ratios_formed_within_a_round():
    rows = shown(table())
    assert rows["Base", "measured"] == ["11.00", "1.00", "6.00", "", ""]
    assert rows["DyPAM", "measured"] == ["12.00", "2.00", "9.00", "0.00", "1.00"]
    assert rows["DyPAM", "× base"] == ["1.10", "2.00", "1.50", "", ""]  # 1.2, 1.1, 1.0
    assert rows["DyPAM", "interval"] == ["1.00–1.20", "1.00–3.00", "1.50–1.50", "", ""]
    assert rows["Base", "published"] == ["14.49", "0.49", "6.00", "", ""]
    assert rows["DyPAM", "published"] == ["24.98", "1.49", "6.06", "66.10", "1.03"]
    assert rows["DyPAM", "published × base"] == ["1.72", "3.04", "1.01", "", ""]


def test_published_numbers_stand_beside_their_own_backbone_only():
    built = table("qwen3-8b")
    assert {variant for _, variant in shown(built)} == {"measured", "× base", "interval"}
    assert "Published numbers are those of llama-3.2-3b, so they are not shown here." in built.notes
    assert {v for _, v in shown(table(published=None))} == {"measured", "× base", "interval"}
    assert table("nano-llama").layout.rehearsal
    assert not built.layout.rehearsal


def test_memory_of_a_cpu_is_visibly_missing():
    bare = {n: bench.Measured(m.label, m.trainable, m.ms, [], m.flops) for n, m in MEASURED.items()}
    built = table(measured=bare)
    assert shown(built)["DyPAM", "measured"][2] == shown(built)["DyPAM", "× base"][2] == "—"
    assert "measure on a GPU" in built.missing["memory"]


def test_every_format_and_every_measurement(tmp_path):
    paths = {path.suffix: path for path in render.write(table(), tmp_path)}
    whole = json.loads(paths[".json"].read_text())
    assert whole["tests"][0]["ms_per_token"] == [10.0, 20.0, 11.0]
    assert "published × base" in paths[".md"].read_text()


def test_the_interval_of_a_median_is_of_order_statistics():
    values = [5.0, 1.0, 9.0, 3.0, 7.0, 2.0, 8.0, 4.0, 6.0]
    assert stats.median_interval(values) == (2.0, 8.0)
    assert stats.median_coverage(9) == pytest.approx(1 - 2 * 10 / 512)
    assert stats.median_interval([2.0, 1.0, 3.0]) == (1.0, 3.0)
    assert stats.median_coverage(3) == pytest.approx(0.75)
    assert stats.median_coverage(6) == pytest.approx(1 - 2 / 64)
