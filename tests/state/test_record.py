"""The record: what it holds, what it refuses, and how it follows a run through its stages."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dypam import files
from dypam.config import ConfigError
from dypam.lease import Lease, LeaseLost
from dypam.provenance import git_state, hardware, versions
from dypam.record import Preempted, Record, read_record, read_status
from tests.state.example import config
from tests.state.support import ROOT


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    with Lease.acquire(tmp_path / "run", 60, on_lost=pytest.fail) as lease:
        yield lease


def open_record(lease: Lease, **changes: object) -> Record:
    return Record.open(lease.run_dir, config(**changes), lease)


def test_new_run(lease: Lease) -> None:
    record = open_record(lease)
    assert record.status is None
    assert read_record(lease.run_dir) is None
    assert read_status(lease.run_dir) is None
    with record.stage("train"):
        found = read_record(lease.run_dir)
        assert found is not None
        assert found["status"] == "running"
        assert found["identity"] == files.as_json(config().identity())
        assert found["config"]["runtime"]["device"] == "cpu"
        assert found["versions"].keys() >= {"python", "torch", "transformers", "peft", "deepspeed", "numpy"}
        assert found["hardware"]["cores"] >= 1
        assert found["attempts"][0]["status"] == "running"


def test_stages_make_a_finished_run(lease: Lease) -> None:
    record = open_record(lease)
    with record.stage("train"):
        assert not record.finished("train")
    assert record.finished("train")
    assert not record.finished()
    assert read_status(lease.run_dir) == "running"
    record = open_record(lease)
    assert record.finished("train")
    with record.stage("generate"):
        pass
    assert record.finished()
    assert read_status(lease.run_dir) == "finished"


def test_stage_done_again_is_not_finished_in_between(lease: Lease) -> None:
    record = open_record(lease)
    for stage in ("train", "generate"):
        with record.stage(stage):
            pass
    with record.stage("generate"):
        assert not open_record(lease).finished("generate")
        assert read_status(lease.run_dir) == "running"
    assert read_status(lease.run_dir) == "finished"


def test_a_refused_start_leaves_the_place_to_the_corrected_run(lease: Lease) -> None:
    with pytest.raises(ConfigError), open_record(lease).stage("train"):
        raise ConfigError("planted")
    assert read_record(lease.run_dir) is None
    record = open_record(lease, seed=8)
    record.log("losses", {"step": 1})
    with pytest.raises(ConfigError), record.stage("train"):
        raise ConfigError("refused later on")
    found = read_record(lease.run_dir)
    assert found is not None
    assert (found["status"], found["error"]) == ("failed", "ConfigError: refused later on")


def test_failure_is_kept_with_its_message_and_cleared_by_the_next_attempt(lease: Lease) -> None:
    with pytest.raises(ValueError, match="loss is NaN"), open_record(lease).stage("train"):
        raise ValueError("loss is NaN at step 3")
    found = read_record(lease.run_dir)
    assert found is not None
    assert (found["status"], found["error"]) == ("failed", "ValueError: loss is NaN at step 3")
    record = open_record(lease)
    assert record.status == "failed"
    with record.stage("train"):
        pass
    found = read_record(lease.run_dir)
    assert found is not None
    assert "error" not in found
    assert [attempt["status"] for attempt in found["attempts"]] == ["failed", "finished"]


@pytest.mark.parametrize("error", [Preempted, KeyboardInterrupt])
def test_preempted(lease: Lease, error: type[BaseException]) -> None:
    with pytest.raises(error), open_record(lease).stage("train"):
        raise error
    assert read_status(lease.run_dir) == "preempted"


def test_lost_lease_leaves_the_record_alone(tmp_path: Path) -> None:
    lease = Lease.acquire(tmp_path, 60, on_lost=pytest.fail)
    record = open_record(lease)
    record.update()
    before = (tmp_path / "record.json").read_bytes()

    def lose() -> None:
        with record.stage("train"):
            pytest.fail("entered")

    files.write_json(tmp_path / "lease.json", {})
    with pytest.raises(LeaseLost):
        lose()
    with pytest.raises(LeaseLost):
        record.fail("anything")
    assert (tmp_path / "record.json").read_bytes() == before
    lease.release()


def test_other_configuration_is_refused_by_its_keys(lease: Lease) -> None:
    with open_record(lease).stage("train"):
        pass
    before = (lease.run_dir / "record.json").read_bytes()
    with pytest.raises(ConfigError) as refusal:
        open_record(lease, train__lr=2e-3, train__betas=[0.9, 0.95], method__rank=8, seed=5)
    message = str(refusal.value)
    assert "\n" not in message
    assert f"{lease.run_dir} holds a run with another configuration" in message
    for phrase in (
        "train.lr is 0.001 there, 0.002 here",
        "train.betas is [0.9, 0.999] there, [0.9, 0.95] here",
        "method.rank is absent there, 8 here",
        "seed is 2333 there, 5 here",
    ):
        assert phrase in message
    assert "another seed, name or run_dir, or remove that directory." in message
    assert (lease.run_dir / "record.json").read_bytes() == before


def test_how_it_runs_is_no_part_of_what_it_is(lease: Lease) -> None:
    with open_record(lease).stage("train"):
        pass
    record = open_record(lease, runtime__device="auto", runtime__threads=3, results="elsewhere")
    assert record.finished("train")


ALL_BUT = '{"status": "finished", "stages": {}, "seconds": {}, "attempts": [], "identity": '


@pytest.mark.parametrize(
    "content",
    ['{"status": "runn', "[]", "{}", '{"status": "finished"}', "", ALL_BUT + "null}", ALL_BUT + "[]}"],
)
def test_damaged_record_is_named(lease: Lease, content: str) -> None:
    (lease.run_dir / "record.json").write_text(content)
    with pytest.raises(files.FileError, match=r"record\.json is (damaged|no run's record)") as error:
        open_record(lease)
    assert "\n" not in str(error.value)


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(
        files.FileError, match=r"record\.json cannot be read \(Not a directory\): give `results`"
    ):
        read_record(tmp_path / "results" / "runs")


def test_update_merges_and_logs_are_rewound(lease: Lease) -> None:
    record = open_record(lease)
    with record.stage("train"):
        record.update(counts={"trained": 5}, tokens=1)
        record.update(counts={"published": 6}, tokens=2)
        for step in (1, 2, 3):
            record.log("losses", {"step": step, "loss": 1.0 / step})
        record.log("validation", {"step": 2, "val_loss": float("nan")})
        record.rewind(2)
        record.update()
    found = read_record(lease.run_dir)
    assert found is not None
    assert found["counts"] == {"trained": 5, "published": 6}
    assert found["tokens"] == 2
    assert [row["step"] for row in found["losses"]] == [1, 2]
    assert found["validation"] == [{"step": 2, "val_loss": None}]
    assert len(found["attempts"]) == 1


def test_time_of_phases_sums_over_attempts_and_outlives_a_kill(lease: Lease) -> None:
    for _ in range(2):
        record = open_record(lease)
        with record.stage("train"), record.phase("load"):
            time.sleep(0.05)
            record.update()
            seen = read_record(lease.run_dir)
            assert seen is not None
            assert seen["seconds"]["load"] >= 0.05
            time.sleep(0.05)
    found = read_record(lease.run_dir)
    assert found is not None
    assert 0.2 <= found["seconds"]["load"] <= found["seconds"]["train_total"] < 10


def test_full_disk_does_not_hide_the_reason(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise files.FileError("record.json cannot be written (No space left on device): free disk space.")

    def fail() -> None:
        with open_record(lease).stage("train"):
            monkeypatch.setattr(files, "write_json", full)
            raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason"):
        fail()


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    record = Record.open(tmp_path, config(), None)
    with record.stage("train"):
        record.update(tokens=1)
    assert list(tmp_path.iterdir()) == []


def test_provenance() -> None:
    assert versions()["python"] == sys.version.split()[0]
    assert hardware()["memory_gib"] > 0
    state = git_state()
    assert state is None or (len(state["commit"]) == 40 and isinstance(state["dirty"], bool))


def test_nothing_here_loads_torch() -> None:
    code = (
        "import sys, tests.state.example as example\n"
        "import dypam.checkpoint, dypam.record, dypam.provenance\n"
        "example.config(); dypam.provenance.versions(); dypam.provenance.hardware()\n"
        "assert not {'torch', 'transformers', 'numpy', 'hydra'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
