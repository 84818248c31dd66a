"""The files of `configs/` put together by Hydra; each is read once, each choice of them composed once."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


@cache
def chosen(choices: tuple[str, ...], with_hydra: bool = False) -> DictConfig:
    """Return the configuration with the files that `choices` (GROUP=NAME, …) choose; copy it to change it."""
    with hydra():
        return compose("config", list(choices), return_hydra_config=with_hydra)


@contextmanager
def hydra() -> Iterator[None]:
    """Let Hydra compose from `configs/`."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        loader: Any = GlobalHydra.instance().config_loader()
        loader.repository = _ReadOnce(loader.repository)
        yield


class _ReadOnce:
    """Hydra's repository of configuration files, each read once in this process: nearly half of composing."""

    files: ClassVar[dict[str, Any]] = {}

    def __init__(self, repository: Any) -> None:
        self.repository = repository

    def __getattr__(self, name: str) -> Any:
        return getattr(self.repository, name)

    def __deepcopy__(self, memo: Any) -> _ReadOnce:
        return self  # Hydra copies its repository for every composition

    def load_config(self, config_path: str) -> Any:
        if config_path not in self.files:
            self.files[config_path] = self.repository.load_config(config_path)
        return copy.deepcopy(self.files[config_path])
