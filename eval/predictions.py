"""Prediction files: which rows a run has, which it lacks, and how batches are cut; no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from dypam.files import write_atomic
from dypam.lease import Lease
from eval.score import Expected, ScoreError, mismatch, prediction_rows, responses


class Predictions:
    """The prediction file of one test set: finished, or partial while batches are added to it."""

    def __init__(self, run_dir: Path, name: str, wanted: Expected, adapter: str) -> None:
        self.name, self.wanted, self.adapter = name, wanted, adapter
        self.final = run_dir / "predictions" / f"{name}.jsonl"
        self.partial = run_dir / "predictions" / f"{name}.partial.jsonl"
        self._index = {key: index for index, key in enumerate(wanted.ids)}

    def complete(self) -> bool:
        """Tell whether the finished file holds exactly the rows that it must."""
        try:
            responses(self.final, self.wanted, self.adapter)
        except ScoreError:
            return False
        return True

    def fitting(self, path: Path) -> dict[int, dict[str, Any]]:
        """Return the rows of a file that belong to this run, by index in the test set; {} if missing."""
        rows: dict[int, dict[str, Any]] = {}
        if path.exists():
            for _, row in prediction_rows(path):
                index = self._index.get(row.get("id", "")) if row else None
                if row and index is not None and not mismatch(row, index, self.wanted, self.adapter):
                    rows.setdefault(index, row)
        return rows

    def resume(
        self, batches: Iterable[list[int]], lease: Lease
    ) -> tuple[dict[int, dict[str, Any]], list[list[int]]]:
        """Return the rows to keep and the batches to do; a batch that is not whole in the partial file is.

        The partial file is left with exactly the rows that were kept from it.
        """
        kept, started = self.fitting(self.final), self.fitting(self.partial)
        missing = [[i for i in batch if i not in kept] for batch in batches]
        todo = [batch for batch in missing if any(i not in started for i in batch)]
        again = {i for batch in todo for i in batch}
        from_partial = {i: row for i, row in started.items() if i not in again and i not in kept}
        self.final.parent.mkdir(parents=True, exist_ok=True)
        lines = sum(1 for _ in prediction_rows(self.partial)) if self.partial.exists() else 0
        if lines != len(from_partial):
            write_atomic(self.partial, _jsonl(from_partial.values()), lease.guard)
        return {**kept, **from_partial}, todo

    def row(self, index: int, response: str, tokens: int) -> dict[str, Any]:
        """Return the row of one response."""
        wanted = self.wanted
        return {
            "id": wanted.ids[index],
            "prompt": wanted.prompts[index],
            "response": response,
            "n_tokens": tokens,
            "prompt_digest": wanted.prompt_digests[index],
            "target_digest": wanted.target_digests[index],
            "adapter_digest": self.adapter,
        }

    def finish(self, rows: dict[int, dict[str, Any]], lease: Lease) -> None:
        """Put the finished file in its place, in the order of the test set."""
        write_atomic(self.final, _jsonl(rows[i] for i in range(len(self.wanted.ids))), lease.guard)


def _jsonl(rows: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def batches_of(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Cut indices into batches from the longest prompt to the shortest (ties in order of the test set)."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    return [order[start : start + size] for start in range(0, len(order), size)]
