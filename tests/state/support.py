"""Start workers in processes of their own, and look at what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dypam import files
from dypam.lease import Lease

ROOT = Path(__file__).parents[2]


def start(run_dir: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.state.worker", str(run_dir), *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def started(run_dir: Path, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a worker, and end it (it may be stopped) on the way out."""
    worker = start(run_dir, *options, **environment)
    try:
        yield worker
    finally:
        worker.kill()
        worker.communicate()


def run(run_dir: Path, *options: str, **environment: str) -> tuple[int, str]:
    """Run a worker to its end; return its exit code and what it said on stderr."""
    worker = start(run_dir, *options, **environment)
    errors = worker.communicate(timeout=60)[1]
    return worker.returncode, errors


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def state_of(worker: subprocess.Popen[str]) -> str:
    """Return the letter of a process's state: T when it is stopped, Z when it is dead and not yet reaped."""
    return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0]


def snapshot(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return inode, modification time and bytes of `directory` and all that is under it."""
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [directory, *sorted(directory.rglob("*"))]
    }


def results(run_dir: Path) -> dict[str, bytes]:
    """Return what a run comes down to: adapter, predictions, checkpoints; not times or attempts."""
    found = {}
    for folder in ("adapter", "predictions", "checkpoints"):
        for path in sorted((run_dir / folder).rglob("*")):
            if path.is_file():
                found[str(path.relative_to(run_dir))] = path.read_bytes()
    return found


def leftovers(run_dir: Path) -> list[Path]:
    return [path for path in run_dir.rglob("*") if path.name.startswith((".tmp-", ".old-"))]


def edit(run_dir: Path, **changes: object) -> None:
    state = files.read_json(run_dir / "lease.json")
    files.write_json(run_dir / "lease.json", {**state, **changes})


def take(run_dir: Path) -> None:
    """Take the lease and give it back."""
    Lease.acquire(run_dir, 60, wait=0.1).release()
