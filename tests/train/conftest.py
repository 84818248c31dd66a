"""What several modules of tests about training share."""

from typing import Any

import pytest

from dypam.config import RunConfig
from tests.train import cases


@pytest.fixture(scope="module")
def make(tiny_backbone_dir, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")

    def config(name: str, method: dict[str, Any] = cases.DYPAM, **train: Any) -> RunConfig:
        return cases.config(root / name, tiny_backbone_dir("llama"), method, **train)

    return config
