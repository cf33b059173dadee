"""The grid over scale and keep rate."""

import json

import numpy as np
import pytest

from loong_jax import merge
from loong_jax.errors import ConfigError

BASE = {"w": np.zeros((8, 6), np.float32)}
EXPERTS = {"a": {"w": np.ones((8, 6), np.float32)}, "b": {"w": np.ones((8, 6), np.float32)}}


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
