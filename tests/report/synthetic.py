"""Whole results folders without any model: every number, loss and response is made up, and says so."""

from __future__ import annotations

import json
import random
from pathlib import Path

from data import examples
from dypam.config import Suite
from tests.eval import toy

WORDS = [f"synthetic{i}" for i in range(400)]
METHODS = ["dypam", "lora", "adalora", "oft", "bone", "ia3", "ln_tuning", "fourierft", "shira", "rosa"]
LABELS = {"dypam": "DyPAM", "lora": "LoRA", "ia3": "IA3", "rosa": "RoSA"}
SEEDS = [2333, 1000, 2000, 3000, 4000]


def suite(rows: dict[str, int], name: str = "toy", label: str = "Synthetic suite") -> Suite:
    """Return a suite of number and letter test sets of the given sizes."""
    kinds = ("number", "letter5")
    sets = [toy.make_set(t, n, kinds[i % 2], (0.0, 0.2)[i % 2]) for i, (t, n) in enumerate(rows.items())]
    sets[0].contaminated = "2 test questions, made up"
    return Suite(name, label, {}, {test.name: test for test in sets}, note="All numbers here are made up.")


def write_run(
    results: Path,
    given: Suite,
    backbone: str,
    method: str,
    seed: int,
    *,
    skill: float = 0.5,
    words: int = 12,
    status: str = "finished",
) -> Path:
    """Write one run directory; `skill` is the share of right answers, `words` the length of a response."""
    rng = random.Random(f"{backbone}/{method}/{seed}")
    run_dir = results / "runs" / given.name / backbone / method / f"seed{seed}"
    (run_dir / "predictions").mkdir(parents=True)
    identity = toy.identity(given, backbone, method, seed)
    identity["method"]["label"] = LABELS.get(method, method)
    (run_dir / "record.json").write_text(json.dumps(_record(identity, rng, status)))
    if status == "finished":
        for name, test in given.tests.items():
            rows = [
                toy.prediction(row, _response(row["answer"], rng, skill, words), "none")
                for row in examples.load(test.source, None)
            ]
            toy.write(run_dir, name, rows)
    return run_dir


def _response(answer: str, rng: random.Random, skill: float, words: int) -> str:
    said = answer if rng.random() < skill else rng.choice(["none of them", "E", "-1"])
    cue = rng.choice(["The answer is", "Answer:"])  # the paper's protocol reads the A of "Answer"
    return " ".join(rng.choices(WORDS, k=words)) + f". {cue} {said}"


def _record(identity: dict, rng: random.Random, status: str) -> dict:
    losses = [
        {"step": step, "loss": 2 / step**0.3 + 0.1 * rng.random(), "lr": 1e-3} for step in range(1, 401)
    ]
    losses += [{"step": step, "val_loss": 2 / step**0.25} for step in range(50, 401, 50)]
    failed = {"error": "made-up failure <b>not bold</b>"} if status == "failed" else {}
    return {
        "status": status,
        "identity": identity,
        "stages": {"train": "synthetic", "generate": "synthetic"},
        "config": {**identity, "runtime": {"device": "cpu"}},
        "parameters": {"trained": 7, "published_trained": rng.randrange(1, 20_000), "published_total": 10**6},
        "tokens": {"read": 1_000_000, "supervised": 90_000},
        "generation": {"sets": {"sums": {"starts": [{"tokens": 50_000, "seconds": 90.0}]}}},
        "seconds": {"train": 500 + rng.random(), "train_total": 600, "generate_total": 120},
        "peak_memory": {"train_bytes": rng.randrange(6, 20) * 10**9},
        "versions": {"python": "3.11", "torch": "0.0-synthetic"},
        "attempts": [{"stage": "train", "git": {"commit": "0" * 40, "dirty": False}}],
        "losses": losses,
        **failed,
    }


def write_study(
    results: Path, given: Suite, backbones: list[str], methods: list[str], seeds: list[int]
) -> None:
    """Write every combination, methods of growing skill from the last to the first."""
    for backbone in backbones:
        for i, method in enumerate(methods):
            for seed in seeds:
                write_run(results, given, backbone, method, seed, skill=0.75 - 0.05 * i)


def as_published(results: Path, backbone: str = "llama-3.2-3b") -> Suite:
    """Write two runs under the name of the paper's Math10K: MultiArith of its size, AQuA of another one."""
    given = suite({"multiarith": 600, "aqua": 20}, "math10k", "Math10K (synthetic)")
    for method in ("dypam", "lora"):
        write_run(results, given, backbone, method, 2333, words=1)
    return given
