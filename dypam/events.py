"""Named events at which a fault test ends or stops this process; without its environment variables, nothing.

`DYPAM_KILL_AT=NAME[:N]` sends SIGKILL, `DYPAM_STOP_AT=NAME[:N]` SIGSTOP, the N-th time (from 1) that this
process reaches NAME; before that a line `NAME PID` is appended to the file `DYPAM_KILL_PROOF`, so that a test
can tell that the event was really hit.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

_SIGNALS = {"DYPAM_KILL_AT": signal.SIGKILL, "DYPAM_STOP_AT": signal.SIGSTOP}
_reached: Counter[str] = Counter()


def _armed(name: str) -> signal.Signals | None:
    """Return the signal whose turn has come at this, the `_reached[name]`-th, arrival."""
    for variable, number in _SIGNALS.items():
        armed, _, turn = os.environ.get(variable, "").partition(":")
        if armed == name and _reached[name] == int(turn or 1):
            return number
    return None


def due(name: str) -> bool:
    """Count one arrival at `name`; true if `strike` must follow (for events in the middle of a write)."""
    _reached[name] += 1
    return _armed(name) is not None


def strike(name: str) -> None:
    """Write the proof and send the signal that is armed for this arrival at `name`."""
    number = _armed(name)
    assert number is not None, f"{name} is not due"
    if proof := os.environ.get("DYPAM_KILL_PROOF"):
        with open(proof, "a") as out:
            out.write(f"{name} {os.getpid()}\n")
    os.kill(os.getpid(), number)


def reach(name: str) -> None:
    """Mark that the program stands at event `name`."""
    if due(name):
        strike(name)
