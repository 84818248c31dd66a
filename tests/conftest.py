"""Shared fixtures; the models behind them are in `tests/tiny.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import FAMILIES, save_tiny, tiny_tokenizer
from tests.tiny import tiny as make_tiny


@pytest.fixture(scope="session")
def tiny() -> Callable:
    """Return the factory `tiny(family, dtype=…, seed=…)`: a fresh tiny random model."""
    return make_tiny


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """Run the test once for every family that rotary tuners adapt."""
    return request.param


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def tiny_backbone_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return `tiny_backbone_dir(family, seed=0)`: a loadable directory of model and tokenizer, made once."""
    made: dict[tuple, Path] = {}

    def directory(family: str = "llama", *, seed: int = 0, **changes) -> Path:
        key = (family, seed, *sorted(changes.items()))
        if key not in made:
            made[key] = save_tiny(tmp_path_factory.mktemp(family), family, seed=seed, **changes)
        return made[key]

    return directory
