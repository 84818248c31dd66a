"""A worker killed at each named event, started again with the same command, ends as if nothing had been."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from dypam import files
from tests.state import support

EVENTS = [
    "train.micro_step:1",
    "train.micro_step:10",
    "checkpoint.before_rename:1",
    "checkpoint.before_rename:3",
    "manifest.write:2",
    "state.write:3",
    "record.write:1",
    "record.write:4",
    "lease.write:1",
    "adapter.aside:2",
    "adapter.between_renames:1",
    "predictions.mid_line:1",
    "predictions.mid_line:3",
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    assert support.run(run_dir) == (0, "")
    return support.results(run_dir)


def kill_at(event: str, run_dir: Path, *options: str) -> None:
    """Run a worker that must die at `event`, and must say so."""
    proof = run_dir.with_suffix(".proof")
    proof.unlink(missing_ok=True)
    worker = support.start(run_dir, *options, DYPAM_KILL_AT=event, DYPAM_KILL_PROOF=str(proof))
    worker.communicate(timeout=60)
    assert worker.returncode == -signal.SIGKILL
    assert proof.read_text() == f"{event.partition(':')[0]} {worker.pid}\n"


@pytest.mark.parametrize("event", EVENTS)
def test_killed_and_started_again(event: str, tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    run_dir = tmp_path / "run"
    kill_at(event, run_dir)
    assert support.run(run_dir) == (0, "")
    assert support.results(run_dir) == undisturbed
    assert support.leftovers(run_dir) == []
    record = files.read_json(run_dir / "record.json")
    assert record["status"] == "finished"
    assert record["attempts"][-1]["status"] == "finished"
    assert [row["step"] for row in record["losses"]] == list(range(1, 9))


def test_killed_again_and_again(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    run_dir = tmp_path / "run"
    for event in (
        "train.micro_step:7",
        "checkpoint.before_rename:2",
        "record.write:3",
        "predictions.mid_line:2",
    ):
        kill_at(event, run_dir)
    assert support.run(run_dir) == (0, "")
    assert support.results(run_dir) == undisturbed


def test_between_two_renames(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    """Where the file system cannot swap two directories, the one moved aside comes back."""
    run_dir = tmp_path / "run"
    kill_at("adapter.between_renames:1", run_dir, "--no-exchange")
    assert not (run_dir / "adapter").exists()
    assert (run_dir / ".old-adapter" / "config").read_text() == "2"
    files.tidy(run_dir)
    assert (run_dir / "adapter" / "config").read_text() == "2"
    assert support.run(run_dir, "--no-exchange") == (0, "")
    assert support.results(run_dir) == undisturbed
    assert support.leftovers(run_dir) == []


def test_checkpoint_is_absent_before_its_rename(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    kill_at("checkpoint.before_rename:2", run_dir)
    assert [path.name for path in sorted((run_dir / "checkpoints").glob("step-*"))] == ["step-000002"]
    assert len(support.leftovers(run_dir)) == 1


def test_prediction_line_is_torn_by_its_event(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    kill_at("predictions.mid_line:2", run_dir)
    content = (run_dir / "predictions" / "digits.partial.jsonl").read_bytes()
    assert not content.endswith(b"\n")
    with pytest.raises(json.JSONDecodeError):
        json.loads(content.splitlines()[-1])


def test_record_is_whole_while_it_is_written(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    kill_at("record.write:3", run_dir)
    assert files.read_json(run_dir / "record.json")["status"] == "running"
    (torn,) = support.leftovers(run_dir)
    with pytest.raises(files.FileError, match="damaged"):
        files.read_json(torn)


def test_finished_run_is_left_alone(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert support.run(run_dir) == (0, "")
    before = support.snapshot(run_dir)
    assert support.run(run_dir) == (0, "")
    after = support.snapshot(run_dir)
    changed = {
        Path(name).name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    }
    assert changed <= {"run", "lease.json"}


def test_damaged_checkpoint_costs_only_its_steps(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    run_dir = tmp_path / "run"
    kill_at("train.micro_step:14", run_dir)
    weights = run_dir / "checkpoints" / "step-000006" / "weights"
    weights.write_bytes(bytes([weights.read_bytes()[0] ^ 1]) + weights.read_bytes()[1:])
    code, errors = support.run(run_dir)
    assert code == 0
    assert errors.count("\n") == 1
    assert "step-000006 is damaged" in errors
    assert support.results(run_dir) == undisturbed


def test_sigterm_preempts_and_the_run_goes_on(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    run_dir = tmp_path / "run"
    with support.started(run_dir, "--pause", "0.05") as worker:
        support.wait_until(lambda: (run_dir / "checkpoints" / "step-000002").exists())
        worker.terminate()
        assert worker.wait(20) == 143
    record = files.read_json(run_dir / "record.json")
    assert record["status"] == record["attempts"][0]["status"] == "preempted"
    assert support.run(run_dir) == (0, "")
    assert support.results(run_dir) == undisturbed
    assert files.read_json(run_dir / "record.json")["attempts"][0]["status"] == "preempted"
