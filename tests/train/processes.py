"""Groups of processes as a launcher would start them, forked from a server that has the imports behind it."""

import multiprocessing
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

PRELOAD = ["tests.train.preload"]
PATIENCE = 240
LOCK = threading.Lock()
_ours: int | None = None


def context() -> Any:
    """One fork server a test process; torch and DeepSpeed are imported there, and no group is joined.

    A server that another test has started does not have the imports, and is replaced.
    """
    global _ours
    os.environ.update(OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")
    context, server = multiprocessing.get_context("forkserver"), forkserver._forkserver
    with LOCK:
        if server._forkserver_pid is not None:
            server.ensure_running()
        if server._forkserver_pid != _ours:
            server._stop()
        context.set_forkserver_preload(PRELOAD)
        server.ensure_running()
        _ours = server._forkserver_pid
    return context


def run(
    function: Callable[..., None],
    *arguments: Any,
    log: Path,
    world: int = 1,
    expect: int = 0,
    **environment: str,
) -> str:
    """Call `function(*arguments)` in `world` fresh processes and return what they printed.

    Every process must end with `expect` (0, or minus a signal's number); none outlives the call.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    group = []
    for rank in range(world):
        launcher = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        own = {**launcher, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if world > 1 else {}
        group.append(
            context().Process(target=_child, args=(log, {**own, **environment}, function, arguments))
        )
    try:
        for process in group:
            process.start()
        for process in group:
            process.join(PATIENCE)
    finally:
        codes = [process.exitcode for process in group]
        for process in group:
            process.kill()
            process.join()
            process.close()
    printed = log.read_text()
    assert codes == [expect] * world, f"{codes}\n{printed[-6000:]}"
    return printed


def _child(log: Path, environment: dict[str, str], function: Callable[..., None], arguments: tuple) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.update(environment)
    code = 0
    try:
        import torch

        torch.set_num_threads(1)
        function(*arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no teardown of a group whose other members may be gone
