"""Vector sums against a sum of integer arrays, read off the prompt."""

import re

import numpy as np
import pytest

from loong_jax import environments
from loong_jax.environments import LEVELS
from loong_jax.environments.vector_sum import NUM_OPERATIONS


def summed(prompt):
    """The answer of a prompt such as `2012+2010-1201`."""
    terms = re.findall(r"([+-]?)([0-2]{4})", prompt)
    signs = np.array([-1 if sign == "-" else 1 for sign, _ in terms])
    vectors = np.array([list(map(int, vector)) for _, vector in terms])
    return "".join(map(str, (signs @ vectors) % 3))


@pytest.mark.parametrize("level", LEVELS)
def test_gold_is_the_sum(level):
    judge = environments.get_environment("vector_sum")
    for seed in range(100):
        problem = judge.problem(level, seed)
        assert re.fullmatch(
            rf"[0-2]{{4}}([+-][0-2]{{4}}){{{NUM_OPERATIONS[level]}}}", problem.prompt
        )
        assert judge.gold(problem) == summed(problem.prompt)


def test_every_step_is_the_sum_so_far():
    judge = environments.get_environment("vector_sum")
    problem = judge.problem(2, 3)
    thinking = judge.solve(problem, np.random.default_rng(0), "careful").thinking
    steps = thinking.split("=")[1:]
    assert steps == [summed(problem.prompt[: 4 + 5 * count]) for count in range(1, 6)]


def test_space_around_the_answer_is_forgiven():
    judge = environments.get_environment("vector_sum")
    problem = judge.problem(1, 0)
    gold = judge.gold(problem)
    assert judge.verify(problem, f" {gold}\n").is_correct
    for answer in (gold[:3], gold + gold[0], " ".join(gold), f"+{gold}"):
        assert judge.verify(problem, answer).reason == "format"
