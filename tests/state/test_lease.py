"""One run, one worker: who gets the lease, and who counts as alive."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dypam import files
from dypam.lease import Lease, LeaseHeld, LeaseLost
from tests.state import support
from tests.state.support import edit, take


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


def test_run_directory_that_cannot_be_made_or_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(files.FileError, match=r"file/run cannot be written"):
        take(tmp_path / "file" / "run")

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(files.FileError, match=r"run cannot be written \(No locks available\)"):
        take(tmp_path / "run")


def test_exit_without_release_frees_the_run(tmp_path: Path) -> None:
    code = "import sys; from dypam.lease import Lease; Lease.acquire(sys.argv[1], 60)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=support.ROOT, check=True)
    assert files.read_json(tmp_path / "lease.json")["released"] is True
