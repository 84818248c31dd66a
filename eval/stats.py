"""Tests and intervals over seeds and over examples.

Sources: the paper's star rule (spec of Tables 1 and 3: two-sided t-test over the seeds against the best
baseline, p < 0.05) and textbook formulas through SciPy.  Accuracies are percentages or fractions alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

Kind = Literal["student", "welch", "paired"]
Average = Literal["micro", "macro"]
KINDS: tuple[Kind, ...] = ("student", "welch", "paired")
ALPHA = 0.05


@dataclass(frozen=True)
class TTest:
    """A two-sided t-test of `mean(a) − mean(b)`; NaN statistic and p = 1 where there are too few values."""

    difference: float
    statistic: float
    df: float
    p: float
    n: tuple[int, int]


def t_test(a: Mapping[int, float], b: Mapping[int, float], kind: Kind = "student") -> TTest:
    """Compare two methods' accuracies by seed.

    Args:
        a: accuracy by seed of one method.
        b: accuracy by seed of the other.
        kind: `student` (equal variances), `welch`, or `paired` (over the seeds that both have).

    Without any spread the result is certain: p = 0 if the means differ and 1 if not.  Fewer than two values
    on a side cannot be tested: p = 1.
    """
    if kind not in KINDS:
        raise ValueError(f"t-test {kind!r} is unknown; use one of {', '.join(KINDS)}.")
    if kind == "paired":
        seeds = sorted(a.keys() & b.keys())
        x, y = np.array([a[s] for s in seeds]), np.array([b[s] for s in seeds])
    else:
        x, y = np.array([a[s] for s in sorted(a)]), np.array([b[s] for s in sorted(b)])
    n = (len(x), len(y))
    difference = float(x.mean() - y.mean()) if min(n) else math.nan
    if min(n) < 2:
        return TTest(difference, math.nan, math.nan, 1.0, n)
    spread = np.ptp(x - y) if kind == "paired" else max(np.ptp(x), np.ptp(y))
    if spread <= 1e-12 * max(abs(x).max(), abs(y).max(), 1.0):
        same = math.isclose(difference, 0, abs_tol=1e-9)
        return TTest(
            difference, 0.0 if same else math.copysign(math.inf, difference), math.nan, float(same), n
        )
    paired = kind == "paired"
    result = stats.ttest_rel(x, y) if paired else stats.ttest_ind(x, y, equal_var=kind == "student")
    return TTest(difference, float(result.statistic), float(result.df), float(result.pvalue), n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted by Holm's step-down procedure, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, running = [0.0] * len(order), 0.0
    for rank, index in enumerate(order):
        running = max(running, (len(order) - rank) * p_values[index])
        adjusted[index] = min(running, 1.0)
    return adjusted


@dataclass(frozen=True)
class Star:
    """The paper's comparison of one method with the best of its baselines in one column."""

    baseline: str
    test: TTest

    def significant(self, p: float | None = None, alpha: float = ALPHA) -> bool:
        """Tell whether a star is due: the method's mean is above and p (or an adjusted p) below alpha."""
        return self.test.difference > 0 and (self.test.p if p is None else p) < alpha


def star(
    ours: Mapping[int, float], baselines: Mapping[str, Mapping[int, float]], kind: Kind = "student"
) -> Star | None:
    """Test a method against the baseline with the highest mean over its seeds; None if there is none."""
    means = {name: float(np.mean(list(values.values()))) for name, values in baselines.items() if values}
    if not ours or not means:
        return None
    best = max(means, key=lambda name: means[name])
    return Star(best, t_test(ours, baselines[best], kind))


def marks(values: Mapping[str, float | None], digits: int = 2) -> dict[str, str]:
    """Return "best", "second" or "" for each name, by the values as printed with `digits` decimals.

    Ties share their mark (dense ranking): all names with the highest value are best, all with the next lower
    value are second.
    """
    rounded = {name: round(value, digits) for name, value in values.items() if value is not None}
    ranked = sorted(set(rounded.values()), reverse=True)[:2]
    names = dict(zip(ranked, ("best", "second"), strict=False))
    return {name: names.get(rounded[name], "") if name in rounded else "" for name in values}


def cut(value: float, digits: int) -> float:
    """Return a value cut after `digits` decimals (33.86 → 33.8)."""
    return math.floor(value * 10**digits + 1e-9) / 10**digits


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the order statistics round the median that cover it with `median_coverage`."""
    ranked, rank = sorted(values), _median_rank(len(values))
    return ranked[rank], ranked[-1 - rank]


def median_coverage(n: int) -> float:
    """Return the probability that `median_interval` of n values covers the median; 95 % needs six."""
    return float(1 - 2 * stats.binom.cdf(_median_rank(n), n, 0.5))


def _median_rank(n: int) -> int:
    """Return how many values lie below the narrowest interval of at least 95 %; 0 (the range) without one."""
    return max(0, int(stats.binom.ppf(0.025, n, 0.5)) - 1)


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation (None with a single value)."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def wilson(correct: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a fraction."""
    interval = stats.binomtest(correct, n).proportion_ci(level, method="wilson")
    return float(interval.low), float(interval.high)


def above_chance(correct: int, n: int, chance: float) -> float:
    """Return the exact binomial probability of `correct` or more right answers of n by chance alone."""
    return float(stats.binomtest(correct, n, chance, alternative="greater").pvalue)


def bootstrap(
    right: Sequence[np.ndarray],
    other: Sequence[np.ndarray] | None = None,
    *,
    average: Average = "micro",
    resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Return a percentile bootstrap interval over examples, each test set resampled by itself.

    Resampling n yes/no outcomes with replacement is a draw from a multinomial, and drawn as such.

    Args:
        right: per test set a bool array, who was right; one test set gives that set's interval.
        other: the same of another method, for the interval of the difference (the same examples are drawn).
        average: how test sets are put together.
        resamples: number of bootstrap samples.
        level: coverage.
        seed: of the draws.

    Returns:
        Low and high end, as fractions.
    """
    random = np.random.default_rng(seed)
    others = other if other is not None else [np.zeros(len(one), bool) for one in right]
    total, sizes = np.zeros(resamples), [len(one) for one in right]
    for one, two, n in zip(right, others, sizes, strict=True):
        gained, lost = int(np.sum(one & ~two)), int(np.sum(two & ~one))
        drawn = random.multinomial(n, np.array([gained, lost, n - gained - lost]) / n, resamples)
        change = drawn[:, 0] - drawn[:, 1]
        total += change / (sum(sizes) if average == "micro" else n * len(sizes))
    low, high = np.quantile(total, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class McNemar:
    """How often only one of two methods was right on the same examples, and the exact two-sided p-value."""

    only_a: int
    only_b: int
    p: float


def mcnemar(a: np.ndarray, b: np.ndarray) -> McNemar:
    """Compare two methods of one seed, example by example (exact binomial test on the discordant pairs)."""
    only_a, only_b = int(np.sum(a & ~b)), int(np.sum(b & ~a))
    discordant = only_a + only_b
    return McNemar(only_a, only_b, float(stats.binomtest(only_a, discordant).pvalue) if discordant else 1.0)
