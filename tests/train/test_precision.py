"""What each precision rounds, and what it leaves alone."""

from pathlib import Path

import pytest
import torch

from dypam import precision
from dypam.lease import Lease
from dypam.record import Record
from dypam.train import Trainer
from dypam.validate import check_targets
from tests.tiny import tiny, tokens
from tests.train import cases, runs
from tests.train.test_train import live


@pytest.mark.parametrize(
    ("wanted", "device", "found"),
    [
        ("auto", "cpu", "fp32"),
        ("auto", "cuda:0", "bf16"),
        ("bf16", "cpu", "bf16"),
        ("fp32", "cuda:1", "fp32"),
    ],
)
def test_auto_is_bf16_on_a_gpu_only(wanted: str, device: str, found: str) -> None:
    assert precision.resolve(wanted, device) == found


@pytest.mark.parametrize("mode", ["bf16", "bf16_autocast"])
def test_bf16_rounds_neither_adapters_nor_buffers(tiny_backbone_dir, tmp_path: Path, mode: str) -> None:
    config = cases.config(
        tmp_path, tiny_backbone_dir("gemma3_text"), cases.DYPAM, family="gemma3_text", precision=mode
    )
    model = live(config).session.model
    assert runs.record(config)["precision"] == {"mode": mode, "rounded": {"weights": 0, "buffers": []}}
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16), name
    rotary = [buffer for name, buffer in model.named_buffers() if "inv_freq" in name]
    assert rotary
    assert all(buffer.dtype == torch.float32 for buffer in rotary)


def test_the_plain_engine_says_what_it_rounds(tiny_backbone_dir, tmp_path: Path) -> None:
    config = cases.config(tmp_path, tiny_backbone_dir("llama"), cases.LORA, precision="bf16_engine")
    model = live(config).session.model
    content = runs.record(config)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert content["precision"]["rounded"]["weights"] == trained
    rotary = {buffer.dtype for name, buffer in model.named_buffers() if "inv_freq" in name}
    named = any("inv_freq" in name for name in content["precision"]["rounded"]["buffers"])
    assert named == (rotary == {torch.bfloat16})


def test_every_adapter_weight_moves_at_a_small_learning_rate(tiny_backbone_dir, tmp_path: Path) -> None:
    config = cases.config(
        tmp_path,
        tiny_backbone_dir("llama"),
        cases.LORA,
        precision="bf16",
        lr=1e-4,
        max_steps=20,
        eval_every=100,
        checkpoint_every=100,
    )
    runs.distributed.start("cpu")
    with Lease.acquire(config.run_dir) as lease:
        trainer = Trainer(config, check_targets(config), lease, Record.open(tmp_path, config, lease), "cpu")
        before = {name: p.detach().clone() for name, p in trainer.session.model.named_parameters()}
        trainer.run()
    moved = [p != before[name] for name, p in trainer.session.model.named_parameters() if p.requires_grad]
    assert sum(int(m.sum()) for m in moved) / sum(m.numel() for m in moved) > 0.99


class TestTrainedNorms:
    """A method that unfreezes the backbone's own norms."""

    @pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "opt", "bloom"])
    def test_they_become_fp32_and_the_model_still_runs(self, family: str) -> None:
        model, ids = tiny(family, dtype=torch.bfloat16).requires_grad_(False), tokens()
        before = runs.logits(model, ids)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("norm" in name.lower() or "ln_" in name)
        precision.keep_trained_in_fp32(model)
        precision.keep_trained_in_fp32(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        assert trained
        assert {p.dtype for p in trained} == {torch.float32}
        after = runs.logits(model, ids)
        assert after.dtype == torch.bfloat16
        assert torch.equal(before, after)
        model(input_ids=ids, use_cache=False).logits.float().sum().backward()
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in trained)
