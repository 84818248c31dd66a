"""What the fork server imports once: all that a run would import on its way."""

import contextlib
import gc
import importlib

LATE = (
    "baselines.lora",
    "datasets",
    "hydra.utils",
    "deepspeed.ops.op_builder.cpu",
    "deepspeed.runtime.zero.muon.original_muon",
    "dypam.train",
    "dypam.tuner.method",
    "tests.tiny",
    "tests.train.runs",
    "torch.utils.cpp_extension",
)
for name in LATE:
    with contextlib.suppress(ImportError):  # DeepSpeed 0.18 has other modules
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
