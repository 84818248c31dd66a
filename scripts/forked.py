"""The server from which a sweep's runs are forked, and what it imports."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterable
from multiprocessing import forkserver
from typing import Any

from dypam.config import RunConfig

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


def fork_server(modules: list[str]) -> Any:
    """Start a server that has imported `modules`; it must outlive the SIGTERM that ends its children."""
    context = multiprocessing.get_context("forkserver")
    if modules:
        context.set_forkserver_preload(["scripts.preload"])
    os.environ[MORE] = ",".join(modules)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forkserver.ensure_running()
    signal.signal(signal.SIGTERM, before)
    del os.environ[MORE]
    return context
