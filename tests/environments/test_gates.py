"""Gates against Python's own operators on whole rows, read off the prompt."""

import re

import numpy as np
import pytest

from loong_jax import environments
from loong_jax.environments import LEVELS
from loong_jax.environments.gates import NUM_GATES


def row_after(prompt):
    """The answer of a prompt such as `1011&0110^1100`, from the first gate to the last."""
    row = int(prompt[:4], 2)
    for symbol, mask in re.findall(r"([&|^])([01]{4})", prompt):
        row = eval(f"{row}{symbol}0b{mask}")
    return f"{row:04b}"


@pytest.mark.parametrize("level", LEVELS)
def test_gold_is_the_last_row(level):
    judge = environments.get_environment("gates")
    for seed in range(100):
        problem = judge.problem(level, seed)
        assert re.fullmatch(rf"[01]{{4}}([&|^][01]{{4}}){{{NUM_GATES[level]}}}", problem.prompt)
        assert judge.gold(problem) == row_after(problem.prompt)


def test_every_step_is_the_row_so_far():
    judge = environments.get_environment("gates")
    problem = judge.problem(3, 1)
    thinking = judge.solve(problem, np.random.default_rng(0), "careful").thinking
    steps = thinking.split("=")[1:]
    assert steps == [row_after(problem.prompt[: 4 + 5 * count]) for count in range(1, 6)]


def test_gates_are_taken_from_left_to_right():
    """Not by Python's precedence, under which `|` would come last."""
    judge = environments.get_environment("gates")
    prompts = [judge.problem(5, seed).prompt for seed in range(50)]
    as_python = [re.sub("([01]{4})", r"0b\1", prompt) for prompt in prompts]
    by_precedence = [f"{eval(expression):04b}" for expression in as_python]
    ours = [judge.gold(judge.problem(5, seed)) for seed in range(50)]
    assert by_precedence != ours


def test_space_around_the_answer_is_forgiven():
    judge = environments.get_environment("gates")
    problem = judge.problem(1, 0)
    gold = judge.gold(problem)
    assert judge.verify(problem, f" {gold}\n").is_correct
    for answer in (gold[:3], gold + "0", f"0b{gold}", str(int(gold, 2) + 2)):
        assert judge.verify(problem, answer).reason == "format"
