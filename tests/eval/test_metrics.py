"""Metrics against enumeration of all subsets and against references written differently."""

import itertools
import math
import warnings
from fractions import Fraction

import numpy as np
import pytest

from loong_jax.eval import metrics


def enumerated(num_samples: int, num_correct: int, k: int) -> Fraction:
    """Share of the k-subsets of N samples, C of them right, that hold a right one."""
    outcomes = [True] * num_correct + [False] * (num_samples - num_correct)
    subsets = list(itertools.combinations(outcomes, k))
    return Fraction(sum(any(subset) for subset in subsets), len(subsets))


def test_pass_at_k_equals_enumeration_of_all_subsets():
    for n in range(1, 9):
        for c in range(n + 1):
            for k in range(1, n + 1):
                assert metrics.pass_at_k(n, c, k) == pytest.approx(
                    float(enumerated(n, c, k)), abs=1e-12
                )


def test_pass_at_k_holds_where_factorials_overflow():
    n, c, k = 5000, 3, 700
    exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert metrics.pass_at_k(n, c, k) == pytest.approx(float(exact), rel=1e-10)
    assert metrics.pass_at_k(10**6, 0, 1000) == 0.0
    assert metrics.pass_at_k(16, 1, 16) == 1.0


def test_pass_at_1_is_the_mean():
    rng = np.random.default_rng(3)
    outcome_PK = rng.random((40, 4)) < 0.3
    per_problem = metrics.pass_at_k_per_problem(np.full(40, 4), outcome_PK.sum(1), 1)
    assert per_problem.mean() == pytest.approx(outcome_PK.mean())


def test_problems_with_too_few_samples_leave_pass_at_k():
    assert metrics.pass_at_k_per_problem([16, 3, 16], [16, 3, 0], 16).tolist() == [1.0, 0.0]


def test_interval_is_deterministic_and_matches_the_normal_one():
    values = np.random.default_rng(0).random(600)
    one, two = metrics.mean_estimate(values), metrics.mean_estimate(values)
    assert one == two
    assert metrics.mean_estimate(values, seed=1) != one
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert one.low == pytest.approx(values.mean() - half, abs=0.006)
    assert one.high == pytest.approx(values.mean() + half, abs=0.006)
    assert one.n == 600


def test_bootstrap_equals_an_exhaustive_one_on_three_problems():
    values = np.array([0.0, 0.5, 1.0])
    every = sorted(np.mean(draw) for draw in itertools.product(values, repeat=3))  # 27 resamples
    estimate = metrics.mean_estimate(values, num_resamples=20_000)
    # 1 of 27 resamples is all zeros (3.7 % > 2.5 %) and 1 of 27 all ones, so both tails end there.
    assert (estimate.low, estimate.high) == (every[0], every[-1]) == (0.0, 1.0)


def test_drawing_distinct_rows_equals_drawing_problems():
    rng = np.random.default_rng(4)
    correct = rng.integers(0, 5, 80)
    counted = np.minimum(4, correct + rng.integers(0, 3, 80))
    drawn = rng.integers(0, 80, (20_000, 80))
    ratios = correct[drawn].sum(1) / counted[drawn].sum(1)
    estimate = metrics.pooled_ratio(correct, counted, num_resamples=20_000)
    np.testing.assert_allclose(
        [estimate.low, estimate.high], np.quantile(ratios, [0.025, 0.975]), atol=0.004
    )


def test_interval_covers_the_truth_about_95_times_in_100():
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        estimate = metrics.mean_estimate(
            rng.binomial(4, 0.35, 120) / 4, seed=trial, num_resamples=400
        )
        covered += estimate.low <= 0.35 <= estimate.high
    assert 182 <= covered <= 198


def test_paired_difference_uses_shared_problems_only_and_is_narrower_than_unpaired():
    rng = np.random.default_rng(2)
    skill = rng.random(500)
    before = {f"p{i}": float(rng.binomial(4, s) / 4) for i, s in enumerate(skill)}
    after = {f"p{i}": float(rng.binomial(4, min(1, s + 0.1)) / 4) for i, s in enumerate(skill)}
    after["only-after"] = 1.0
    paired = metrics.paired_difference(after, before)
    assert paired.n == 500
    assert paired.value == pytest.approx(
        np.mean([after[uid] - before[uid] for uid in before]), abs=1e-12
    )
    unpaired = math.hypot(np.std(list(after.values())), np.std(list(before.values())))
    assert paired.high - paired.low < 2 * 1.96 * unpaired / math.sqrt(500)
    assert metrics.paired_difference(before, before)[:3] == (0.0, 0.0, 0.0)


def test_pooled_ratio_is_the_ratio_of_sums_and_ignores_uncounted_problems():
    estimate = metrics.pooled_ratio([2, 0, 1], [4, 0, 2])
    assert estimate.value == pytest.approx(0.5)
    assert estimate.n == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, _ = metrics.bootstrap(lambda sum_R1: sum_R1[:, 0] * math.nan, np.zeros((2, 1)))
    assert math.isnan(low)
    assert math.isnan(metrics.pooled_ratio([0, 0], [0, 0]).value)


def test_ratio_difference_pairs_problems():
    after = {"a": (3, 4), "b": (1, 2), "c": (1, 1)}
    before = {"a": (1, 4), "b": (1, 4)}
    estimate = metrics.paired_ratio_difference(after, before)
    assert estimate.value == pytest.approx(4 / 6 - 2 / 8)
    assert estimate.n == 2


def test_by_group_partitions_the_problems():
    table = metrics.by_group([1, 0, 1, 1], [2, 1, 2, 1])
    assert list(table) == [1, 2]
    assert (table[1].value, table[2].value) == (0.5, 1.0)
    assert sum(estimate.n for estimate in table.values()) == 4


def test_no_problem_is_nan_not_zero():
    assert math.isnan(metrics.mean_estimate([]).value)


def test_scatter_between_runs_widens_the_interval():
    alike = [metrics.Estimate(0.1, 0.08, 0.12, 50)] * 3
    assert metrics.over_runs(alike[:1]) == alike[0]
    assert metrics.over_runs(alike) == pytest.approx((0.1, 0.08, 0.12, 50))
    apart = [metrics.Estimate(value, value, value, 50) for value in (-0.04, 0.02, 0.11)]
    # by hand: mean 0.03, deviation 0.07549834, Student's t at 2 degrees 4.302653
    half = 4.302653 * 0.07549834 / 3**0.5
    assert metrics.over_runs(apart) == pytest.approx((0.03, 0.03 - half, 0.03 + half, 50))
    both = metrics.over_runs(
        [metrics.Estimate(e.value, e.low - 0.02, e.high + 0.02, 50) for e in apart]
    )
    assert both.high - both.value == pytest.approx((half**2 + 0.02**2) ** 0.5)
