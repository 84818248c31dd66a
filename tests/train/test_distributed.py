"""Joining a group of processes: what is refused, and what a killed build of DeepSpeed's op may not do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dypam import distributed
from dypam.config import ConfigError

OP = "deepspeed_shm_comm"


def test_half_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in distributed.LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not; start several"):
        distributed.start("cpu")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert distributed.pick_device("auto") == distributed.pick_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match=r"runtime\.device=cuda: PyTorch sees 0 GPUs here"):
        distributed.pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert distributed.pick_device("auto") == "cuda:1"
    assert distributed.pick_device("cuda:0") == "cuda:0"
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"runtime\.device=cuda:0 is one GPU for 2 processes"):
        distributed.pick_device("cuda:0")


def test_one_process_is_left_without_a_launchers_environment() -> None:
    distributed.start("cpu")
    assert torch.distributed.is_initialized()
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & os.environ.keys()
    assert distributed.sum_over_processes([1.5, 2.0], "cpu") == [1.5, 2.0]
    assert distributed.gather("mine") == ["mine"]
    assert distributed.broadcast("mine") == "mine"


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A folder with a built op, and the lock of a build that was killed long ago."""
    library = Path(sys.prefix) / "torch_extensions" / OP / f"{OP}.so"
    if not library.exists():
        pytest.skip("DeepSpeed's op is not built here; run make setup")
    folder = tmp_path / OP
    folder.mkdir()
    shutil.copy(library, folder)
    (folder / "lock").touch()
    os.utime(folder / "lock", (0, 0))
    return folder


def test_a_killed_builds_lock_does_not_stop_a_run_whose_op_is_built(built: Path) -> None:
    code = f"""
from pathlib import Path
from dypam.distributed import _load_communication_op
_load_communication_op(Path({str(built.parent)!r}))
from deepspeed.ops.op_builder.builder import OpBuilder
print(OpBuilder._loaded_ops[{OP!r}].__file__)
"""
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )
    assert str(built / f"{OP}.so") in done.stdout, done.stderr


def test_a_library_that_cannot_be_loaded_or_is_older_than_pytorch_is_built_again(built: Path) -> None:
    library = built / f"{OP}.so"
    os.utime(library, (0, 0))
    assert distributed._built_op(library) is None
    library.write_bytes(b"torn")
    assert distributed._built_op(library) is None
    assert distributed._built_op(built / "none.so") is None


def test_a_build_under_way_is_seen(tmp_path: Path) -> None:
    assert not distributed._is_built_in(tmp_path)
    builder = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    try:
        assert distributed._is_built_in(tmp_path)
    finally:
        builder.kill()
        builder.wait()
    assert not distributed._is_built_in(tmp_path)
