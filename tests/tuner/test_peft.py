"""DyPAM under PEFT's own interface."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftConfig, PeftModel, PeftType, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dypam import DyPAMConfig
from dypam.config import ConfigError
from dypam.tuner.layers import CannotMergeError
from tests.tiny import tiny, tokens
from tests.tuner.support import CASES, SMALL, VARIANTS, adapted, logits, move, moved, trainable

IDS = tokens(2, 12)
WEIGHTS = "adapter_model.safetensors"


@pytest.mark.parametrize(("variant", "family"), CASES)
def test_saved_and_loaded_is_the_same_model(variant: str, family: str, tmp_path: Path) -> None:
    model = moved(family, **VARIANTS[variant])
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(tiny(family), tmp_path)
    assert torch.equal(logits(loaded, IDS), logits(model, IDS))
    assert trainable(loaded) == {}


def test_loaded_to_be_trained_on(tmp_path: Path) -> None:
    model = moved()
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(tiny(), tmp_path, is_trainable=True)
    assert list(trainable(loaded)) == list(trainable(model))


def test_loads_in_low_memory_and_onto_bf16(tmp_path: Path) -> None:
    model = moved(dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(tiny(dtype=torch.bfloat16), tmp_path, low_cpu_mem_usage=True)
    assert torch.equal(logits(loaded, IDS), logits(model, IDS))
    assert {p.dtype for n, p in loaded.named_parameters() if "dypam_" in n} == {torch.float32}


def test_auto_class_finds_backbone_and_adapter(tiny_backbone_dir, tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(tiny_backbone_dir("qwen3"))
    model = move(get_peft_model(base, DyPAMConfig(task_type="CAUSAL_LM", **SMALL)))
    model.save_pretrained(tmp_path)
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(loaded, IDS), logits(model, IDS))
    assert PeftConfig.from_pretrained(tmp_path).peft_type == PeftType.DYPAM


def test_several_adapters(family: str, tmp_path: Path) -> None:
    model = moved(family, train_norms=True)
    backbone, first = logits(tiny(family), IDS), logits(model, IDS)
    model.add_adapter(
        "second", DyPAMConfig(task_type="CAUSAL_LM", **{**SMALL, "rank": 3, "train_norms": "blocks"})
    )
    assert torch.equal(logits(model, IDS), first)
    model.set_adapter("second")
    assert torch.equal(logits(model, IDS), backbone)
    assert all(".second." in name for name in trainable(model))
    second = logits(move(model, seed=7), IDS)
    model.set_adapter("default")
    assert torch.equal(logits(model, IDS), first)
    with model.disable_adapter():
        assert torch.equal(logits(model, IDS), backbone)
    assert torch.equal(logits(model, IDS), first)

    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(tiny(family), tmp_path)
    loaded.load_adapter(tmp_path / "second", "other")
    assert torch.equal(logits(loaded, IDS), first)
    loaded.set_adapter("other")
    assert torch.equal(logits(loaded, IDS), second)

    model.set_adapter("second")
    model.delete_adapter("default")
    assert torch.equal(logits(model, IDS), second)
    assert not any(".default." in name for name, _ in model.named_parameters())


def test_unloading_leaves_the_backbone_as_it_was(family: str) -> None:
    names = list(tiny(family).state_dict())
    for variant in ("train_norms", "before_norm"):
        backbone = moved(family, **VARIANTS[variant]).unload()
        assert list(backbone.state_dict()) == names
        assert torch.equal(logits(backbone, IDS), logits(tiny(family), IDS))
        assert not any(module._forward_hooks for module in backbone.modules())


def test_modules_to_save(family: str, tmp_path: Path) -> None:
    model = moved(family, modules_to_save=["mlp"])
    model.save_pretrained(tmp_path)
    assert any(".mlp." in key for key in load_file(tmp_path / WEIGHTS))
    loaded = PeftModel.from_pretrained(tiny(family), tmp_path)
    assert torch.equal(logits(loaded, IDS), logits(model, IDS))


def test_a_deep_copy_is_independent(family: str) -> None:
    model = moved(family, modulate="before_norm")
    other = copy.deepcopy(model)
    before = logits(model, IDS)
    assert torch.equal(logits(other, IDS), before)
    move(other)
    assert not torch.equal(logits(other, IDS), before)
    assert torch.equal(logits(model, IDS), before)


def test_prints_what_is_trainable(capsys: pytest.CaptureFixture) -> None:
    model = adapted()
    model.print_trainable_parameters()
    count = sum(p.numel() for p in trainable(model).values())
    assert f"trainable params: {count:,}" in capsys.readouterr().out


def test_the_same_seed_draws_the_same_start() -> None:
    first, same, other = (trainable(adapted(init_seed=seed)) for seed in (3, 3, 4))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    drawn = [p for name, p in first.items() if name.endswith("A_Q")]
    assert not torch.equal(drawn[0], drawn[1])
    state = torch.get_rng_state()
    adapted(init_seed=3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("call", ["merge_and_unload", "merge_adapter"])
def test_merging_is_refused_with_the_reason(call: str) -> None:
    with pytest.raises(CannotMergeError, match="depends on the input"):
        getattr(moved(), call)()


class TestStrictLoading:
    """Keys or shapes that do not fit are an error."""

    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        moved().save_pretrained(tmp_path)
        return tmp_path

    @staticmethod
    def edit(directory: Path, change) -> None:
        weights = load_file(directory / WEIGHTS)
        save_file(change(weights), directory / WEIGHTS)

    def test_a_missing_key(self, saved: Path) -> None:
        self.edit(saved, lambda w: dict(list(w.items())[1:]))
        with pytest.raises(ConfigError, match="lacks 1 weights"):
            PeftModel.from_pretrained(tiny(), saved)

    def test_an_unknown_key(self, saved: Path) -> None:
        self.edit(saved, lambda w: {**w, f"{min(w)}X": torch.zeros(1)})
        with pytest.raises(ConfigError, match="unknown 1 weights"):
            PeftModel.from_pretrained(tiny(), saved)

    @pytest.mark.parametrize(
        "change", [lambda w: {}, lambda w: {re.sub("dypam_", "lora_", k): v for k, v in w.items()}]
    )
    def test_no_key_that_fits(self, saved: Path, change) -> None:
        self.edit(saved, change)
        with pytest.raises(ConfigError, match=r"no weights|unknown"):
            PeftModel.from_pretrained(tiny(), saved)

    def test_another_shape(self, saved: Path) -> None:
        self.edit(saved, lambda w: {k: v[1:].clone() if k.endswith("A_K") else v for k, v in w.items()})
        with pytest.raises(RuntimeError, match="size mismatch"):
            PeftModel.from_pretrained(tiny(), saved)
        with pytest.raises(ConfigError, match="lacks"):
            PeftModel.from_pretrained(tiny(), saved, ignore_mismatched_sizes=True)

    def test_a_backbone_of_other_depth(self, saved: Path) -> None:
        config = json.loads((saved / "adapter_config.json").read_text())
        config["backbone_digest"] = None
        (saved / "adapter_config.json").write_text(json.dumps(config))
        for layers, problem in ((1, "unknown"), (3, "lacks")):
            with pytest.raises(ConfigError, match=problem):
                PeftModel.from_pretrained(tiny(num_hidden_layers=layers), saved)

    def test_a_second_adapter(self, saved: Path) -> None:
        model = moved()
        self.edit(saved, lambda w: dict(list(w.items())[1:]))
        with pytest.raises(ConfigError, match="lacks 1 weights"):
            model.load_adapter(saved, "second")

    def test_other_weights_of_the_same_shape(self, saved: Path) -> None:
        with pytest.raises(ConfigError, match="other weights of LlamaForCausalLM"):
            PeftModel.from_pretrained(tiny(seed=1), saved)

    def test_the_bf16_copy_of_the_weights_is_accepted(self, saved: Path) -> None:
        PeftModel.from_pretrained(tiny(dtype=torch.bfloat16), saved)

    def test_a_config_serves_several_backbones(self) -> None:
        config = DyPAMConfig(task_type="CAUSAL_LM", **SMALL)
        digests = {
            get_peft_model(tiny(seed=s), config).peft_config["default"].backbone_digest for s in (0, 1)
        }
        assert len(digests) == 2
        assert config.backbone_digest is None
