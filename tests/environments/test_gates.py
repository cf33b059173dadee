"""Gates against minima and maxima of whole rows, read off the prompt."""

import re

import numpy as np
import pytest

from loong_jax import environments
from loong_jax.environments import LEVELS
from loong_jax.environments.gates import NUM_GATES


def row_after(prompt):
    """The answer of a prompt such as `9274&3816|2250`, from the first gate to the last."""
    row = np.array(list(map(int, prompt[:4])))
    for symbol, operands in re.findall("([&|])([0-9]{4})", prompt):
        combine = np.minimum if symbol == "&" else np.maximum
        row = combine(row, list(map(int, operands)))
    return "".join(map(str, row))


@pytest.fixture(scope="module")
def judge():
    return environments.get_environment("gates")


@pytest.mark.parametrize("level", LEVELS)
def test_gold_is_the_last_row(judge, level):
    for seed in range(100):
        problem = judge.problem(level, seed)
        assert re.fullmatch(rf"[0-9]{{4}}([&|][0-9]{{4}}){{{NUM_GATES[level]}}}", problem.prompt)
        assert judge.gold(problem) == row_after(problem.prompt)


def test_every_step_is_the_row_so_far(judge):
    for seed in range(10):
        problem = judge.problem(3, seed)
        thinking = judge.solve(problem, np.random.default_rng(0), "careful").thinking
        steps = thinking.split("=")[1:]
        assert steps == [row_after(problem.prompt[: 4 + 5 * count]) for count in range(1, 7)]


def test_space_around_the_answer_is_forgiven(judge):
    problem = judge.problem(1, 0)
    gold = judge.gold(problem)
    assert judge.verify(problem, f" {gold}\n").is_correct
    for answer in (gold[:3], gold + "0", " ".join(gold), f"+{gold}"):
        assert judge.verify(problem, answer).reason == "format"
