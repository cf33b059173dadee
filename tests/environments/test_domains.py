"""Each environment against an oracle that reads the prompt, not the state."""

import re

import numpy as np
import pytest

from loong_jax.environments.gates import Gates
from loong_jax.environments.masks import Masks
from loong_jax.environments.vector_sum import VectorSum
from loong_jax.verifiers.runner import SandboxRunner
from tests.environments import arithmetic


def operations(prompt):
    return re.findall(r"([-+&|^])(\w{4})", prompt)


@pytest.mark.parametrize("seed", range(30))
def test_vector_sum_against_base_three_arrays(seed):
    problem = VectorSum().problem(1 + seed % 5, seed)
    total = np.array([int(c) for c in problem.prompt[:4]])
    for sign, digits in operations(problem.prompt):
        total = total + (1 if sign == "+" else 2) * np.array([int(c) for c in digits])
    assert VectorSum().gold(problem) == "".join(str(t % 3) for t in total)


@pytest.mark.parametrize("seed", range(30))
def test_gates_against_numpy(seed):
    problem = Gates().problem(1 + seed % 5, seed)
    row = np.array([int(c) for c in problem.prompt[:4]])
    for symbol, digits in operations(problem.prompt):
        row = (np.minimum if symbol == "&" else np.maximum)(row, [int(c) for c in digits])
    assert Gates().gold(problem) == "".join(map(str, row))


def folded(prompt, x):
    for operator, mask in operations(prompt):
        x = {"&": x & int(mask, 2), "|": x | int(mask, 2), "^": x ^ int(mask, 2)}[operator]
    return x


@pytest.mark.parametrize("seed", range(30))
def test_masks_against_the_program(seed):
    problem = Masks().problem(1 + seed % 5, seed)
    gold = Masks().gold(problem)
    kept, flipped = (int(mask, 2) for mask in re.findall(r"0b([01]{4})", gold))
    assert all((x & kept ^ flipped) == folded(problem.prompt, x) for x in range(16))


def test_masks_accepts_any_equivalent_form_and_nothing_else():
    masks = Masks(run=arithmetic.run)
    problem = masks.problem(1, 0)
    kept, flipped = (int(m, 2) for m in re.findall(r"0b([01]{4})", masks.gold(problem)))
    assert masks.verify(problem, f"x&{kept}^{flipped}").is_correct
    assert masks.verify(problem, f"{flipped}^({kept}&x)").is_correct
    accepted = [
        (a, b)
        for a in range(16)
        for b in range(16)
        if masks.verify(problem, f"x&{a}^{b}").is_correct
    ]
    assert accepted == [(kept, flipped)]


def test_masks_refuses_a_copy_of_the_program_and_broken_code():
    masks = Masks(run=arithmetic.run)
    problem = masks.problem(1, 0)
    assert masks.verify(problem, "x&7|1^2").outcome == "wrong"  # three operators
    assert masks.verify(problem, "x&7|1^2").reason == "format"
    assert masks.verify(problem, "x&").reason == "error"
    assert masks.verify(problem, "b").reason == "error"


def test_masks_runs_answers_in_the_sandbox():
    runner = SandboxRunner()
    try:
        masks = Masks(run=runner)
        problem = masks.problem(2, 0)
        assert masks.verify(problem, masks.gold(problem)).is_correct
        assert masks.verify(problem, "x&0b0101^x").outcome == "wrong"
        assert masks.verify(problem, "x^").outcome == "wrong"
    finally:
        runner.close()
