"""Stem: the last digit of a sum of signed digits, `(3+8-5+9+2)%10`.

Working longer helps: one operation on one digit is a table of 180 entries, a leap of two already one
of 3,240.
"""

import dataclasses
import itertools
import re

import numpy as np

from loong_jax.data.response import Response
from loong_jax.environments import environment
from loong_jax.environments.environment import Style
from loong_jax.environments.problem import Domain, Problem
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

NUM_OPERATIONS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
MAX_ANSWER_CHARS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunningSum:
    """State: {"terms": [first digit, signed digits ...]}; the sum modulo 10 is asked for."""

    name: str = "running_sum"
    domain: Domain = "stem"

    def problem(self, level: int, seed: int) -> Problem:
        environment.check_level(level)
        rng = environment.rng_of(self.name, level, seed)
        signs = rng.choice([-1, 1], NUM_OPERATIONS[level])
        terms = [int(rng.integers(10)), *(int(t) for t in signs * rng.integers(1, 10, len(signs)))]
        text = f"{terms[0]}" + "".join(f"{term:+d}" for term in terms[1:])
        return environment.make_problem(
            self,
            level=level,
            seed=seed,
            canonical=text,
            prompt=f"({text})%10",
            state={"terms": terms},
        )

    def gold(self, problem: Problem) -> str:
        return str(sum(environment.state_of(problem, self)["terms"]) % 10)

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        terms = environment.state_of(problem, self)["terms"]
        values = [str(total % 10) for total in itertools.accumulate(terms)]
        return Response(environment.write_steps(values[1:], style), values[-1])

    def verify(self, problem: Problem, answer: str) -> Verdict:
        """Correct is a decimal integer congruent to the sum and already reduced to one digit."""
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", "not a short text")
        if not re.fullmatch(r"[0-9]", answer.strip(), re.ASCII):
            return verdict.wrong("format", "not one digit")
        residue = (sum(environment.state_of(problem, self)["terms"]) - int(answer)) % 10
        return verdict.correct() if residue == 0 else verdict.wrong("value", f"off by {residue}")

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        return 10 * 18 ** NUM_OPERATIONS[level]
