"""Code: fold a chain of bit operations into one expression: `xxxx&1101^0110`, `x&0b1101^0b0110`.

The specification works on four bits of an unknown x, written `xxxx`, mask after mask. The answer is
a Python expression in x that must agree with it wherever both are run, in at most fifteen
characters, so a copy of the specification does not fit. After any such chain each bit is 0, 1, x or
its negation n, so the whole is `x & A ^ B` for two masks A and B; there are 256 of them. Working
longer helps: one operation is a table of 24 entries for each bit, a leap over two one of 144.
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

NUM_BITS = 4
NUM_OPERATIONS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
SYMBOLS, SHARES = ("&", "|", "^"), (0.25, 0.25, 0.5)
ONES = {"&": 0.75, "|": 0.25, "^": 0.5}  # share of ones in a mask, so that bits of x survive
MAX_ANSWER_CHARS = 15
INPUTS = range(2**NUM_BITS)
_SHAPE = re.compile(r"[0-9bx&|^()]+", re.ASCII)


def bit_after(bit: str, symbol: str, mask: str) -> str:
    """What becomes of one bit (0, 1, x or n) under one bit of a mask."""
    if symbol == "&":
        return bit if mask == "1" else "0"
    if symbol == "|":
        return "1" if mask == "1" else bit
    return bit if mask == "0" else {"0": "1", "1": "0", "x": "n", "n": "x"}[bit]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masks:
    """State: {"operations": [["&", "1101"], ...]}. Without a runner, answers go to the sandbox."""

    run: Runner | None = None
    name: str = "masks"
    domain: Domain = "code"

    def problem(self, level: int, seed: int) -> Problem:
        environment.check_level(level)
        rng = environment.rng_of(self.name, level, seed)
        operations = []
        for symbol in rng.choice(SYMBOLS, NUM_OPERATIONS[level], p=SHARES):
            bits = rng.random(NUM_BITS) < ONES[str(symbol)]
            operations.append([str(symbol), "".join(str(int(bit)) for bit in bits)])
        text = "x" * NUM_BITS + "".join(symbol + mask for symbol, mask in operations)
        return environment.make_problem(
            self,
            level=level,
            seed=seed,
            canonical=text,
            prompt=text,
            state={"operations": operations},
        )

    def _rows(self, problem: Problem) -> list[str]:
        """The four bits after each operation."""
        rows = ["x" * NUM_BITS]
        for symbol, mask in environment.state_of(problem, self)["operations"]:
            pairs = zip(rows[-1], mask, strict=True)
            rows.append("".join(bit_after(bit, symbol, m) for bit, m in pairs))
        return rows[1:]

    def gold(self, problem: Problem) -> str:
        last = self._rows(problem)[-1]
        kept = "".join("1" if bit in "xn" else "0" for bit in last)
        flipped = "".join("1" if bit in "1n" else "0" for bit in last)
        return f"x&0b{kept}^0b{flipped}"

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        rows = self._rows(problem)
        return Response(environment.write_steps(rows, rng, style), self.gold(problem))

    def verify(self, problem: Problem, answer: object) -> Verdict:
        """Runs the answer on every input of four bits; correct is agreement on all of them."""
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", f"not a text of at most {MAX_ANSWER_CHARS} characters")
        if not _SHAPE.fullmatch(answer):
            return verdict.wrong("format", "not an expression of numbers, x, &, |, ^ and brackets")
        run = self.run or runner.shared()
        (found,) = run([(answer, [{"x": x} for x in INPUTS])])
        if isinstance(found, str):
            return verdict.wrong("error", found)
        for x, value in zip(INPUTS, found, strict=True):
            expected = self._expected(problem, x)
            if value != expected or isinstance(value, bool):
                return verdict.wrong("value", f"x={x}: {value!r}, not {expected}")
        return verdict.correct(f"{len(INPUTS)} inputs agree")

    def _expected(self, problem: Problem, x: int) -> int:
        for symbol, mask in environment.state_of(problem, self)["operations"]:
            number = int(mask, 2)
            x = x & number if symbol == "&" else x | number if symbol == "|" else x ^ number
        return x

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        return (len(SYMBOLS) * 2**NUM_BITS) ** NUM_OPERATIONS[level]
