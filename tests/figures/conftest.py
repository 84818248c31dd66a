"""Small activation files for the drawing half; the numbers are synthetic and only their shapes matter."""

import json
from pathlib import Path

import numpy as np
import pytest

CLASSES = ["places", "times", "connectives", "punctuation"]


@pytest.fixture
def activation_file(tmp_path: Path):
    """Return a factory that writes one file of the collection step and returns its path."""

    def write(name: str = "model", weights: str = "pretrained", layers: int = 3, heads: int = 4) -> Path:
        rng = np.random.default_rng(0)
        arrays = {
            part: rng.lognormal(size=(len(CLASSES) + 1, layers, count, 16)).astype(np.float32)
            for part, count in (("q", heads), ("k", 2), ("v", 2))
        }
        about = {"backbone": name, "label": "A-Model-3B", "weights": weights, "position": "rope"}
        path = tmp_path / f"{name}.npz"
        counts = np.arange(len(CLASSES) + 1) + 10
        np.savez(path, about=json.dumps(about), classes=CLASSES, counts=counts, **arrays)
        return path

    return write
