"""Pass rates of a policy on held-out problems, with confidence intervals.

Everything is counted per problem: `correct_P[i]` of `samples_P[i]` graded samples of problem i were
right. Intervals come from a bootstrap over problems, because samples of one problem are not
independent; comparisons are paired by problem, because both policies met the same ones.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

NUM_RESAMPLES = 4000
CONFIDENCE = 0.95

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Estimate(NamedTuple):
    """A mean over `n` problems with the ends of its bootstrap interval. Shares, not per cent."""

    value: float
    low: float
    high: float
    n: int

    @property
    def ci95(self) -> list[float]:
        return [self.low, self.high]

    def to_json(self, name: str) -> dict[str, Any]:
        return {name: self.value, "ci95": self.ci95, "n": self.n}


NOTHING = Estimate(float("nan"), float("nan"), float("nan"), 0)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is right (arXiv:2509.18883, eq. 1).

    1 - C(N - C, k) / C(N, k), as a product of k factors in [0, 1]: no factorial, no overflow, and
    exactly 0 without a correct sample and 1 where every k-subset holds one.
    """
    assert 0 <= num_correct <= num_samples, (num_correct, num_samples)
    if num_correct == 0:
        return 0.0
    if num_samples - num_correct < k:
        return 1.0
    kept = np.arange(num_samples - num_correct - k + 1, num_samples - num_correct + 1)
    drawn = np.arange(num_samples - k + 1, num_samples + 1)
    return float(1.0 - np.prod(kept / drawn))


def pass_at_k_per_problem(samples_P: ArrayLike, correct_P: ArrayLike, k: int) -> NDArray:
    """Eq. 1 for each problem; problems with fewer than k graded samples are left out."""
    counts = zip(np.ravel(samples_P), np.ravel(correct_P), strict=True)
    return np.array([pass_at_k(int(n), int(right), k) for n, right in counts if n >= k], np.float64)


def bootstrap(
    statistic: Statistic, row_PX: NDArray, *, seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> tuple[float, float]:
    """Percentile interval of `statistic` under resampling of problems with replacement.

    Problem i is the row `row_PX[i]` of all that the statistic needs to know about it. The statistic
    maps sums over the P drawn rows, [R, X], to one value for each of R resamples. Problems with
    equal rows are drawn together (one multinomial over distinct rows), which is the same draw and
    much less work. The seed makes the interval repeatable.
    """
    distinct_UX, count_U = np.unique(row_PX, axis=0, return_counts=True)
    rng = np.random.Generator(np.random.PCG64(seed))
    drawn_RU = rng.multinomial(len(row_PX), count_U / len(row_PX), num_resamples)
    values = statistic(drawn_RU.astype(np.float64) @ distinct_UX)
    if np.isnan(values).all():
        return math.nan, math.nan
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(values, [tail, 1 - tail])
    return float(low), float(high)


def mean_estimate(
    value_P: ArrayLike, *, seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> Estimate:
    """Mean over problems with its 95 % interval; NaN without problems."""
    value_P = np.asarray(value_P, np.float64)
    if not len(value_P):
        return NOTHING
    low, high = bootstrap(
        lambda sum_R1: sum_R1[:, 0] / len(value_P),
        value_P[:, None],
        seed=seed,
        num_resamples=num_resamples,
    )
    return Estimate(float(value_P.mean()), low, high, len(value_P))


def paired_difference(
    after: Mapping[str, float | int], before: Mapping[str, float | int], *, seed: int = 0
) -> Estimate:
    """Mean of `after - before` over the problems (by uid) that both sides answered."""
    shared = sorted(after.keys() & before.keys())
    difference_P = np.array([after[uid] - before[uid] for uid in shared], np.float64)
    return mean_estimate(difference_P, seed=seed)


def pooled_ratio(
    correct_P: ArrayLike, counted_P: ArrayLike, *, seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> Estimate:
    """Sum of `correct_P` over sum of `counted_P`, problems resampled together with both counts.

    With the well-formed samples as `counted_P` this is pass@1 with format failures removed.
    """
    row_P2 = np.stack([np.asarray(correct_P, np.float64), counted_P], axis=1)
    if not row_P2[:, 1].sum():
        return NOTHING

    def ratio(sum_R2: NDArray[np.float64]) -> NDArray[np.float64]:
        return _ratio(sum_R2[:, 0], sum_R2[:, 1])

    low, high = bootstrap(ratio, row_P2, seed=seed, num_resamples=num_resamples)
    value = float(ratio(row_P2.sum(axis=0)[None])[0])
    return Estimate(value, low, high, int(np.count_nonzero(row_P2[:, 1])))


def paired_ratio_difference(
    after: Mapping[str, tuple[int, int]], before: Mapping[str, tuple[int, int]], *, seed: int = 0
) -> Estimate:
    """Difference of two pooled ratios; each maps a uid to (correct, counted) samples."""
    shared = sorted(after.keys() & before.keys())
    if not shared:
        return NOTHING
    row_P4 = np.array([[*after[uid], *before[uid]] for uid in shared], np.float64)

    def difference(sum_R4: NDArray[np.float64]) -> NDArray[np.float64]:
        return _ratio(sum_R4[:, 0], sum_R4[:, 1]) - _ratio(sum_R4[:, 2], sum_R4[:, 3])

    low, high = bootstrap(difference, row_P4, seed=seed)
    value = float(difference(row_P4.sum(axis=0)[None])[0])
    return Estimate(value, low, high, len(shared))


def by_group(
    value_P: ArrayLike, group_P: Sequence[Hashable], *, seed: int = 0
) -> dict[Hashable, Estimate]:
    """One estimate per group (for example per level), in sorted order; `group_P[i]` is of i."""
    values, groups = np.asarray(value_P, np.float64), list(group_P)
    return {
        group: mean_estimate(values[[g == group for g in groups]], seed=seed)
        for group in sorted(set(groups), key=str)
    }


def over_runs(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of the same figure over independent runs, with an interval for runs and problems.

    Runs differ by more than their problems, so the interval adds in quadrature Student's interval
    of the runs around their mean and the mean width of their own intervals, which share problems.
    One run keeps its own interval.
    """
    if len(estimates) == 1:
        return estimates[0]
    values_R = np.array([estimate.value for estimate in estimates])
    quantile = scipy.special.stdtrit(len(estimates) - 1, (1 + CONFIDENCE) / 2)  # Student
    between = quantile * values_R.std(ddof=1) / np.sqrt(len(estimates))
    within = np.mean([(estimate.high - estimate.low) / 2 for estimate in estimates])
    value, half = float(values_R.mean()), float(np.hypot(between, within))
    return Estimate(value, value - half, value + half, min(e.n for e in estimates))


def _ratio(numerator_R: NDArray, denominator_R: NDArray) -> NDArray[np.float64]:
    """NaN where nothing was counted."""
    with np.errstate(invalid="ignore"):
        return numerator_R / np.where(denominator_R > 0, denominator_R, np.nan)
