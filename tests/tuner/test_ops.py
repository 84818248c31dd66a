"""The pure functions: against NumPy in float64, folded against unfolded, and what RoPE's pairs allow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dypam.ops import folded, reference
from tests.reference import dypam as numpy_reference

T, d, d_h, H, K, r, d_e = 5, 12, 8, 4, 2, 3, 6


def parameters(projection: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"A_Q": (d, r), "B_Q": (r, H * d_e)}
    if projection == "separate":
        shapes |= {"A_K": (d, r), "B_K": (r, K * d_e)}
    for side, heads in (("Q", H), ("K", K)):
        shapes |= {
            f"E_{side}": (d_h // 2, d_e),
            f"head_bias_{side}": (heads, d_h // 2),
            f"layer_bias_{side}": (d_h // 2,),
        }
    return {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}


def states() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((1, T, d), (1, H, T, d_h), (1, K, T, d_h))
    h, q, k = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return h, q, k


@pytest.mark.parametrize("normalize", ["sigmoid", "raw_centered", "raw"])
def test_modulate_is_the_equations(normalize: str) -> None:
    p, (h, q, k) = parameters("separate"), states()
    wanted = numpy_reference.modulate(
        h[0].numpy(), q[0].numpy(), k[0].numpy(), {n: v.numpy() for n, v in p.items()}, 0.3, normalize
    )
    for side, x, expected in (("Q", q, wanted[0]), ("K", k, wanted[1])):
        bias = p[f"head_bias_{side}"] + p[f"layer_bias_{side}"]
        got = reference.modulate(h, x, p[f"A_{side}"], p[f"B_{side}"], p[f"E_{side}"], bias, 0.3, normalize)
        np.testing.assert_allclose(got[0].numpy(), expected, rtol=1e-12)


def test_shared_key_features_are_the_groups_mean() -> None:
    p, (h, q, k) = parameters("shared"), states()
    wanted = numpy_reference.modulate(
        h[0].numpy(),
        q[0].numpy(),
        k[0].numpy(),
        {n: v.numpy() for n, v in p.items()},
        0.3,
        "sigmoid",
        "shared",
    )[1]
    m = reference.group_mean(reference.features(h, p["A_Q"], p["B_Q"], H), K)
    s = reference.factors(reference.scores(m, p["E_K"], p["head_bias_K"] + p["layer_bias_K"]), 0.3)
    np.testing.assert_allclose(reference.scale_pairs(k, s.transpose(1, 2))[0].numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("grouped", [False, True])
def test_folded_scores_are_the_same(grouped: bool) -> None:
    p, (h, _, _) = parameters("shared"), states()
    m, B = reference.features(h, p["A_Q"], p["B_Q"], H), p["B_Q"]
    if grouped:
        m, B = reference.group_mean(m, K), folded.group_mean(B, H, K)
    bias = p["head_bias_K"] if grouped else p["head_bias_Q"]
    plain = reference.scores(m, p["E_Q"], bias)
    torch.testing.assert_close(folded.scores(h, p["A_Q"], folded.fold(B, p["E_Q"]), bias), plain)


def test_factors_stay_in_their_interval() -> None:
    g = torch.linspace(-50, 50, 101, dtype=torch.float64)
    s = reference.factors(g, 0.3)
    assert s.min() >= 1 - 0.15
    assert s.max() <= 1 + 0.15
    assert s[50] == 1


def test_a_pairs_factor_commutes_with_rope_and_two_factors_do_not() -> None:
    _, q, _ = states()
    x, s = q[0].numpy(), np.random.default_rng(0).uniform(0.5, 1.5, (T, H, d_h // 2))
    positions = np.arange(100, 100 + T)
    before = numpy_reference.rotate(numpy_reference.scale(x, s), positions)
    after = numpy_reference.scale(numpy_reference.rotate(x, positions), s)
    np.testing.assert_allclose(before, after, rtol=1e-12)
    uneven = np.random.default_rng(0).uniform(0.5, 1.5, d_h)
    one = numpy_reference.rotate(x * uneven, positions)
    assert np.abs(one - numpy_reference.rotate(x, positions) * uneven).max() > 0.1


def test_product_is_taken_in_fp32_and_rounded_once() -> None:
    x = torch.randn(1, H, T, d_h, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    s = torch.full((1, H, T, d_h // 2), 1.001)
    scaled = reference.scale_pairs(x, s)
    assert scaled.dtype == torch.bfloat16
    torch.testing.assert_close(scaled, (x.double() * 1.001).to(torch.bfloat16), rtol=0, atol=0)
    assert torch.equal(reference.scale_pairs(x, torch.ones_like(s)), x)
