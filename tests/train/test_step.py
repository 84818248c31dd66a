"""A step looks the same to a method under plain torch, ZeRO-1, and ZeRO-1 on two processes."""

from typing import Any

import pytest
import torch

from dypam.step import TorchStep
from tests.train import processes, step_case


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The case under every engine: `torch`, and `ZeRO dtype, world, rank`."""
    out = tmp_path_factory.mktemp("steps")
    for world in (1, 2):
        processes.run(step_case.run_both, out, log=out / "log", world=world)
    results: dict[str, Any] = {"torch": step_case.run_torch(1)}
    for world, rank in ((1, 0), (2, 0), (2, 1)):
        both = torch.load(out / f"{world}-{rank}.pt")
        results |= {f"{dtype}, {world}, {rank}": value for dtype, value in both.items()}
    return results


def test_hold_keeps_weight_and_moments_bit_for_bit() -> None:
    model = step_case.toy()
    held, free = model[0].weight, model[0].bias
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in (1, 2, 3):
        view = TorchStep(optimizer, step, 3)
        model(step_case.batches(step)).square().sum().backward()
        before = [p.detach().clone() for p in (held, free)]
        moments = {key: value.clone() for key, value in optimizer.state[held].items()}
        if step != 2:
            view.hold([held])
        optimizer.step()
        view.restore()
        optimizer.zero_grad()
        assert torch.equal(held, before[0]) == (step != 2)
        assert not torch.equal(free, before[1])
        after = optimizer.state[held]
        assert after["step"] == step
        for key in ("exp_avg", "exp_avg_sq"):
            kept = moments.get(key, torch.zeros_like(held))
            assert torch.equal(after[key], kept) == (step != 2), (step, key)


FP32 = ["fp32, 1, 0", "fp32, 2, 0", "fp32, 2, 1"]


@pytest.mark.parametrize("engine", FP32)
def test_gradients_are_those_of_plain_torch(runs: dict[str, Any], engine: str) -> None:
    for mine, plain in zip(runs[engine]["seen"], runs["torch"]["seen"], strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", FP32)
def test_weights_and_moments_are_those_of_plain_torch(runs: dict[str, Any], engine: str) -> None:
    for part in ("forward", "master", "moments"):
        for mine, plain in zip(runs[engine][part], runs["torch"][part], strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-6)


def test_one_process_equals_plain_torch_bit_for_bit(runs: dict[str, Any]) -> None:
    for part in ("forward", "master", "moments", "seen"):
        assert all(map(torch.equal, runs["fp32, 1, 0"][part], runs["torch"][part])), part


@pytest.mark.parametrize("dtype", ["fp32", "bf16_engine"])
def test_all_processes_hold_the_same(runs: dict[str, Any], dtype: str) -> None:
    for part in ("forward", "master", "moments", "seen"):
        assert all(map(torch.equal, runs[f"{dtype}, 2, 0"][part], runs[f"{dtype}, 2, 1"][part])), part


@pytest.mark.parametrize("engine", ["torch", *FP32, "bf16_engine, 1, 0", "bf16_engine, 2, 1"])
def test_forward_copy_is_the_rounded_master(runs: dict[str, Any], engine: str) -> None:
    for forward, master in zip(runs[engine]["forward"], runs[engine]["master"], strict=True):
        assert master.dtype == torch.float32
        assert torch.equal(forward, master.to(forward.dtype))
