"""What the fork server of the tests imports once: what a run imports on its way, and what the tests use."""

import gc
import importlib

from scripts import preload  # noqa: F401

LATE = ("baselines.lora", "dypam.tuner.method", "tests.tiny", "tests.train.runs")
for name in LATE:
    importlib.import_module(name)


def warm_up() -> None:
    """Fill the caches of Transformers and PEFT; nothing here starts a thread."""
    from baselines.lora import LoRA
    from dypam.method import RunContext
    from tests.tiny import tiny

    LoRA("lora").attach(tiny("llama"), RunContext(seed=0, total_steps=1))


warm_up()
# What is imported stays: children need not walk through it whenever they collect garbage.
gc.collect()
gc.freeze()
