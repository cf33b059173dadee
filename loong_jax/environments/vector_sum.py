"""Stem: sums and differences of vectors in (Z/3)^4, `2012+2010-1201`.

The digits are coordinates; each is added modulo 3 by itself. A guess is right in 1 of 81. Working
longer helps: for each coordinate one operation is a table of 18 entries, a leap over two of 108.
"""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from loong_jax.data.response import Response
from loong_jax.environments import environment
from loong_jax.environments.environment import Style
from loong_jax.environments.problem import Domain, Problem
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

MODULUS, NUM_COORDINATES = 3, 4
NUM_OPERATIONS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
MAX_ANSWER_CHARS = 16


def after_operation(vector: str, operation: Sequence[str]) -> str:
    """The vector after one operation (sign, other vector)."""
    sign, other = operation
    direction = 1 if sign == "+" else -1
    return "".join(
        str((int(x) + direction * int(y)) % MODULUS) for x, y in zip(vector, other, strict=True)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorSum:
    """State: {"start": "2012", "operations": [["+", "2010"], ...]}; asks for the last vector."""

    name: str = "vector_sum"
    domain: Domain = "stem"

    def problem(self, level: int, seed: int) -> Problem:
        environment.check_level(level)
        rng = environment.rng_of(self.name, level, seed)
        count = NUM_OPERATIONS[level]
        digits = rng.integers(MODULUS, size=(count + 1, NUM_COORDINATES))
        start, *others = ("".join(map(str, row)) for row in digits)
        operations = [
            [str(s), v] for s, v in zip(rng.choice(["+", "-"], count), others, strict=True)
        ]
        text = start + "".join(sign + vector for sign, vector in operations)
        return environment.make_problem(
            self,
            level=level,
            seed=seed,
            canonical=text,
            prompt=text,
            state={"start": start, "operations": operations},
        )

    def _vectors(self, problem: Problem) -> list[str]:
        state = environment.state_of(problem, self)
        return list(
            itertools.accumulate(state["operations"], after_operation, initial=state["start"])
        )

    def gold(self, problem: Problem) -> str:
        return self._vectors(problem)[-1]

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        vectors = self._vectors(problem)
        return Response(environment.write_steps(vectors[1:], rng, style), vectors[-1])

    def verify(self, problem: Problem, answer: Any) -> Verdict:
        """Sums each coordinate as a whole number; correct is agreement modulo 3 on all of them."""
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", "not a short text")
        answer = answer.strip()
        if not re.fullmatch(f"[0-{MODULUS - 1}]{{{NUM_COORDINATES}}}", answer):
            return verdict.wrong("format", f"not {NUM_COORDINATES} digits below {MODULUS}")
        state = environment.state_of(problem, self)
        for place, claimed in enumerate(answer):
            total = int(state["start"][place])
            for sign, vector in state["operations"]:
                total += int(sign + vector[place])
            if (total - int(claimed)) % MODULUS:
                return verdict.wrong("value", f"coordinate {place} is {total} modulo {MODULUS}")
        return verdict.correct()

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        per_operation = 2 * MODULUS**NUM_COORDINATES
        return MODULUS**NUM_COORDINATES * per_operation ** NUM_OPERATIONS[level]
