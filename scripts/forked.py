"""The server from which a sweep's runs are forked, and what it imports."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable
from multiprocessing import forkserver
from typing import Any

from dypam.config import RunConfig

CONTEXT = multiprocessing.get_context("forkserver")

MORE = "DYPAM_PRELOAD"
"""The variable that tells `scripts.preload` of further modules; no forked run sees it."""


def preloads(configs: Iterable[RunConfig]) -> list[str]:
    """Return the modules that the fork server imports: for all runs, their methods and architectures."""
    modules = set()
    for config in configs:
        calls = [config.method, config.suite.train, *(test.source for test in config.suite.tests.values())]
        modules |= {call["_target_"].rpartition(".")[0] for call in calls}
        family = config.backbone.architecture["model_type"].removesuffix("_text")
        modules.add(f"transformers.models.{family}.modeling_{family}")
    return sorted(modules)


def start(process: Any, modules: list[str]) -> None:
    """Start a process of `CONTEXT`, from a new server where the last one was killed.

    A server that is just dying seems alive and breaks the line in the middle; nothing was forked then.
    """
    for pause in (0.1, 0.5, 2.0, None):
        _have_server(modules)
        try:
            return process.start()
        except (OSError, EOFError):
            if pause is None:
                raise
            time.sleep(pause)


def _have_server(modules: list[str]) -> None:
    """Have a server that has imported `modules`; it must outlive the SIGTERM that ends its children."""
    CONTEXT.set_forkserver_preload(["scripts.preload"] if modules else [])
    os.environ[MORE] = ",".join(modules)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forkserver.ensure_running()
    signal.signal(signal.SIGTERM, before)
    del os.environ[MORE]
