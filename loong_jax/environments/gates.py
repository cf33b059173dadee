"""Logic: rows of fuzzy truth degrees through gates, `9274&3816|2250&7093|1484&5560`.

Degrees run from 0 (false) to 9 (true); a gate combines the row, place by place, with its own
operands: `&` is the smaller degree, `|` the larger (Goedel's many-valued logic). A guess is right
in less than 1 of 100. Working longer helps: one gate looks at two degrees for each place, a leap at
three or more.
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

NUM_PLACES, NUM_DEGREES = 4, 10
GATES = {"&": min, "|": max}
NUM_GATES = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
MAX_ANSWER_CHARS = 16


def after_gate(row: str, gate: Sequence[str]) -> str:
    """The row of degrees after one gate (symbol, operands)."""
    symbol, operands = gate
    return "".join(GATES[symbol](a, b) for a, b in zip(row, operands, strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gates:
    """State: {"row": "9274", "gates": [["&", "3816"], ...]}; the last row is asked for."""

    name: str = "gates"
    domain: Domain = "logic"

    def problem(self, level: int, seed: int) -> Problem:
        environment.check_level(level)
        rng = environment.rng_of(self.name, level, seed)
        count = NUM_GATES[level]
        degrees = rng.integers(NUM_DEGREES, size=(count + 1, NUM_PLACES))
        row, *others = ("".join(map(str, places)) for places in degrees)
        symbols = map(str, rng.choice(list(GATES), count))
        gates = [[symbol, operands] for symbol, operands in zip(symbols, others, strict=True)]
        text = row + "".join(symbol + operands for symbol, operands in gates)
        return environment.make_problem(
            self,
            level=level,
            seed=seed,
            canonical=text,
            prompt=text,
            state={"row": row, "gates": gates},
        )

    def _rows(self, problem: Problem) -> list[str]:
        state = environment.state_of(problem, self)
        return list(itertools.accumulate(state["gates"], after_gate, initial=state["row"]))

    def gold(self, problem: Problem) -> str:
        return self._rows(problem)[-1]

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        rows = self._rows(problem)
        return Response(environment.write_steps(rows[1:], rng, style), rows[-1])

    def verify(self, problem: Problem, answer: Any) -> Verdict:
        """Follows every place alone, through all gates; correct is agreement on all places."""
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", "not a short text")
        answer = answer.strip()
        if not re.fullmatch(f"[0-9]{{{NUM_PLACES}}}", answer, re.ASCII):
            return verdict.wrong("format", f"not {NUM_PLACES} degrees")
        state = environment.state_of(problem, self)
        for place, (degree, claimed) in enumerate(zip(state["row"], answer, strict=True)):
            value = int(degree)
            for symbol, operands in state["gates"]:
                value = GATES[symbol](value, int(operands[place]))
            if value != int(claimed):
                return verdict.wrong("value", f"place {place} is {value}")
        return verdict.correct()

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        per_gate = len(GATES) * NUM_DEGREES**NUM_PLACES
        return NUM_DEGREES**NUM_PLACES * per_gate ** NUM_GATES[level]
