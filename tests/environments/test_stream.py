"""Streams: deterministic, on one side of the split, at the shares asked for."""

import collections
import itertools

import pytest

from loong_jax import environments
from loong_jax.environments.problem import split_of
from loong_jax.environments.stream import ProblemStream

SPLITS = ("train", "validation", "test")


def stream(name="gates", **changes):
    settings = {"level_weights": {1: 1.0, 2: 3.0}, "split": "train", "seed": 0} | changes
    return ProblemStream(environment=environments.get_environment(name), **settings)


@pytest.mark.parametrize("name", sorted(environments.ENVIRONMENTS))
def test_no_problem_is_on_two_sides(name):
    """Level 1 of masks is the smallest space: problems do repeat within a side, never across."""
    seen = {
        split: {
            stream(name, split=split, seed=seed, level_weights={1: 1.0, 2: 1.0})
            .problem_at(c)
            .canonical
            for seed in range(2)
            for c in range(300)
        }
        for split in SPLITS
    }
    for one, other in itertools.combinations(SPLITS, 2):
        assert not seen[one] & seen[other]
    assert all(split_of(form) == split for split, forms in seen.items() for form in forms)


def test_a_cursor_is_all_that_resumes():
    first = list(itertools.islice(iter(stream()), 20))
    assert [stream().problem_at(cursor) for cursor in range(20)] == first
    assert [p.uid for p in first] != [stream(seed=1).problem_at(c).uid for c in range(20)]


def test_level_shares():
    counts = collections.Counter(p.level for p in itertools.islice(iter(stream()), 800))
    assert set(counts) == {1, 2}
    assert 0.68 < counts[2] / 800 < 0.82


def test_take_distinct():
    found = stream(split="test").take_distinct(200)
    assert len({p.canonical for p in found}) == 200
    assert stream(split="test").take_distinct(50) == found[:50]


@pytest.mark.parametrize(
    "changes",
    [
        {"split": "dev"},
        {"level_weights": {}},
        {"level_weights": {1: 0.0}},
        {"level_weights": {9: 1.0}},
    ],
)
def test_wrong_settings_are_refused(changes):
    with pytest.raises(ValueError, match=r"split|level"):
        stream(**changes)
