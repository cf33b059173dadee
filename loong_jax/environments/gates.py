"""Logic: a row of four bits goes through gates, `1011&0110^1100|0001&1111`.

Each gate combines the row, bit by bit, with its own mask. A guess is right in 1 of 16, the best one
in 1 of 6. Working longer helps: one gate is a table of 12 entries for each bit, a leap over two
already one of 72.
"""

import dataclasses
import operator
import re

import numpy as np

from loong_jax.data.response import Response
from loong_jax.environments import environment
from loong_jax.environments.environment import Style
from loong_jax.environments.problem import Domain, Problem
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

NUM_BITS = 4
GATES = {"&": operator.and_, "|": operator.or_, "^": operator.xor}
NUM_GATES = {1: 3, 2: 4, 3: 5, 4: 6, 5: 7}
MAX_ANSWER_CHARS = 16


def after_gate(row: str, symbol: str, mask: str) -> str:
    """The row of bits after one gate."""
    return f"{GATES[symbol](int(row, 2), int(mask, 2)):0{len(row)}b}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gates:
    """State: {"row": "1011", "gates": [["&", "0110"], ...]}; the last row is asked for."""

    name: str = "gates"
    domain: Domain = "logic"

    def problem(self, level: int, seed: int) -> Problem:
        environment.check_level(level)
        rng = environment.rng_of(self.name, level, seed)
        count = NUM_GATES[level]
        bits = rng.integers(2, size=(count + 1, NUM_BITS))
        row, *masks = ("".join(map(str, drawn)) for drawn in bits)
        symbols = rng.choice(list(GATES), count)
        gates = [[str(symbol), mask] for symbol, mask in zip(symbols, masks, strict=True)]
        text = row + "".join(symbol + mask for symbol, mask in gates)
        return environment.make_problem(
            self,
            level=level,
            seed=seed,
            canonical=text,
            prompt=text,
            state={"row": row, "gates": gates},
        )

    def _rows(self, problem: Problem) -> list[str]:
        rows = [environment.state_of(problem, self)["row"]]
        for symbol, mask in environment.state_of(problem, self)["gates"]:
            rows.append(after_gate(rows[-1], symbol, mask))
        return rows

    def gold(self, problem: Problem) -> str:
        return self._rows(problem)[-1]

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        rows = self._rows(problem)
        return Response(environment.write_steps(rows[1:], rng, style), rows[-1])

    def verify(self, problem: Problem, answer: object) -> Verdict:
        """Takes every bit through all gates by itself; correct is agreement on all."""
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", "not a short text")
        answer = answer.strip()
        if not re.fullmatch(f"[01]{{{NUM_BITS}}}", answer):
            return verdict.wrong("format", f"not {NUM_BITS} bits")
        state = environment.state_of(problem, self)
        for place, (bit, claimed) in enumerate(zip(state["row"], answer, strict=True)):
            value = int(bit)
            for symbol, mask in state["gates"]:
                value = GATES[symbol](value, int(mask[place]))
            if value != int(claimed):
                return verdict.wrong("value", f"bit {place} is {value}")
        return verdict.correct()

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        return 2**NUM_BITS * (len(GATES) * 2**NUM_BITS) ** NUM_GATES[level]
