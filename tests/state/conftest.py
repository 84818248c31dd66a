"""Fixtures for runs' files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dypam.lease import Lease


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Lease]:
    """A lease whose loss is noted in `lost` instead of ending the test process."""
    lost: list[str] = []
    lease = Lease.acquire(tmp_path / "run", 60, on_lost=lost.append)
    yield lease
    lease.release()
    assert lost == []
