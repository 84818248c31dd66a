"""Checkpoints: whole or absent, on one process and on several; every kind of damage is seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dypam import files
from dypam.checkpoint import Checkpoints, damage
from dypam.lease import Lease, LeaseLost


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    with Lease.acquire(tmp_path, 60, on_lost=pytest.fail) as lease:
        yield lease


def write(path: Path) -> None:
    """Write what DeepSpeed does: a file that names the newest tag, and a folder of that name."""
    (path / "latest").write_text("tag")
    (path / "tag").mkdir()
    (path / "tag" / "states.pt").write_bytes(bytes(range(256)) * 10)


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_round_trip_and_pruning(tmp_path: Path, lease: Lease) -> None:
    checkpoints = Checkpoints(tmp_path, lease, keep=2)
    assert checkpoints.newest_whole() is None
    for step in (200, 400, 600):
        checkpoints.save(step, write, {"step": step, "order": [3, 1, 2]})
    assert names(tmp_path) == ["step-000400", "step-000600"]
    newest = checkpoints.newest_whole()
    assert newest is not None
    assert (newest.step, newest.state) == (600, {"step": 600, "order": [3, 1, 2]})
    assert (newest.path / "tag" / "states.pt").stat().st_size == 2560
    assert files.read_json(newest.path / "manifest.json")["files"].keys() == {
        "latest",
        "state.json",
        "tag/states.pt",
    }


def test_steps_of_any_length_are_in_order(tmp_path: Path, lease: Lease) -> None:
    checkpoints = Checkpoints(tmp_path, lease, keep=3)
    for step in (999_999, 1_000_000):
        checkpoints.save(step, write, {})
    newest = checkpoints.newest_whole()
    assert newest is not None
    assert newest.step == 1_000_000


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def rename_step(path: Path) -> None:
    path.rename(path.with_name("step-000999"))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped bit": (lambda c: flip(c / "tag" / "states.pt"), "tag/states.pt has another content"),
    "truncated": (lambda c: (c / "tag" / "states.pt").write_bytes(b"short"), "has another content"),
    "empty": (lambda c: (c / "tag" / "states.pt").write_bytes(b""), "has another content"),
    "missing": (lambda c: (c / "tag" / "states.pt").unlink(), "tag/states.pt is missing"),
    "no latest": (lambda c: (c / "latest").unlink(), "latest is missing"),
    "flipped state": (lambda c: flip(c / "state.json"), "state.json has another content"),
    "no state": (lambda c: (c / "state.json").unlink(), "state.json is missing"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "manifest.json is missing"),
    "torn manifest": (lambda c: (c / "manifest.json").write_text('{"step": 4'), "manifest.json or a file"),
    "manifest without files": (lambda c: (c / "manifest.json").write_text('{"step": 400}'), "cannot be read"),
    "manifest of a list": (lambda c: (c / "manifest.json").write_text("[]"), "cannot be read"),
    "another step's": (rename_step, "its manifest is that of step 400"),
    "a file too many": (lambda c: (c / "extra").write_text(""), "extra is not in its manifest"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_seen_told_once_and_passed_over(tmp_path: Path, lease: Lease, kind: str) -> None:
    told: list[str] = []
    checkpoints = Checkpoints(tmp_path, lease, keep=2, warn=told.append)
    checkpoints.save(200, write, {"step": 200})
    path = checkpoints.save(400, write, {"step": 400})
    assert damage(path) is None
    harm, words = DAMAGES[kind]
    harm(path)
    for _ in range(2):
        newest = checkpoints.newest_whole()
        assert newest is not None
        assert newest.step == 200
    assert len(told) == 1
    assert words in told[0]
    assert "\n" not in told[0]


def test_every_bit_of_the_manifest_counts(tmp_path: Path, lease: Lease) -> None:
    path = Checkpoints(tmp_path, lease).save(400, write, {})
    manifest = path / "manifest.json"
    whole = manifest.read_bytes()
    harmless = 0
    for place in range(len(whole)):
        manifest.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        harmless += damage(path) is None
    assert harmless <= whole.count(b" ") + whole.count(b"\n")  # white space is not content


def test_all_damaged_is_none(tmp_path: Path, lease: Lease) -> None:
    checkpoints = Checkpoints(tmp_path, lease, warn=lambda message: None)
    flip(checkpoints.save(200, write, {}) / "latest")
    assert checkpoints.newest_whole() is None


def test_a_rewound_timeline_is_dropped(tmp_path: Path, lease: Lease) -> None:
    """A damaged later checkpoint is neither kept for a whole earlier one nor in the way of its successor."""
    checkpoints = Checkpoints(tmp_path, lease, keep=1, warn=lambda message: None)
    checkpoints.save(300, write, {})
    (tmp_path / "checkpoints" / "step-000400").mkdir()
    checkpoints.save(350, write, {})
    assert names(tmp_path) == ["step-000350"]
    (tmp_path / "checkpoints" / "step-000400").mkdir()
    checkpoints.save(400, write, {"step": 400})
    newest = checkpoints.newest_whole()
    assert newest is not None
    assert newest.step == 400


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("unexpected pos\nmore")]
)
def test_failed_save_leaves_nothing(tmp_path: Path, lease: Lease, error: Exception) -> None:
    def fail(path: Path) -> None:
        (path / "half").write_text("half")
        raise error

    checkpoints = Checkpoints(tmp_path, lease)
    checkpoints.save(200, write, {})
    with pytest.raises(files.FileError) as raised:
        checkpoints.save(400, fail, {})
    assert "step-000400 cannot be written" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert names(tmp_path) == ["step-000200"]


def test_clear(tmp_path: Path, lease: Lease) -> None:
    checkpoints = Checkpoints(tmp_path, lease)
    checkpoints.save(200, write, {})
    checkpoints.clear()
    assert names(tmp_path) == []


def test_lost_lease_saves_nothing(tmp_path: Path) -> None:
    lease = Lease.acquire(tmp_path, 60, on_lost=pytest.fail)
    checkpoints = Checkpoints(tmp_path, lease)

    def lose(path: Path) -> None:
        write(path)
        state = files.read_json(tmp_path / "lease.json")
        files.write_json(tmp_path / "lease.json", {**state, "token": 9})

    with pytest.raises(LeaseLost):
        checkpoints.save(200, lose, {})
    assert not list((tmp_path / "checkpoints").glob("step-*"))
    lease.release()


def test_lease_lost_while_writing_is_no_matter_of_disks(tmp_path: Path, lease: Lease) -> None:
    def lose(path: Path) -> None:
        raise LeaseLost("gone")

    with pytest.raises(LeaseLost, match="gone"):
        Checkpoints(tmp_path, lease).save(200, lose, {})


class Processes:
    """As many threads as a run has processes, with the exchanges that `torch.distributed` offers."""

    def __init__(self, number: int) -> None:
        self.barrier = threading.Barrier(number, timeout=20)
        self.number = number
        self.box: list[Any] = [None] * number

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.box[rank] = value
        self.barrier.wait()
        values = list(self.box)
        self.barrier.wait()
        return values

    def run(self, work: Callable[[int, Callable, Callable], Any]) -> list[Any]:
        outcomes: list[Any] = [None] * self.number

        def main(rank: int) -> None:
            def gather(value: Any) -> list[Any] | None:
                values = self.exchange(rank, value)
                return values if rank == 0 else None

            try:
                outcomes[rank] = work(rank, lambda value: self.exchange(rank, value)[0], gather)
            except Exception as error:
                outcomes[rank] = error

        threads = [threading.Thread(target=main, args=(rank,)) for rank in range(self.number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes


def test_several_processes_write_one_checkpoint(tmp_path: Path, lease: Lease) -> None:
    def work(rank: int, share: Callable, gather: Callable) -> Path:
        own = None if rank else lease
        checkpoints = Checkpoints(tmp_path, own, share=share, gather=gather)
        return checkpoints.save(2, lambda path: (path / f"rank{rank}").write_text(str(rank)), {"step": 2})

    outcomes = Processes(3).run(work)
    assert outcomes == [tmp_path / "checkpoints" / "step-000002"] * 3
    assert damage(outcomes[0]) is None
    assert {path.name for path in outcomes[0].iterdir()} >= {"rank0", "rank1", "rank2"}


def test_one_process_that_cannot_write_fails_all(tmp_path: Path, lease: Lease) -> None:
    def work(rank: int, share: Callable, gather: Callable) -> Path:
        def save(path: Path) -> None:
            if rank == 1:
                raise OSError(28, "No space left on device")
            write(path)

        return Checkpoints(tmp_path, None if rank else lease, share=share, gather=gather).save(2, save, {})

    outcomes = Processes(2).run(work)
    assert all(isinstance(outcome, files.FileError) for outcome in outcomes)
    assert all("No space left" in str(outcome) for outcome in outcomes)
    assert names(tmp_path) == []
