"""A resolved configuration as Hydra would give it, small and without any file."""

from __future__ import annotations

import copy
from typing import Any

from dypam.config import RunConfig

RESOLVED: dict[str, Any] = {
    "backbone": {
        "name": "tiny",
        "label": "Tiny",
        "path": "tiny",
        "architecture": {"model_type": "llama", "hidden_size": 32},
    },
    "method": {"_target_": "tests.state.example.Scale", "name": "scale", "factor": 2.0},
    "suite": {
        "name": "toy",
        "label": "Toy",
        "train": {"_target_": "tests.state.example.examples", "count": 10},
        "tests": {
            "digits": {
                "name": "digits",
                "label": "Digits",
                "source": {"_target_": "tests.state.example.examples", "count": 4},
                "answer": "number",
                "rows": 4,
                "chance": 0.0,
            }
        },
    },
    "prompt": {"bos": "tokenizer"},
    "train": {"lr": 1e-3, "micro_batch": 2, "global_batch": 4, "max_steps": 8},
    "decode": {"max_new_tokens": 8},
    "runtime": {"device": "cpu", "lease_ttl": 60},
    "seed": 2333,
    "results": "results",
    "run_dir": "results/runs/toy/tiny/scale/seed2333",
}


def resolved(**changes: Any) -> dict[str, Any]:
    """Return a copy with dotted keys set (`__` for a dot); the value `DROP` removes a key."""
    whole = copy.deepcopy(RESOLVED)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = whole
        for parent in parents:
            place = place[parent]
        if value is DROP:
            del place[last]
        else:
            place[last] = value
    return whole


DROP = object()


def config(**changes: Any) -> RunConfig:
    return RunConfig.from_resolved(resolved(**changes))


def examples(*, count: int, files: Any) -> None:
    """Stand where a suite's source stands; only its signature matters here."""


def __getattr__(name: str) -> Any:
    """Define the method class on first use: it alone needs torch."""
    if name != "Scale":
        raise AttributeError(name)
    from dypam.method import Method

    class Scale(Method):
        def __init__(self, name: str, label: str | None = None, *, factor: float) -> None:
            super().__init__(name, label)
            if factor <= 0:
                raise ValueError("factor must be above 0")
            self.factor = factor

        def attach(self, model, run):
            return model

        def save(self, model, directory):
            (directory / "factor").write_text(str(self.factor))

        def load(self, model, directory):
            return model

    globals()["Scale"] = Scale
    return Scale
