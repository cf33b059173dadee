"""Searches over a grid and over coefficients, and the Fisher information that DF-Merge asks for."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax import merge
from loong_jax.errors import ConfigError
from loong_jax.merge import search

BASE = {"w": np.zeros((8, 6), np.float32)}
EXPERTS = {"a": {"w": np.ones((8, 6), np.float32)}, "b": {"w": np.ones((8, 6), np.float32)}}

ONES_OFF = {
    "a": {"w": np.eye(8, 6, dtype=np.float32)},
    "b": {"w": np.eye(8, 6, k=1, dtype=np.float32)},
}


def closeness(weights):
    return -abs(float(weights["w"].mean()) - 2.0)


def test_takes_the_best_and_reports_the_whole_grid():
    seen = []
    result = merge.grid_search(
        BASE,
        EXPERTS,
        closeness,
        scales=(1.0, 2.0, 3.0),
        keep_rates=(0.5, 1.0),
        on_point=seen.append,
    )
    assert (result.method.scale, result.method.keep_rate) == (2.0, 1.0)
    assert result.chosen.score == pytest.approx(0.0, abs=1e-6)
    assert list(result.grid) == seen
    assert [(p.keep_rate, p.scale) for p in result.grid] == [
        (q, s) for q in (0.5, 1.0) for s in (1.0, 2.0, 3.0)
    ]
    again = merge.fuse(BASE, EXPERTS, method=result.method)
    assert np.array_equal(again["w"], result.weights["w"])
    assert len(json.loads(json.dumps(result.to_json(), allow_nan=False))["grid"]) == 6


def test_equal_scores_take_what_departs_least():
    result = merge.grid_search(BASE, EXPERTS, lambda w: 0.0, scales=(2.0, 1.0, 0.5))
    assert (result.method.scale, result.method.keep_rate) == (1.0, 1.0)


def test_scores_by_domain_and_the_worst_of_them():
    def score(weights):
        scale = float(weights["w"].mean())
        return {"stem": 3 * scale, "logic": -scale}

    settings = {"scales": (1.0, 2.0), "keep_rates": (1.0,)}
    by_mean = merge.grid_search(BASE, EXPERTS, score, **settings)
    by_worst = merge.grid_search(BASE, EXPERTS, score, reduce=merge.worst_score, **settings)
    assert by_mean.method.scale == 2.0
    assert by_worst.method.scale == 1.0
    assert by_mean.chosen.scores == pytest.approx({"stem": 6.0, "logic": -2.0})
    assert by_mean.chosen.score == pytest.approx(2.0)


def test_a_point_without_a_score_is_never_chosen():
    score = lambda w: float("nan") if w["w"].mean() > 1.5 else 0.0  # noqa: E731
    result = merge.grid_search(BASE, EXPERTS, score, scales=(2.0, 1.0), keep_rates=(1.0,))
    assert result.method.scale == 1.0
    assert result.to_json()["grid"][0]["score"] is None
    with pytest.raises(ConfigError, match="has a score"):
        merge.grid_search(BASE, EXPERTS, lambda w: float("nan"), scales=(1.0,))
    few = merge.CoefficientSearch(num_random=1, num_steps=1)
    with pytest.raises(ConfigError, match="has a score"):
        merge.coefficient_search(BASE, ONES_OFF, lambda weights: float("nan"), search=few)


def test_searches_dare_too_with_the_settings_of_fuse():
    result = merge.grid_search(
        BASE,
        EXPERTS,
        closeness,
        method=merge.Dare(seed=3),
        scales=(1.0, 2.0),
        keep_rates=(1.0,),
        weights={"a": 0.5, "b": 0.5},
    )
    assert result.method == merge.Dare(seed=3, scale=2.0, keep_rate=1.0)


def explore(points, score):
    """All points that a search asks for, and their scores."""
    seen, point = [], next(points)
    while True:
        seen.append((point, score(point)))
        try:
            point = points.send(seen[-1][1])
        except StopIteration:
            return seen


def bowl(point):
    return -float(np.sum((point - np.array([0.3, 0.8])) ** 2))


def test_bayesian_search_beats_random_points():
    low, high = np.zeros(2), np.ones(2)
    for seed in range(3):
        found = explore(search.bayesian(low, high, num_random=5, num_steps=15, seed=seed), bowl)
        random = explore(search.bayesian(low, high, num_random=20, num_steps=0, seed=seed), bowl)
        assert len(found) == len(random) == 20
        best = max(score for _, score in found)
        assert best > max(score for _, score in random)
        assert best > -1e-3


def test_same_seed_same_points():
    make = lambda seed: [  # noqa: E731
        point.tolist()
        for point, _ in explore(
            search.bayesian(np.zeros(3), np.ones(3), num_random=3, num_steps=3, seed=seed),
            lambda point: float(point.sum()),
        )
    ]
    assert make(4) == make(4)
    assert make(4) != make(5)


def test_scores_without_a_value_do_not_stop_it():
    score = lambda point: float("nan") if point[0] > 0.5 else float(point[0])  # noqa: E731
    points = search.bayesian(np.zeros(1), np.ones(1), num_random=4, num_steps=10, seed=0)
    found = explore(points, score)
    assert max(s for _, s in found if s == s) > 0.3
    flat = search.bayesian(np.zeros(1), np.ones(1), num_random=2, num_steps=2, seed=0)
    assert len(explore(flat, lambda point: float("nan"))) == 4


def test_greedy_search_stays_in_the_box_and_climbs():
    low, high = np.zeros(2), np.ones(2)
    found = explore(search.greedy(low, high, num_steps=60, start=np.array([0.5, 0.5])), bowl)
    assert len(found) <= 60
    assert max(score for _, score in found) > -1e-3
    assert all((point >= low).all() and (point <= high).all() for point, _ in found)


def test_posterior_is_that_of_the_textbook():
    """At its own points with little noise a process repeats what it saw, and far away the prior."""
    points = np.array([[0.1], [0.5], [0.9]])
    scores = np.array([1.0, -1.0, 0.5])
    mean, deviation = search.posterior(points, scores, points)
    # The grid may take noise for likelier than a short length: both bounds hold for all its cells.
    assert np.abs(mean - scores).max() < 0.5
    assert (deviation > 0).all()
    kernel = search.matern(points, np.array([[100.0]]), 0.2)
    assert np.abs(kernel).max() < 1e-12
    assert search.matern(points, points, 0.2).diagonal() == pytest.approx(1.0)


@pytest.mark.parametrize("how", ["bayesian", "greedy"])
def test_finds_the_coefficients_of_a_known_merge(how):
    wanted = 0.7 * ONES_OFF["a"]["w"] + 0.2 * ONES_OFF["b"]["w"]
    seen = []
    result = merge.coefficient_search(
        BASE,
        ONES_OFF,
        lambda weights: {"near": -float(np.square(weights["w"] - wanted).sum()), "flat": 1.0},
        search=merge.CoefficientSearch(how=how, num_random=6, num_steps=24, seed=1),
        on_trial=seen.append,
    )
    assert result.chosen.coefficients == pytest.approx({"a": 0.7, "b": 0.2}, abs=0.1)
    assert list(result.trials) == seen
    assert result.chosen.score == max(trial.score for trial in seen)
    again = merge.fuse(
        BASE, ONES_OFF, method=merge.TaskArithmetic(), weights=result.chosen.coefficients
    )
    np.testing.assert_array_equal(result.weights["w"], again["w"])


def test_importances_are_taken_where_each_trial_stands():
    asked = []

    def importances(name, weights):
        asked.append((name, float(weights["w"].sum())))
        return {"w": np.abs(weights["w"]) + 0.1}

    result = merge.coefficient_search(
        BASE,
        ONES_OFF,
        lambda weights: float(weights["w"].sum()),
        search=merge.CoefficientSearch(num_random=2, num_steps=1),
        importances=importances,
    )
    sizes = {name: float(expert["w"].sum()) for name, expert in ONES_OFF.items()}
    shares = [trial.coefficients[name] for trial in result.trials for name in ("a", "b")]
    names = [name for name, _ in asked]
    assert names == ["a", "b"] * 3
    expected = [share * sizes[name] for share, name in zip(shares, names, strict=True)]
    assert [size for _, size in asked] == pytest.approx(expected, rel=1e-5)


def test_fisher_information_of_a_gaussian_mean():
    """log p(x | m) = -(x - m)^2 / 2 v: the mean squared gradient tends to 1 / v."""
    variance = np.array([0.5, 2.0, 1.0])
    samples = np.random.default_rng(0).normal(size=(4000, 3)) * np.sqrt(variance)

    def loglikelihood(weights, sample):
        return -jnp.sum((sample - weights["mean"]) ** 2 / (2 * jnp.asarray(variance, jnp.float32)))

    found = merge.diagonal_fisher(
        {"mean": jnp.zeros(3)}, samples.astype(np.float32), jax.jit(jax.grad(loglikelihood))
    )
    np.testing.assert_allclose(found["mean"], 1 / variance, rtol=0.1)
    with pytest.raises(ConfigError, match="samples"):
        merge.diagonal_fisher({"mean": jnp.zeros(3)}, [], jax.grad(loglikelihood))
