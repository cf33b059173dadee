"""Code: fold a straight-line program over x into one short expression, modulo 10.

The specification is itself a program, `(((x+3)*7)-2)`; the answer, `7*x+9`, must agree with it modulo 10
wherever both are run, in at most seven characters, which a copy of the specification exceeds. Working
longer helps: each statement is a table look-up on a coefficient and a constant.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np

from loong_jax.data.response import Response
from loong_jax.environments import environment
from loong_jax.environments.environment import Style
from loong_jax.environments.problem import Domain, Problem
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

NUM_STATEMENTS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
FACTORS = (3, 7, 9)  # units modulo 10: no coefficient ever vanishes
MAX_ANSWER_CHARS = 7
HIDDEN_INPUTS = (*range(10), 47, 358, -6)
_SHAPE = re.compile(r"[0-9x+*()-]+", re.ASCII)

Runner = Callable[[Sequence[tuple[str, Sequence[dict[str, int]]]]], Sequence[list[int] | str]]
"""Runs each (expression, assignments) in isolation: its values, one for each assignment, or why not."""


def affine_after(form: tuple[int, int], statement: tuple[str, int]) -> tuple[int, int]:
    """(a, b) of `a*x+b` modulo 10 after one statement `+k`, `-k` or `*k`."""
    (a, b), (sign, k) = form, statement
    if sign == "*":
        return a * k % 10, b * k % 10
    return a, (b + k if sign == "+" else b - k) % 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Folding:
    """State: {"statements": [["+", 3], ...]}. Without a runner, answers go to the sandbox."""

    run: Runner | None = None
    name: str = "folding"
    domain: Domain = "code"

    def problem(self, level: int, seed: int) -> Problem:
        environment.check_level(level)
        rng = environment.rng_of(self.name, level, seed)
        signs = rng.choice(list("+-*"), NUM_STATEMENTS[level])
        statements = [
            [str(sign), int(rng.choice(FACTORS) if sign == "*" else rng.integers(1, 10))]
            for sign in signs
        ]
        text = "(" * len(statements) + "x" + "".join(f"{sign}{k})" for sign, k in statements)
        return environment.make_problem(
            self,
            level=level,
            seed=seed,
            canonical=text,
            prompt=text,
            state={"statements": statements},
        )

    def _forms(self, problem: Problem) -> list[tuple[int, int]]:
        forms = [(1, 0)]
        for statement in environment.state_of(problem, self)["statements"]:
            forms.append(affine_after(forms[-1], statement))
        return forms[1:]

    def gold(self, problem: Problem) -> str:
        a, b = self._forms(problem)[-1]
        return f"{a}*x+{b}"

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        values = [f"{a}{b}" for a, b in self._forms(problem)]
        return Response(environment.write_steps(values, style), self.gold(problem))

    def verify(self, problem: Problem, answer: str) -> Verdict:
        """Runs specification and answer on hidden inputs; correct is agreement modulo 10 on all."""
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", f"not a text of at most {MAX_ANSWER_CHARS} characters")
        if not _SHAPE.fullmatch(answer) or "**" in answer:
            return verdict.wrong("format", "not an expression of digits, x, +, -, * and parentheses")
        inputs = [{"x": x} for x in HIDDEN_INPUTS]
        (got,) = self._runner()([(answer, inputs)])
        if isinstance(got, str):
            return verdict.wrong("error", got, isolation="process")
        for x, value in zip(HIDDEN_INPUTS, got, strict=True):
            wanted = x
            for sign, k in environment.state_of(problem, self)["statements"]:
                wanted = wanted * k if sign == "*" else wanted + (k if sign == "+" else -k)
            if (wanted - value) % 10:
                return verdict.wrong("value", f"x={x}: {value}, not {wanted} modulo 10")
        return verdict.correct(f"{len(inputs)} inputs agree", isolation="process")

    def _runner(self) -> Runner:
        if self.run is None:
            raise NotImplementedError  # the sandbox is wired in on its own branch
        return self.run

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        return (9 + 9 + len(FACTORS)) ** NUM_STATEMENTS[level]
