"""Statistics against SciPy, hand-computed values and simulation."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from eval import stats

A = dict(zip((2333, 1000, 2000, 3000, 4000), (30.0, 31.0, 33.0, 32.0, 34.0), strict=True))
B = dict(zip((2333, 1000, 2000, 3000, 4000), (28.0, 30.0, 30.5, 31.0, 31.0), strict=True))


def test_student_by_hand():
    # means 32 and 30.1, variances 2.5 and 1.55, pooled 2.025, t = 1.9 / sqrt(2.025 · 2/5)
    result = stats.t_test(A, B)
    assert result.statistic == pytest.approx(1.9 / 0.9)
    assert (result.df, result.n) == (8, (5, 5))
    assert result.p == pytest.approx(2 * scipy_stats.t.sf(1.9 / 0.9, 8))


def test_welch_and_paired_by_formula():
    a, b = np.array(list(A.values())), np.array(list(B.values()))
    welch = stats.t_test(A, B, "welch")
    assert welch.p == pytest.approx(scipy_stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert welch.df == pytest.approx((0.5 + 0.31) ** 2 / (0.5**2 / 4 + 0.31**2 / 4))
    paired = stats.t_test(A, dict(reversed(B.items())), "paired")
    d = a - b
    assert paired.statistic == pytest.approx(d.mean() / (d.std(ddof=1) / math.sqrt(5)))
    assert paired.df == 4


def test_pairs_only_common_seeds():
    assert stats.t_test(A, {s: B[s] for s in (1000, 3000, 4000)}, "paired").n == (3, 3)


def test_no_spread_is_certain():
    same, other = {1: 50.0, 2: 50.0}, {1: 51.0, 2: 51.0}
    assert stats.t_test(same, same).p == 1
    assert stats.t_test(other, same).p == 0
    assert stats.t_test(other, same).statistic == math.inf
    assert stats.t_test(A, {s: v - 1 for s, v in A.items()}, "paired").p == 0


@pytest.mark.parametrize("kind", stats.KINDS)
def test_one_value_cannot_be_tested(kind):
    assert stats.t_test({1: 1.0}, A, kind).p == 1
    assert not math.isfinite(stats.t_test({}, A, kind).difference)


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'z' is unknown"):
        stats.t_test(A, B, "z")


def test_holm_by_hand():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.5, 0.9]) == [1.0, 1.0]
    assert stats.holm([]) == []


def test_star_takes_the_best_baseline_by_mean():
    lucky = {2333: 40.0, 1000: 20.0, 2000: 20.0, 3000: 20.0, 4000: 20.0}
    found = stats.star(A, {"lucky": lucky, "b": B, "missing": {}})
    assert found.baseline == "b"
    assert not found.significant()
    assert found.test.p == pytest.approx(0.0678, abs=1e-3)
    assert stats.star(A, {"b": {s: v - 2 for s, v in B.items()}}).significant()
    below = stats.star({s: v - 9 for s, v in A.items()}, {"b": B})
    assert below.test.p < 0.05
    assert not below.significant()
    assert not stats.star(A, {"b": {s: v - 2 for s, v in B.items()}}).significant(p=0.06)
    assert stats.star(A, {}) is None
    assert stats.star({}, {"b": B}) is None


def test_marks_rank_densely_what_is_printed():
    values = {"a": 84.031, "b": 84.03, "c": 81.93, "d": 81.934, "e": 80.0, "f": None}
    marked = stats.marks(values)
    assert marked == {"a": "best", "b": "best", "c": "second", "d": "second", "e": "", "f": ""}
    assert stats.marks(values, 3)["b"] == "second"
    assert stats.marks({"a": 1.0}) == {"a": "best"}
    assert stats.marks({}) == {}


def test_mean_and_sample_deviation():
    assert stats.mean_sd([30.0, 31.0, 33.0, 32.0, 34.0]) == pytest.approx((32, math.sqrt(2.5)))
    assert stats.mean_sd([3.0]) == (3.0, None)


def test_wilson_by_formula():
    k, n, z = 45, 300, 1.959963984540054
    centre, half = (k + z**2 / 2) / (n + z**2), z / (n + z**2) * math.sqrt(k * (n - k) / n + z**2 / 4)
    assert stats.wilson(k, n) == pytest.approx((centre - half, centre + half))


def test_above_chance_by_the_sum():
    tail = sum(math.comb(20, k) * 0.25**k * 0.75 ** (20 - k) for k in range(10, 21))
    assert stats.above_chance(10, 20, 0.25) == pytest.approx(tail)
    assert stats.above_chance(1, 20, 0.0) == 0
    assert stats.above_chance(0, 20, 0.0) == 1


def plain_bootstrap(sets, average, resamples=4000):
    random = np.random.default_rng(1)
    draws = []
    for _ in range(resamples):
        picked = [values[random.integers(len(values), size=len(values))] for values in sets]
        draws.append(
            np.concatenate(picked).mean() if average == "micro" else np.mean([p.mean() for p in picked])
        )
    return np.quantile(draws, [0.025, 0.975])


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_bootstrap_is_resampling_of_examples(average):
    random = np.random.default_rng(0)
    one, two = (
        [random.random(n) < p for n, p in ((200, 0.3), (50, 0.8))],
        [random.random(n) < 0.4 for n in (200, 50)],
    )
    assert stats.bootstrap(one, average=average) == pytest.approx(plain_bootstrap(one, average), abs=0.01)
    differences = [a.astype(float) - b for a, b in zip(one, two, strict=True)]
    found = stats.bootstrap(one, two, average=average)
    assert found == pytest.approx(plain_bootstrap(differences, average), abs=0.01)
    assert found == stats.bootstrap(one, two, average=average)


def test_mcnemar_by_hand():
    a = np.array([True] * 12 + [False] * 8)
    b = np.array([True] * 3 + [False] * 9 + [True] + [False] * 7)
    found = stats.mcnemar(a, b)
    assert (found.only_a, found.only_b) == (9, 1)
    assert found.p == pytest.approx(2 * (1 + 10) / 2**10)
    assert stats.mcnemar(a, a).p == 1
