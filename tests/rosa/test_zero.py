"""Layer selection knows no engine: plain torch, ZeRO-1, and ZeRO-1 on two processes agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.rosa import zero_case
from tests.train import processes

CASES = list(zero_case.CASES)
ENGINES = ["torch", "1-0", "2-0", "2-1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    out = tmp_path_factory.mktemp("selection")
    for world in (1, 2):
        processes.run(zero_case.run_all, out, log=out / "log", world=world)
    plain = {case: zero_case.run_torch(case) for case in CASES}
    return {"torch": plain, **{name: torch.load(out / f"{name}.pt") for name in ENGINES[1:]}}


@pytest.mark.parametrize("case", CASES)
def test_choices_are_the_same(runs: dict[str, dict[str, Any]], case: str) -> None:
    plain = runs["torch"][case]["choices"]
    assert [choice["step"] for choice in plain] == [2, 4, 6]
    for engine in ENGINES[1:]:
        choices = runs[engine][case]["choices"]
        assert [c["selected"] for c in choices] == [c["selected"] for c in plain]
        for mine, wanted in zip(choices, plain, strict=True):
            tolerance = 2e-2 if case == "bf16" else 1e-4
            torch.testing.assert_close(mine["scores"], wanted["scores"], rtol=tolerance, atol=0)
    assert runs["2-0"][case]["choices"] == runs["2-1"][case]["choices"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", ["fp32", "bf16", "norms"])
def test_unselected_layers_stay_bit_for_bit(runs: dict[str, dict[str, Any]], case: str, engine: str) -> None:
    run = runs[engine][case]
    for step in range(2, zero_case.STEPS + 1):
        selected = next(c["selected"] for c in reversed(run["choices"]) if c["step"] <= step)
        for index, (old, new) in enumerate(zip(*run["states"][step - 2 : step], strict=True)):
            same = [torch.equal(old[key], new[key]) for key in old]
            assert all(same) if index not in selected else not all(same), (step, index)


@pytest.mark.parametrize("case", CASES)
def test_one_process_equals_plain_torch_bit_for_bit(runs: dict[str, dict[str, Any]], case: str) -> None:
    for mine, plain in zip(runs["1-0"][case]["states"], runs["torch"][case]["states"], strict=True):
        for layer, wanted in zip(mine, plain, strict=True):
            assert all(torch.equal(layer[key], wanted[key]) for key in wanted)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_agree_with_one(runs: dict[str, dict[str, Any]], case: str) -> None:
    for first, second in zip(runs["2-0"][case]["states"], runs["2-1"][case]["states"], strict=True):
        assert all(torch.equal(a[key], b[key]) for a, b in zip(first, second, strict=True) for key in a)
    tolerance = {"rtol": 0.1, "atol": 2e-3} if case == "bf16" else {"rtol": 1e-3, "atol": 1e-4}
    for mine, one in zip(runs["2-0"][case]["states"], runs["1-0"][case]["states"], strict=True):
        for layer, wanted in zip(mine, one, strict=True):
            for key in (key for key in wanted if "." not in key):
                torch.testing.assert_close(layer[key], wanted[key], **tolerance)
