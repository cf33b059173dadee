"""Stem: the last digit of a running sum, `(9+2+2+9+6)%10`.

Working longer helps: adding one digit is a table of 100 entries, a leap over two already one of 1,000.
Careful: `9+2=1+2=3+9=2+6=8`; hurried: `9+2=1+2=3+9+6=8`.
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
    """State: {"terms": [digits ...]}; the sum modulo 10 is asked for."""

    name: str = "running_sum"
    domain: Domain = "stem"

    def problem(self, level: int, seed: int) -> Problem:
        environment.check_level(level)
        rng = environment.rng_of(self.name, level, seed)
        terms = [int(digit) for digit in rng.integers(10, size=NUM_OPERATIONS[level] + 1)]
        text = "+".join(map(str, terms))
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
        totals = [str(total % 10) for total in itertools.accumulate(terms)]
        thinking = totals[0]
        for block in environment.blocks_of(len(terms) - 1, style):
            addends = "".join(f"+{term}" for term in terms[1:][block])
            thinking += f"{addends}={totals[block.stop]}"
        return Response(thinking, totals[-1])

    def verify(self, problem: Problem, answer: str) -> Verdict:
        """Correct is the one digit that differs from the sum by a multiple of ten."""
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", "not a short text")
        if not re.fullmatch(r"[0-9]", answer.strip(), re.ASCII):
            return verdict.wrong("format", "not one digit")
        residue = (sum(environment.state_of(problem, self)["terms"]) - int(answer)) % 10
        return verdict.correct() if residue == 0 else verdict.wrong("value", f"off by {residue}")

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        return 10 ** (NUM_OPERATIONS[level] + 1)
