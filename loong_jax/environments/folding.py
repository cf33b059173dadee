"""Code: fold a straight-line program over x into one short expression, modulo 5.

The specification is itself a program, `x+=3;x*=2;x-=4;x*=3`; the answer, `1*x+1`, must agree with
it modulo 5 wherever both are run, in at most seven characters. A guess is right in 1 of 20. Working
longer helps: one statement is a small table for the coefficient and one for the constant, a leap
composes two.
"""

import dataclasses
import re

import numpy as np

from loong_jax.data.response import Response
from loong_jax.environments import environment, runner
from loong_jax.environments.environment import Style
from loong_jax.environments.problem import Domain, Problem
from loong_jax.environments.runner import Runner
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

NUM_STATEMENTS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
MODULUS = 5
ADDENDS = (1, 2, 3, 4)
FACTORS = (2, 3, 4)  # units: no coefficient ever vanishes
MAX_ANSWER_CHARS = 7
HIDDEN_INPUTS = (*range(10), 47, 38, -6)
_SHAPE = re.compile(r"[0-9x+*()-]+", re.ASCII)


def affine_after(form: tuple[int, int], sign: str, k: int) -> tuple[int, int]:
    """(a, b) of `a*x+b` modulo 5 after one statement `x+=k`, `x-=k` or `x*=k`."""
    a, b = form
    if sign == "*":
        return a * k % MODULUS, b * k % MODULUS
    return a, (b + k if sign == "+" else b - k) % MODULUS


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
            [str(sign), int(rng.choice(FACTORS if sign == "*" else ADDENDS))] for sign in signs
        ]
        text = ";".join(f"x{sign}={k}" for sign, k in statements)
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
            forms.append(affine_after(forms[-1], *statement))
        return forms[1:]

    def gold(self, problem: Problem) -> str:
        a, b = self._forms(problem)[-1]
        return f"{a}*x+{b}"

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        values = [f"{a}x+{b}" for a, b in self._forms(problem)]
        return Response(environment.write_steps(values, rng, style), self.gold(problem))

    def verify(self, problem: Problem, answer: object) -> Verdict:
        """Runs specification and answer on hidden inputs; correct is agreement modulo 5 on all."""
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", f"not a text of at most {MAX_ANSWER_CHARS} characters")
        if not _SHAPE.fullmatch(answer) or "**" in answer:
            return verdict.wrong("format", "not an expression of digits, x, +, -, * and brackets")
        inputs = [{"x": x} for x in HIDDEN_INPUTS]
        run = self.run or runner.shared()
        (got,) = run([(answer, inputs)])
        if isinstance(got, str):
            return verdict.wrong("error", got)
        for x, value in zip(HIDDEN_INPUTS, got, strict=True):
            wanted = x
            for sign, k in environment.state_of(problem, self)["statements"]:
                wanted = wanted * k if sign == "*" else wanted + (k if sign == "+" else -k)
            if (wanted - value) % MODULUS:
                return verdict.wrong("value", f"x={x}: {value}, not {wanted} modulo {MODULUS}")
        return verdict.correct(f"{len(inputs)} inputs agree")

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        return (2 * len(ADDENDS) + len(FACTORS)) ** NUM_STATEMENTS[level]
