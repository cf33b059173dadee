"""Folded programs against Python itself, running the prompt."""

import itertools
import re

import numpy as np
import pytest

from loong_jax import environments
from loong_jax.environments import LEVELS
from loong_jax.environments.folding import NUM_STATEMENTS
from tests.environments import evaluator


def values_of(prompt, xs=range(-7, 60)):
    """What the program `x+=3;x*=2` makes of each x, modulo 5."""
    values = []
    for x in xs:
        names = {"x": x}
        exec(prompt, names)
        values.append(names["x"] % 5)
    return values


def values(expression, xs=range(-7, 60)):
    return [evaluator.evaluate(expression, {"x": x}) % 5 for x in xs]


@pytest.fixture(scope="module")
def judge():
    return environments.get_environment("folding", run=evaluator.run)


@pytest.mark.parametrize("level", LEVELS)
def test_gold_does_what_the_program_does(judge, level):
    for seed in range(30):
        problem = judge.problem(level, seed)
        statement = r"x[+\-]=[1-4]|x\*=[2-4]"
        parts = problem.prompt.split(";")
        assert len(parts) == NUM_STATEMENTS[level]
        assert all(re.fullmatch(statement, part) for part in parts)
        assert values(judge.gold(problem)) == values_of(problem.prompt)


def test_every_step_is_the_program_so_far(judge):
    for seed in range(10):
        problem = judge.problem(3, seed)
        thinking = judge.solve(problem, np.random.default_rng(0), "careful").thinking
        for count, step in enumerate(thinking.split("=")[1:], start=1):
            so_far = ";".join(problem.prompt.split(";")[:count])
            assert values(step.replace("x", "*x")) == values_of(so_far)


def test_accepts_exactly_the_expressions_that_agree(judge):
    problem = judge.problem(1, 2)
    wanted = values_of(problem.prompt)
    forms = ("{}*x+{}", "{}*x-{}", "{}-x*{}", "{}*(x+{})", "x*{}--{}")
    num_accepted = 0
    for form, a, b in itertools.product(forms, range(10), range(10)):
        answer = form.format(a, b)
        accepted = judge.verify(problem, answer).is_correct
        assert accepted == (values(answer) == wanted), answer
        num_accepted += accepted
    assert num_accepted >= 4


def test_longer_answers_are_refused_even_where_they_agree(judge):
    problem = judge.problem(1, 2)
    gold = judge.gold(problem)
    assert judge.verify(problem, f"({gold})").is_correct
    assert judge.verify(problem, f"(({gold}))").reason == "format"


def test_an_answer_that_cannot_be_run_says_why(judge):
    judged = judge.verify(judge.problem(1, 0), "1*x+")
    assert (judged.outcome, judged.reason) == ("wrong", "error")
    assert "SyntaxError" in judged.evidence
