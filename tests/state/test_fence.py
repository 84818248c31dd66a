"""A former holder writes nothing more, stopped, replaced, forked, its files removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dypam import files
from dypam.lease import EXIT_CODE, Lease, LeaseHeld, LeaseLost
from tests.state import support
from tests.state.support import edit, take


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
