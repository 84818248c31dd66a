"""The progress bar, and Weights & Biases only where it is wanted."""

import importlib.util
import sys
from pathlib import Path

import pytest

from dypam import tracking
from dypam.config import ConfigError
from tests.train import cases, processes, runs


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.mark.usefixtures("no_key", "installed")
def test_auto_is_offline_unless_a_key_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tracking.wandb_mode("auto") == "offline"
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert tracking.wandb_mode("auto") == "online"
    (tmp_path / ".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert tracking.wandb_mode("auto") == "online"
    assert tracking.wandb_mode("offline") == "offline"
    assert tracking.wandb_mode("off") is None


def test_auto_is_off_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert tracking.wandb_mode("auto") is None


def test_off_never_imports_it_and_asked_for_but_missing_is_refused(
    monkeypatch: pytest.MonkeyPatch, tiny_backbone_dir, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = cases.config(tmp_path, tiny_backbone_dir("llama"), cases.LORA)
    assert tracking.start_wandb(config, "name", "id") is None
    config.runtime.wandb = "offline"
    with pytest.raises(ConfigError, match=r"runtime\.wandb=offline: wandb is not installed"):
        tracking.start_wandb(config, "name", "id")


def test_progress_shows_loss_speed_and_time_left(tiny_backbone_dir, tmp_path: Path, capfd) -> None:
    config = cases.config(tmp_path, tiny_backbone_dir("llama"), cases.LORA)
    config.runtime.progress = True
    content = runs.complete(config)
    lines, shown = capfd.readouterr()
    assert "lora on tiny-llama, sums, seed 2333: 100%" in shown
    assert f"loss={content['losses'][-2]['loss']:.3f}" in shown
    assert "tokens_per_s=" in shown
    assert "<00:00" in shown
    assert "step 3: validation loss" in lines


@pytest.mark.slow
def test_offline_run_is_written_into_the_runs_directory(tiny_backbone_dir, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_dir = tmp_path / "suite" / "tiny" / "lora" / "seed1"
    config = cases.config(run_dir, tiny_backbone_dir("llama"), cases.LORA)
    config.runtime.wandb, config.runtime.experiment = "offline", "table9"
    processes.run(runs.complete, config, log=tmp_path / "log")
    (written,) = (run_dir / "wandb").glob("offline-run-*/*.wandb")
    assert runs.record(config)["wandb_id"] in written.name
    assert b"table9" in written.read_bytes()


@pytest.mark.slow
def test_drawings_are_an_artifact_in_the_group_of_their_experiment(tiny_backbone_dir, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    config = cases.config(tmp_path / "runs", tiny_backbone_dir("llama"), cases.LORA)
    config.runtime.wandb, config.runtime.experiment = "offline", "table9"
    (tmp_path / "table9.tex").write_text("rows")
    processes.run(tracking.log_drawings, config, [tmp_path / "table9.tex"], log=tmp_path / "log")
    (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    content = written.read_bytes()
    assert all(word in content for word in (b"table9.tex", b"table9", b"tables"))
