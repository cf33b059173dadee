import threading

import numpy as np
import pytest

from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.sampling import ProblemSampler, generate_all
from tests.doubles.fake_model import fake_engine, fake_problem, fake_weights

ENGINE = fake_engine()
WEIGHTS = fake_weights(0)
PROBLEMS = [fake_problem(n) for n in range(5)]
SAMPLING = SamplingSettings(max_new_tokens=8, temperature=0.9)


def texts(rollouts):
    return [[r.text for r in group] for group in rollouts]


def test_generate_all_yields_every_group_once_and_tells_progress():
    seen = []
    groups = list(
        generate_all(
            ENGINE,
            WEIGHTS,
            PROBLEMS,
            num_samples=3,
            sampling=SAMPLING,
            seed=0,
            version=7,
            progress=lambda done, total: seen.append((done, total)),
        )
    )
    assert sorted(g.ticket.number for g in groups) == [0, 1, 2, 3, 4]
    assert all(g.ticket.problem is PROBLEMS[g.ticket.number] for g in groups)
    assert {g.version for g in groups} == {7}
    assert seen[-1] == (5, 5)
    assert seen == sorted(seen)


def test_sampler_keeps_the_order_and_repeats_itself_by_seed():
    one = ProblemSampler(ENGINE, WEIGHTS, seed=3)
    first, again = one(PROBLEMS, 4, SAMPLING), one(PROBLEMS[:2], 4, SAMPLING)
    assert [rollouts[0].ticket for rollouts in first] == [0, 1, 2, 3, 4]
    assert [len(rollouts) for rollouts in first] == [4] * 5
    assert texts(again) != texts(first[:2])  # fresh samples, not the same ones twice
    other = ProblemSampler(ENGINE, WEIGHTS, seed=3)
    assert texts(other(PROBLEMS, 4, SAMPLING)) == texts(first)
    assert texts(other(PROBLEMS[:2], 4, SAMPLING)) == texts(again)
    assert texts(ProblemSampler(ENGINE, WEIGHTS, seed=4)(PROBLEMS, 4, SAMPLING)) != texts(first)


def test_greedy_samples_are_equal():
    greedy = SamplingSettings(greedy=True, max_new_tokens=6)
    rollouts = ProblemSampler(ENGINE, WEIGHTS, seed=0)(PROBLEMS[:1], 2, greedy)[0]
    np.testing.assert_array_equal(rollouts[0].tokens, rollouts[1].tokens)
    assert len(rollouts[0].tokens) <= 6


def test_threads_change_nothing_but_the_order():
    one, several = (
        ProblemSampler(ENGINE, WEIGHTS, seed=3, num_threads=n)(PROBLEMS, 4, SAMPLING)
        for n in (1, 3)
    )
    assert texts(one) == texts(several)
    for a, b in zip(one, several, strict=True):
        np.testing.assert_array_equal(a[0].engine_logprob, b[0].engine_logprob)


def test_an_error_in_a_thread_is_raised_and_all_threads_end():
    before = threading.active_count()
    long = [*PROBLEMS, fake_problem(9, "q" * 40)]
    with pytest.raises(ValueError, match="largest bucket"):
        ProblemSampler(ENGINE, WEIGHTS, seed=3, num_threads=2)(long, 4, SAMPLING)
    assert threading.active_count() == before
    with pytest.raises(AssertionError, match="num_threads"):
        ProblemSampler(ENGINE, WEIGHTS, seed=3, num_threads=0)(PROBLEMS, 4, SAMPLING)


def test_whoever_stops_listening_stops_the_threads():
    before = threading.active_count()
    groups = generate_all(
        ENGINE, WEIGHTS, PROBLEMS * 40, num_samples=2, sampling=SAMPLING, seed=0, num_threads=2
    )
    next(groups)
    groups.close()
    assert threading.active_count() == before
