"""Mask chains against the operators on all sixteen inputs, read off the prompt."""

import itertools
import re

import numpy as np
import pytest

from loong_jax import environments
from loong_jax.environments import LEVELS
from tests.environments import evaluator


def table_of(prompt):
    """What a prompt such as `xxxx&1101^0110` makes of 0..15."""
    table = np.arange(16)
    for symbol, mask in re.findall(r"([&|^])([01]{4})", prompt):
        apply = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}[symbol]
        table = apply(table, int(mask, 2))
    return table.tolist()


def table(expression):
    return [evaluator.evaluate(expression, {"x": x}) for x in range(16)]


@pytest.fixture(scope="module")
def judge():
    return environments.get_environment("masks", run=evaluator.run)


@pytest.mark.parametrize("level", LEVELS)
def test_gold_does_what_the_prompt_says(judge, level):
    for seed in range(60):
        problem = judge.problem(level, seed)
        assert re.fullmatch(rf"xxxx([&|^][01]{{4}}){{{level + 3}}}", problem.prompt)
        assert table(judge.solve(problem).answer) == table_of(problem.prompt)


def test_every_step_says_what_became_of_each_bit(judge):
    """x, n, 0 or 1: what x = 0000 and x = 1111 give there."""
    of_ends = {("0", "1"): "x", ("1", "0"): "n", ("0", "0"): "0", ("1", "1"): "1"}
    for seed in range(20):
        problem = judge.problem(2, seed)
        for count, step in enumerate(judge.solve(problem).steps, start=1):
            low, *_, high = table_of(problem.prompt[: 4 + 5 * count])
            ends = zip(f"{low:04b}", f"{high:04b}", strict=True)
            assert step == "".join(map(of_ends.get, ends))


def test_accepts_exactly_the_expressions_that_agree(judge):
    """`(x&A)^B`, `(x^B)&A` and others, in decimal or binary, whether gold is written so or not."""
    problem = judge.problem(1, 4)
    wanted = table_of(problem.prompt)
    forms = ("x&{}^{}", "(x&{})^{}", "(x^{})&{}", "(x|{})^{}", "(x&{})|{}", "{}^x&{}")
    num_accepted = 0
    for form, a, b in itertools.product(forms, range(16), range(16)):
        answer = form.format(a, b)
        accepted = judge.verify(problem, answer).is_correct
        assert accepted == (table(answer) == wanted), answer
        num_accepted += accepted
    assert num_accepted >= 3


def test_an_answer_that_is_shorter_than_the_gold_is_accepted(judge):
    """Where a mask has no say it may be left out."""
    plain = next(
        problem
        for problem in (judge.problem(1, seed) for seed in range(500))
        if judge.solve(problem).answer.endswith("^0b0000")
    )
    assert judge.verify(plain, judge.solve(plain).answer.partition("^")[0]).is_correct
    assert judge.verify(plain, f"({judge.solve(plain).answer[:8]})").is_correct


def test_a_copy_of_the_specification_does_not_fit(judge):
    for seed in range(20):
        problem = judge.problem(1, seed)
        copied = re.sub("([01]{4})", r"0b\1", problem.prompt.replace("xxxx", "x"))
        assert judge.verify(problem, copied).reason == "format"
    for form in ("x&7|1^2", "x^x^x^x", "x&7|(1^2)"):
        assert judge.verify(judge.problem(1, 0), form).evidence == "more than 2 operators"


def test_an_answer_that_cannot_be_run_says_why(judge):
    judged = judge.verify(judge.problem(1, 0), "x&")
    assert (judged.outcome, judged.reason) == ("wrong", "error")
    assert "SyntaxError" in judged.evidence


def test_a_boolean_is_no_number():
    judge = environments.get_environment("masks", run=lambda runs: [[True] * 16])
    problem = next(
        p for p in (judge.problem(5, seed) for seed in range(999))
        if judge.solve(p).answer == "x&0b0000^0b0001"
    )  # fmt: skip
    assert judge.verify(problem, "1").reason == "value"
