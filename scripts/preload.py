"""What a fork server imports once, so that no run of a sweep has to: all that any run needs on its way.

Nothing here computes, starts a thread or touches a GPU: a forked run finds what a process of its own would.
"""

import contextlib
import importlib
import io
import os

from scripts.forked import MORE

MODULES = (
    "datasets",
    "hydra.utils",
    "deepspeed.ops.op_builder.cpu",
    "deepspeed.runtime.zero.muon.original_muon",
    "dypam.train",
    "eval.generate",
    "eval.score",
    "torch.utils.cpp_extension",
    "transformers.models.auto.modeling_auto",
    "transformers.generation",
)

# DeepSpeed sets it too; without it, to look whether there is a GPU spoils it for forked processes
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
with contextlib.redirect_stdout(io.StringIO()):
    for name in (*MODULES, *filter(None, os.environ.pop(MORE, "").split(","))):
        # DeepSpeed 0.18 has other modules; a user's broken one is for the run that needs it to tell
        with contextlib.suppress(Exception):
            importlib.import_module(name)
