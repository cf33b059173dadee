"""A run in which no group teaches says so within a minute, with the reason, and then rarely."""

import dataclasses

import pytest

from loong_jax.problems import verdict
from loong_jax.report.progress import SignalWatch, describe
from tests.report.test_metrics_log import group

WRONG, RIGHT, MIXED = group([0.0] * 8), group([1.0] * 8), group([1.0, 0.0])


@pytest.fixture
def watch():
    """`told(groups_per_s, seconds, one)` judges groups and returns when warnings came."""
    now, said = [0.0], []
    signal_watch = SignalWatch(lambda text: said.append((now[0], text)), clock=lambda: now[0])

    def told(groups_per_s, seconds, one=WRONG):
        before, until = len(said), now[0] + seconds
        while now[0] < until:
            signal_watch.judged(one)
            now[0] += 1 / groups_per_s
        return said[before:]

    return told


@pytest.mark.parametrize("groups_per_s", [20.0, 1.0, 0.1])
def test_the_warning_comes_within_a_minute_and_then_rarely(watch, groups_per_s):
    assert len(watch(groups_per_s, 60)) == 1
    assert 1 <= len(watch(groups_per_s, 3600)) <= 4


def test_a_group_that_teaches_begins_the_count_anew(watch):
    for _ in range(20):
        assert not watch(1.0, 40)
        assert not watch(1.0, 1, MIXED)


def test_what_it_says_is_what_the_answers_have_in_common():
    text = describe([WRONG] * 64)
    for part in (
        "none of 64 groups",
        "0 of 512 answers that ended",
        "'value' (512)",
        "easier problems",
    ):
        assert part in text
    assert "'1+1=?' was answered with '2'" in text
    assert "harder problems" in describe([RIGHT] * 4)

    def all_are(**changes):
        cut = [dataclasses.replace(r, **changes) for r in WRONG.rollouts]
        return [WRONG.replace_rollouts(tuple(cut))]

    cut = all_are(finish_reason="length", verdict=verdict.correct(), reward=None)
    assert "max_new_tokens" in describe(cut)
    # what was right and cut off counts with those that were cut off alone, as in its reward
    text = describe([*cut, WRONG])
    assert "0 of 8 answers that ended were right" in text
    assert "8 of all 16 were cut off" in text
    unreadable = describe(all_are(verdict=verdict.ungradable("timeout"), reward=None))
    assert "8 more could not be graded" in unreadable
    assert "'timeout' (8)" in unreadable
