"""A run in miniature, for fault tests: the real lease, record, checkpoints and files, digests for a model.

python -m tests.state.worker RUN_DIR [--ttl SECONDS] [--steps N] [--pause SECONDS] [--no-exchange]
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

from dypam import events, files
from dypam.checkpoint import Checkpoints
from dypam.lease import EXIT_CODE, Lease, LeaseHeld, LeaseLost
from dypam.record import Preempted, Record
from tests.state.example import config

EVERY = 2


def turn(weights: str, number: int) -> str:
    """Return the next "weights": any change or repetition of a step shows in all later ones."""
    return hashlib.sha256(f"{weights} {number}".encode()).hexdigest()


def train(run_dir: Path, record: Record, lease: Lease, steps: int, pause: float) -> None:
    checkpoints = Checkpoints(run_dir, lease, keep=2)
    newest = checkpoints.newest_whole()
    start = newest.step if newest else 0
    weights = (newest.path / "weights").read_text() if newest else "start"
    record.rewind(start)
    for step in range(start + 1, steps + 1):
        for micro in range(2):
            weights = turn(weights, micro)
            events.reach("train.micro_step")
            time.sleep(pause)
        record.log("losses", {"step": step, "loss": weights[:8]})
        if step % EVERY == 0:
            record.update(tokens=step * 100)
            checkpoints.save(
                step, lambda path, now=weights: (path / "weights").write_text(now), {"step": step}
            )
            with files.staged_directory(run_dir / "adapter", lease.guard) as adapter:
                (adapter / "weights").write_text(weights)
                events.reach("adapter.aside")
                (adapter / "config").write_text(str(step))


def generate(run_dir: Path, lease: Lease) -> None:
    adapter = (run_dir / "adapter" / "weights").read_text()
    final = run_dir / "predictions" / "digits.jsonl"
    partial = final.with_suffix(".partial.jsonl")
    rows = len(files.read_lines(partial)) // 4 * 4
    if partial.exists():
        whole = partial.read_bytes().splitlines(keepends=True)[:rows]
        files.write_atomic(partial, b"".join(whole), lease.guard)
    for first in range(rows, 16, 4):
        batch = [{"id": f"digits/{i}", "response": turn(adapter, i)} for i in range(first, first + 4)]
        files.append_lines(partial, batch, lease.guard)
    files.write_atomic(final, partial.read_bytes(), lease.guard)
    with lease.guard():
        partial.unlink()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--ttl", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--no-exchange", action="store_true")
    options = parser.parse_args()
    if options.no_exchange:
        files._exchange = lambda one, other: False
    try:
        with Lease.acquire(options.run_dir, options.ttl) as lease:
            record = Record.open(options.run_dir, config(), lease)
            if not record.finished("train"):
                with record.stage("train"):
                    train(options.run_dir, record, lease, options.steps, options.pause)
            if not record.finished("generate"):
                with record.stage("generate"):
                    generate(options.run_dir, lease)
    except LeaseHeld as held:
        print(held, file=sys.stderr)
        return 2
    except LeaseLost as lost:
        print(lost, file=sys.stderr)
        return EXIT_CODE
    except Preempted:
        return 143
    return 0


if __name__ == "__main__":
    sys.exit(main())
