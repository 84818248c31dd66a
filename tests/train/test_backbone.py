"""Backbones load frozen, in the right dtypes, or say in one sentence why not."""

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from dypam.backbone import check_architecture, load_backbone, meta_model
from dypam.config import Backbone, ConfigError, Runtime
from dypam.tuner.digest import weights_digest
from tests.tiny import FAMILIES, tiny, tiny_config, tokens

OFFLINE = Runtime(offline=True)


def backbone(path: Path | str, **fields) -> Backbone:
    return Backbone(name="tiny", label="Tiny", path=str(path), architecture={"model_type": "llama"}, **fields)


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3", "bloom", "opt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loads_frozen_with_fp32_rotary_buffers(tiny_backbone_dir, family: str, dtype: torch.dtype) -> None:
    model, tokenizer = load_backbone(
        backbone(tiny_backbone_dir(family)), dtype=dtype, device="cpu", runtime=OFFLINE
    )
    expected = tiny(family, dtype=dtype)
    with torch.no_grad():
        logits = [m(input_ids=tokens(), use_cache=False).logits for m in (model, expected)]
    assert torch.equal(*logits)
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert {b.dtype for name, b in model.named_buffers() if "inv_freq" in name} <= {torch.float32}
    assert tokenizer.pad_token_id is not None


def test_the_vocabularys_matrix_is_not_copied_for_every_prompt(tiny_backbone_dir) -> None:
    model, _ = load_backbone(
        backbone(tiny_backbone_dir("llama")), dtype=torch.bfloat16, device="cpu", runtime=OFFLINE
    )
    weight = model.get_output_embeddings().weight

    class Operators(TorchDispatchMode):
        seen: ClassVar[list[str]] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    hidden = torch.randn(5, 7, weight.shape[1], dtype=torch.bfloat16)
    with torch.no_grad(), Operators() as operators:
        logits = model.get_output_embeddings()(hidden[:, -1:])
    assert logits.shape == (5, 1, len(weight))
    assert "mm" in operators.seen
    assert not {"bmm", "expand"} & set(operators.seen)


def test_a_vision_language_checkpoint_gives_its_text_model(tiny_backbone_dir) -> None:
    model, _ = load_backbone(
        backbone(tiny_backbone_dir("gemma3")), dtype=torch.float32, device="cpu", runtime=OFFLINE
    )
    assert type(model).__name__ == "Gemma3ForCausalLM"
    assert not any("vision" in name for name, _ in model.named_modules())
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_digest_is_the_same_in_both_dtypes(tiny_backbone_dir) -> None:
    digests = {
        weights_digest(
            load_backbone(backbone(tiny_backbone_dir("qwen3")), dtype=dtype, device="cpu", runtime=OFFLINE)[0]
        )
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert len(digests) == 1


def refusal(given: Backbone, runtime: Runtime = OFFLINE, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        load_backbone(given, dtype=torch.float32, device="cpu", runtime=runtime, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_directory_is_named() -> None:
    assert "/no/where: there is no such directory" in refusal(backbone("/no/where"))


def test_a_backbone_to_convert_names_the_command(tmp_path: Path) -> None:
    given = backbone("tiny-raw", convert={"_target_": "somewhere.convert"})
    message = refusal(given, Runtime(cache_dir=str(tmp_path)))
    assert "python scripts/convert.py backbone=tiny" in message


def test_a_model_that_is_not_in_the_cache_offline() -> None:
    message = refusal(backbone("nobody/has-this-model"))
    assert "nobody/has-this-model is not in the local cache" in message
    assert "set backbone.path" in message


def copy(source: Path, target: Path, leave_out: str = "") -> Path:
    target.mkdir()
    for file in source.iterdir():
        if file.name != leave_out:
            (target / file.name).write_bytes(file.read_bytes())
    return target


def test_only_safetensors_are_read(tiny_backbone_dir, tmp_path: Path) -> None:
    pickled = copy(tiny_backbone_dir("llama"), tmp_path / "pickled", leave_out="model.safetensors")
    torch.save(tiny("llama").state_dict(), pickled / "pytorch_model.bin")
    assert "no safetensors weights" in refusal(backbone(pickled))


def test_missing_weights_are_refused(tiny_backbone_dir, tmp_path: Path) -> None:
    partial = copy(tiny_backbone_dir("llama"), tmp_path / "partial")
    weights = load_file(partial / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    assert "lacks 1 weights (model.layers.1.mlp.up_proj.weight" in refusal(backbone(partial))


def test_a_damaged_configuration_is_refused(tiny_backbone_dir, tmp_path: Path) -> None:
    damaged = copy(tiny_backbone_dir("llama"), tmp_path / "damaged")
    (damaged / "config.json").write_text("{")
    assert "cannot be loaded" in refusal(backbone(damaged))


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        ("403 Client Error. Cannot access gated repo for url", "licence accepted"),
        ("RevisionNotFoundError 404 Client Error", "revision None of org/model does not exist"),
        ("RepositoryNotFoundError 404 Client Error", "the hub has no model org/model"),
        ("We couldn't connect to 'https://huggingface.co' to load the files", "hub cannot be reached"),
    ],
)
def test_what_the_hub_says_becomes_one_sentence_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, raised: str, sentence: str
) -> None:
    import transformers

    def fail(*_: object, **__: object) -> None:
        raise OSError(raised)

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fail)
    assert sentence in refusal(backbone("org/model"), Runtime())


def test_code_of_a_checkpoint_is_never_run(tiny_backbone_dir, tmp_path: Path) -> None:
    import json

    hostile = copy(tiny_backbone_dir("llama"), tmp_path / "hostile")
    config = json.loads((hostile / "config.json").read_text())
    config |= {"model_type": "hostile", "auto_map": {"AutoConfig": "code.Config"}}
    (hostile / "config.json").write_text(json.dumps(config))
    (hostile / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "cannot be loaded" in refusal(backbone(hostile))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_architecture_of_another_size_than_the_checkpoint_is_refused(family: str) -> None:
    fields = {key: value for key, value in tiny_config(family).to_dict().items() if value is not None}
    check_architecture(tiny(family), Backbone("tiny", "Tiny", "", fields))
    deeper = {**fields, "num_hidden_layers": 3, "layer_types": None}
    with pytest.raises(
        ConfigError, match=r"backbone tiny: its checkpoint has [\d,]+ parameters, and [\d,]+ by"
    ):
        check_architecture(tiny(family), Backbone("tiny", "Tiny", "", deeper))


@pytest.mark.parametrize("family", [*FAMILIES, "bloom", "opt"])
def test_meta_model_has_the_shapes_and_no_weights(family: str) -> None:
    fields = {key: value for key, value in tiny_config(family).to_dict().items() if value is not None}
    bare = meta_model(Backbone(name="tiny", label="Tiny", path="", architecture=fields))
    assert {p.device.type for p in bare.parameters()} == {"meta"}
    shapes = [{name: p.shape for name, p in m.named_parameters()} for m in (bare, tiny(family))]
    assert shapes[0] == shapes[1]
