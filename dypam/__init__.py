"""DyPAM: dynamic positional attention modulation (tuner), and the engine that trains any PEFT method.

`from dypam import DyPAMConfig` registers the tuner with PEFT. It is imported on first use, so that the
stages that work on files alone never load torch.
"""

from typing import Any

__all__ = ["DyPAMConfig", "DyPAMModel"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from dypam import tuner

        return getattr(tuner, name)
    raise AttributeError(f"module 'dypam' has no attribute {name!r}")
