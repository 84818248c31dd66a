"""One run, one worker: who gets the lease, who loses it, and that a former holder writes nothing more."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dypam import files
from dypam.lease import EXIT_CODE, Lease, LeaseHeld, LeaseLost
from tests.state import support


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Lease]:
    """A lease whose loss is noted in `lost` instead of ending the test process."""
    lost: list[str] = []
    lease = Lease.acquire(tmp_path / "run", 60, on_lost=lost.append)
    yield lease
    lease.release()
    assert lost == []


def edit(run_dir: Path, **changes: object) -> None:
    state = files.read_json(run_dir / "lease.json")
    files.write_json(run_dir / "lease.json", {**state, **changes})


def take(run_dir: Path) -> None:
    """Take the lease and give it back."""
    Lease.acquire(run_dir, 60, wait=0.1).release()


def test_second_worker_is_refused_by_name(held: Lease) -> None:
    with pytest.raises(LeaseHeld) as refusal:
        take(held.run_dir)
    message = str(refusal.value)
    assert f"process {os.getpid()} on {os.uname().nodename} (last sign of life 0 s ago)" in message
    assert "\n" not in message


def test_second_process_ends_with_the_sentence(held: Lease) -> None:
    before = support.snapshot(held.run_dir)
    code, errors = support.run(held.run_dir)
    assert code == 2
    assert errors.count("\n") == 1
    assert f"process {os.getpid()}" in errors
    assert support.snapshot(held.run_dir) == before


def test_release_lets_the_next_one_in_with_a_higher_token(tmp_path: Path) -> None:
    tokens = []
    for _ in range(3):
        with Lease.acquire(tmp_path, 60) as lease:
            tokens.append(lease.holder.token)
    assert tokens == [1, 2, 3]
    with pytest.raises(LeaseLost, match="given back"), lease.guard():
        pytest.fail("entered")


def test_dead_holder_loses_at_once_even_as_a_zombie(tmp_path: Path) -> None:
    with support.started(tmp_path, "--pause", "1") as worker:
        support.wait_until((tmp_path / "record.json").exists)
        with pytest.raises(LeaseHeld):
            take(tmp_path)
        worker.kill()
        support.wait_until(lambda: support.state_of(worker) == "Z")
        take(tmp_path)


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({}, False),
        ({"started": "1"}, True),  # the process number was given to another process
        ({"boot_id": "before the restart"}, True),
        ({"host": "elsewhere"}, False),
        ({"host": "elsewhere", "boot_id": "another", "pid": 1}, False),
        ({"host": "elsewhere", "renewed": 0}, True),
        (
            {"namespace": "pid:[1]", "started": "1"},
            False,
        ),  # a container whose processes cannot be seen from here
        ({"renewed": 0}, True),
        ({"renewed": 1e12}, True),  # a clock that was wrong
        ({"released": True}, True),
        ({"ttl": "many"}, True),
    ],
)
def test_who_counts_as_alive(held: Lease, changes: dict[str, object], free: bool) -> None:
    before = (held.run_dir / "lease.json").read_bytes()
    edit(held.run_dir, **changes)
    if free:
        take(held.run_dir)
    else:
        with pytest.raises(LeaseHeld):
            take(held.run_dir)
    (held.run_dir / "lease.json").write_bytes(before)


@pytest.mark.parametrize("content", [b"", b"{", b'{"token": 3}', b"[]", b"\xff"])
def test_damaged_lease_holds_nobody_up(held: Lease, content: bytes) -> None:
    before = (held.run_dir / "lease.json").read_bytes()
    (held.run_dir / "lease.json").write_bytes(content)
    with pytest.raises(LeaseLost, match="removed or damaged"), held.guard():
        pytest.fail("entered")
    take(held.run_dir)
    (held.run_dir / "lease.json").write_bytes(before)


def test_heartbeat_keeps_the_lease(tmp_path: Path) -> None:
    with Lease.acquire(tmp_path, 1.0, on_lost=pytest.fail) as lease:
        time.sleep(1.5)
        with pytest.raises(LeaseHeld):
            take(tmp_path)
        with lease.guard():
            pass


def test_guard_nests_and_long_writes_keep_the_lease(tmp_path: Path) -> None:
    with Lease.acquire(tmp_path, 0.8, on_lost=pytest.fail) as lease:
        with lease.guard(), lease.guard():
            time.sleep(0.9)
            with pytest.raises(LeaseHeld):
                take(tmp_path)
        with pytest.raises(LeaseHeld, match="last sign of life 0 s"):
            take(tmp_path)


def test_two_guards_exclude_each_other_across_threads(held: Lease) -> None:
    inside, seen = threading.Event(), []

    def other() -> None:
        inside.wait()
        with held.guard():
            seen.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    with held.guard():
        inside.set()
        time.sleep(0.1)
        seen.append("first")
    thread.join()
    assert seen == ["first", "other"]


def test_of_many_at_once_exactly_one_wins(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from dypam.lease import Lease, LeaseHeld\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try: lease = Lease.acquire(sys.argv[1], 60)\n"
        "except LeaseHeld: print('held', flush=True)\n"
        "else: print('won', flush=True); sys.stdin.readline()\n"
    )
    for attempt in range(4):
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path / str(attempt))],
                cwd=support.ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2 if attempt else 5)
        ]
        assert all(racer.stdout.readline() == "ready\n" for racer in racers)
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        answers = [racer.stdout.readline().strip() for racer in racers]
        for racer in racers:
            racer.communicate("end\n", timeout=20)
        assert sorted(answers) == ["held"] * (len(racers) - 1) + ["won"]


@pytest.mark.parametrize("event", ["train.micro_step:6", "adapter.aside:2", "checkpoint.before_rename:2"])
def test_stopped_replaced_and_continued_it_writes_nothing_more(tmp_path: Path, event: str) -> None:
    run_dir = tmp_path / "run"
    with support.started(run_dir, DYPAM_STOP_AT=event) as worker:
        support.wait_until(lambda: support.state_of(worker) == "T")
        with pytest.raises(LeaseHeld):
            take(run_dir)
        edit(run_dir, renewed=0)
        with Lease.acquire(run_dir, 60) as lease:
            files.tidy(run_dir, lease.guard)
            assert support.leftovers(run_dir) == []
            before = support.snapshot(run_dir)
            worker.send_signal(signal.SIGCONT)
            errors = worker.communicate(timeout=20)[1]
            assert worker.returncode == EXIT_CODE
            assert errors.count("\n") == 1
            assert f"belongs to process {os.getpid()}" in errors
            assert support.snapshot(run_dir) == before


def test_stopped_it_loses_the_lease_after_its_ttl(tmp_path: Path) -> None:
    with support.started(tmp_path, "--ttl", "2", DYPAM_STOP_AT="train.micro_step:2") as worker:
        support.wait_until(lambda: support.state_of(worker) == "T")

        def taken() -> bool:
            with suppress(LeaseHeld):
                take(tmp_path)
                return True
            return False

        start = time.monotonic()
        support.wait_until(taken)
        assert time.monotonic() - start < 5


def test_stopped_anywhere_replaced_by_a_real_worker_and_continued(tmp_path: Path) -> None:
    """The second worker ends as an undisturbed one does; the first, continued in between, changes nothing."""
    assert support.run(tmp_path / "alone") == (0, "")
    run_dir = tmp_path / "run"
    with support.started(run_dir, DYPAM_STOP_AT="train.micro_step:9") as first:
        support.wait_until(lambda: support.state_of(first) == "T")
        edit(run_dir, renewed=0)
        with support.started(run_dir, "--pause", "0.03") as second:
            support.wait_until(lambda: str(second.pid) in (run_dir / "lease.json").read_text())
            first.send_signal(signal.SIGCONT)
            assert first.wait(20) == EXIT_CODE
            assert second.communicate(timeout=20)[1] == ""
            assert second.returncode == 0
    assert support.results(run_dir) == support.results(tmp_path / "alone")
    assert support.leftovers(run_dir) == []


@pytest.mark.parametrize("event", ["record.write:3", "predictions.mid_line:2", "adapter.between_renames:1"])
def test_stopped_in_the_middle_of_a_write_it_is_not_replaced(tmp_path: Path, event: str) -> None:
    """The write under way would follow the takeover: the new worker refuses, the old one goes on."""
    run_dir = tmp_path / "run"
    with support.started(run_dir, DYPAM_STOP_AT=event) as worker:
        support.wait_until(lambda: support.state_of(worker) == "T")
        edit(run_dir, renewed=0)
        before = support.snapshot(run_dir)
        with pytest.raises(LeaseHeld, match=f"locked by process {worker.pid} .* stands still .*kill -9"):
            take(run_dir)
        assert support.snapshot(run_dir) == before
        worker.send_signal(signal.SIGCONT)
        assert worker.communicate(timeout=20)[1] == ""
        assert worker.returncode == 0
    assert files.read_json(run_dir / "record.json")["status"] == "finished"


def test_holder_that_was_replaced_is_turned_away_at_the_guard(tmp_path: Path) -> None:
    """As after a frozen container, where no SIGCONT tells the worker anything."""
    lost: list[str] = []
    lease = Lease.acquire(tmp_path, 60, on_lost=lost.append)
    files.write_json(tmp_path / "some.json", 1, lease.guard)
    edit(tmp_path, token=lease.holder.token + 1, pid=1)
    before = support.snapshot(tmp_path)
    writes = [
        lambda: files.write_json(tmp_path / "some.json", 2, lease.guard),
        lambda: files.append_lines(tmp_path / "rows.jsonl", [{"id": 1}], lease.guard),
        lambda: files.staged_directory(tmp_path / "adapter", lease.guard).__enter__(),
        lambda: files.remove_directory(tmp_path / "adapter", lease.guard),
        lambda: files.tidy(tmp_path, lease.guard),
        lease.renew,
    ]
    for write in writes:
        with pytest.raises(LeaseLost, match="belongs to process 1 on"):
            write()
    lease.release()
    assert support.snapshot(tmp_path) == before
    assert lost == []


def test_heartbeat_reports_the_loss(tmp_path: Path) -> None:
    lost: list[str] = []
    lease = Lease.acquire(tmp_path, 0.2, on_lost=lost.append)
    edit(tmp_path, token=7)
    support.wait_until(lambda: bool(lost))
    assert "writes nothing more" in lost[0]
    lease.release()


def test_run_directory_that_cannot_be_made_or_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(files.FileError, match=r"file/run cannot be written"):
        take(tmp_path / "file" / "run")

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(files.FileError, match=r"run cannot be written \(No locks available\)"):
        take(tmp_path / "run")


def test_run_directory_removed_under_its_worker(tmp_path: Path) -> None:
    lease = Lease.acquire(tmp_path / "run", 60, on_lost=pytest.fail)
    for name in ("lease.json", "lease.lock"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run").rmdir()
    with pytest.raises(LeaseLost, match="was removed"):
        files.write_json(tmp_path / "run" / "some.json", 1, lease.guard)
    assert not (tmp_path / "run").exists()
    lease.release()


def test_lock_file_replaced_under_its_worker(held: Lease) -> None:
    (held.run_dir / "lease.lock").unlink()
    before = (held.run_dir / "lease.json").read_bytes()
    with held.guard():
        edit(held.run_dir, renewed=0)
        with pytest.raises(LeaseHeld, match="stands still"):
            take(held.run_dir)
        (held.run_dir / "lease.json").write_bytes(before)


def test_lease_is_looked_at_first_of_all_after_sigcont(tmp_path: Path) -> None:
    lost: list[str] = []
    lease = Lease.acquire(tmp_path, 60, on_lost=lost.append)
    os.kill(os.getpid(), signal.SIGCONT)
    assert lost == []
    edit(tmp_path, token=7)
    os.kill(os.getpid(), signal.SIGCONT)
    assert len(lost) == 1
    lease.release()
    os.kill(os.getpid(), signal.SIGCONT)
    assert len(lost) == 1


def test_forked_copy_holds_nothing(tmp_path: Path) -> None:
    """A child made inside a guard may not write, and its copy of the lock dies with the parent."""
    code = (
        "import os, sys, time; from dypam.lease import Lease, LeaseLost\n"
        "lease = Lease.acquire(sys.argv[1], 60)\n"
        "with lease.guard():\n"
        "    if os.fork() == 0:\n"
        "        try:\n"
        "            with lease.guard(): print('wrote', flush=True)\n"
        "        except LeaseLost as lost: print(lost, flush=True)\n"
        "        lease.release(); print('released', flush=True); time.sleep(60)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)],
        cwd=support.ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert f"only process {parent.pid} " in parent.stdout.readline()
        assert parent.stdout.readline() == "released\n"
        assert json.loads((tmp_path / "lease.json").read_text())["released"] is False
        parent.kill()
        parent.wait(20)
        take(tmp_path)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def test_exit_without_release_frees_the_run(tmp_path: Path) -> None:
    code = "import sys; from dypam.lease import Lease; Lease.acquire(sys.argv[1], 60)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=support.ROOT, check=True)
    assert files.read_json(tmp_path / "lease.json")["released"] is True
