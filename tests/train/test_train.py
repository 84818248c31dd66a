"""Whole small runs in this process."""

import json
import math
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from dypam import distributed, precision
from dypam.backbone import load_backbone
from dypam.checkpoint import Checkpoints
from dypam.files import FileError
from dypam.lease import Lease
from dypam.record import Preempted, Record
from dypam.train import Diverged, Trainer
from dypam.tuner.digest import base_parameters
from dypam.validate import check_targets
from tests.train import cases, runs

METHODS = {"lora": cases.LORA, "dypam": cases.DYPAM}


@pytest.fixture
def make(tiny_backbone_dir, tmp_path: Path):
    """Return `make(name, method, family=…, …)`: the configuration of a run in its own directory."""

    def config(name: str = "run", method: dict[str, Any] = cases.LORA, family: str = "llama", **train: Any):
        return cases.config(tmp_path / name, tiny_backbone_dir(family), method, family=family, **train)

    return config


def live(config) -> Trainer:
    """Train and return the trainer, whose model is the one that was trained."""
    distributed.start("cpu")
    with Lease.acquire(config.run_dir) as lease:
        opened = Record.open(config.run_dir, config, lease)
        with opened.stage("train"):
            trainer = Trainer(config, check_targets(config), lease, opened, "cpu")
            trainer.run()
    return trainer


def reloaded(config, mode: str) -> torch.nn.Module:
    """Load the saved adapter onto a bare backbone, as generation does."""
    dtype = precision.backbone_dtype(mode)
    bare, _ = load_backbone(config.backbone, dtype=dtype, device="cpu", runtime=config.runtime)
    return check_targets(config).load(bare, Path(config.run_dir) / "adapter")


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", ["fp32", "bf16", "bf16_autocast"])
def test_live_logits_are_those_of_the_saved_and_reloaded_model(
    make, family: str, method: str, mode: str
) -> None:
    config = make(method=METHODS[method], family=family, precision=mode, eval_every=100, max_steps=4)
    trainer = live(config)
    before = trainer.session.corpus.batch(trainer.session.corpus.train, [0, 1], "cpu")["input_ids"]
    with precision.forward_context(mode, "cpu"):
        trained, again = (runs.logits(m, before) for m in (trainer.session.model, reloaded(config, mode)))
        bare, _ = load_backbone(
            config.backbone, dtype=precision.backbone_dtype(mode), device="cpu", runtime=config.runtime
        )
        assert not torch.equal(trained, runs.logits(bare, before))
    assert torch.equal(trained, again)


def test_backbone_is_untouched_and_everything_trained_moves(make) -> None:
    config = make(method=cases.DYPAM, precision="bf16")
    model = live(config).session.model
    fresh, _ = load_backbone(config.backbone, dtype=torch.bfloat16, device="cpu", runtime=config.runtime)
    own = dict(base_parameters(model))
    assert own.keys() == {name for name, _ in base_parameters(fresh)}
    assert all(torch.equal(own[name], parameter) for name, parameter in base_parameters(fresh))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert trained
    assert all(p.dtype == torch.float32 for p in trained)


def test_same_seed_same_weights_bit_for_bit(make) -> None:
    first, second = (runs.outcome(c) for c in (make("a"), make("b")) if runs.complete(c))
    assert first == second
    other = make("c")
    other.seed = 1
    runs.complete(other)
    assert runs.outcome(other)["final_weights"] != first["final_weights"]


def test_the_record_says_what_happened(make) -> None:
    config = make(method=cases.DYPAM)
    content = runs.complete(config)
    assert "train" in content["stages"]
    assert content["parameters"]["trained"] == content["parameters"]["published_trained"] > 0
    assert content["steps"] == 6
    assert content["batching"] == {"micro_batch": 2, "accumulation": 2, "processes": 1}
    assert content["precision"] == {"mode": "fp32", "rounded": {"weights": 0, "buffers": []}}
    assert [row["step"] for row in content["losses"] if "loss" in row] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in content["losses"] if "val_loss" in row] == [3, 6]
    assert content["tokens"]["read"] > content["tokens"]["supervised"] > 0
    assert content["peak_memory"]["train_bytes"] > 1e8
    assert set(content["seconds"]) >= {"load", "train", "validate", "save"}
    assert len(content["backbone"]["weights_digest"]) == len(content["final_weights"]) == 64
    assert not list((Path(config.run_dir) / "checkpoints").iterdir())


def test_the_best_checkpoint_by_validation_loss_is_kept(make) -> None:
    ruined = {**cases.LORA, "_target_": "tests.train.cases.RuinedAtTheEnd"}
    config = make(method=ruined, eval_every=1)
    content = runs.complete(config)
    losses = {row["step"]: row["val_loss"] for row in content["losses"] if "val_loss" in row}
    assert content["best"]["val_loss"] == losses[5] == min(losses.values()) < losses[6]
    about = json.loads((Path(config.run_dir) / "adapter" / "backbone.json").read_text())
    assert (about["step"], about["val_loss"]) == (5, losses[5])
    assert all(p.abs().max() < 50 for p in reloaded(config, "fp32").parameters())


def test_a_finished_run_is_not_run_again(make, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make()
    before = runs.complete(config)
    monkeypatch.setattr("dypam.train.Trainer", None)
    assert runs.complete(config) == before


def test_a_method_without_parameters_is_only_recorded(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dypam.train.Trainer", None)
    config = make(method=cases.BASE)
    content = runs.complete(config)
    assert "train" in content["stages"]
    assert content["parameters"]["trained"] == 0
    assert not (Path(config.run_dir) / "adapter").exists()


def test_gradient_checkpointing_changes_nothing(make) -> None:
    plain, checkpointed = (
        make("plain", family="qwen3"),
        make("gc", family="qwen3", gradient_checkpointing=True),
    )
    runs.complete(plain)
    model = live(checkpointed).session.model
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    assert runs.outcome(plain) == runs.outcome(checkpointed)


def test_chunked_logits_train_the_same(make) -> None:
    losses = [runs.complete(make(f"{rows}", logit_rows=rows))["losses"] for rows in (None, 3)]
    for one, other in zip(*losses, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_a_loss_that_is_not_finite_ends_the_run_at_once(make) -> None:
    config = make(lr=1e30, clip_grad=None, checkpoint_every=1, warmup_ratio=0.0)
    with pytest.raises(Diverged, match=r"the loss is not finite at step 2 of 6 \(learning rate 1e\+30"):
        runs.complete(config)
    content = runs.record(config)
    assert content["status"] == "failed"
    assert "not finite at step 2" in content["error"]
    assert [row["step"] for row in content["losses"]] == [1]
    with Lease.acquire(config.run_dir) as lease:
        assert Checkpoints(config.run_dir, lease).newest_whole().step == 1


def test_a_gradient_that_is_not_finite_ends_the_run_at_once(make) -> None:
    poisoned = {**cases.LORA, "_target_": "tests.train.cases.Poisoned"}
    with pytest.raises(Diverged, match="a gradient is not finite at step 3"):
        runs.complete(make(method=poisoned))


def test_sigterm_leaves_a_run_that_goes_on_exactly(make, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import signal

    whole, broken = make("whole"), make("broken")
    runs.complete(whole)

    def strike(name: str, seen: list[str] = []) -> None:  # noqa: B006
        seen.append(name)
        if seen.count("train.micro_step") == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("dypam.events.reach", strike)
        with pytest.raises(Preempted):
            runs.complete(broken)
    assert runs.record(broken)["status"] == "preempted"
    assert [row["step"] for row in runs.record(broken)["losses"]] == [1, 2, 3, 3, 4, 5]
    with Lease.acquire(broken.run_dir) as lease:
        assert Checkpoints(broken.run_dir, lease).newest_whole().step == 5
    runs.complete(broken)
    assert runs.outcome(broken) == runs.outcome(whole)


def test_sigterm_in_the_last_step_ends_the_process_with_training_done(make, monkeypatch) -> None:
    import os
    import signal

    config, seen = make(), []

    def strike(name: str) -> None:
        seen.append(name)
        if seen.count("train.micro_step") == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("dypam.events.reach", strike)
    with pytest.raises(Preempted):
        runs.complete(config)
    content = runs.record(config)
    assert content["losses"][-1]["step"] == content["steps"] == 6
    assert "train" in content["stages"]
    assert content["status"] == "running"


def test_a_full_disk_is_told_and_the_run_goes_on_exactly(make) -> None:
    whole, broken = make("whole", eval_every=1), make("broken", eval_every=1)
    runs.complete(whole)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(FileError, match=r"adapter cannot be written \(.*File too large.*\): free disk"):
            runs.complete(broken)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    content = runs.record(broken)
    assert content["status"] == "preempted"
    assert content["error"].startswith("FileError: ")
    runs.complete(broken)
    assert runs.outcome(broken) == runs.outcome(whole)


def test_epochs_go_over_the_training_set(make) -> None:
    content = runs.complete(make(max_steps=None, epochs=1.5, size=12, validation_size=4))
    assert content["steps"] == 3
    assert math.isfinite(content["losses"][-1]["val_loss"])


def test_loss_on_all_supervises_the_prompt_too(make) -> None:
    supervised = [runs.complete(make(on, loss_on=on))["tokens"] for on in ("response", "all")]
    assert supervised[0]["read"] == supervised[1]["read"]
    assert supervised[0]["supervised"] < supervised[1]["supervised"] == supervised[1]["read"] - 6 * 4
