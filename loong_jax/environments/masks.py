"""Code: shorten a program of bit masks to one expression, `xxxx&1101|0010^1000^0110&1011`.

The specification is a straight-line program on the four low bits of x; its operators apply from
left to right, its masks are binary. The answer is a Python expression in x, `x&0b1001^0b0010`, that
must agree with the program wherever both are run, with at most two operators, so a copy of the
program does not fit. A guess is right in 1 of 256, the best one in 1 of 35 to 65. Working longer
helps: thinking runs the program on unknown bits (`x`, its complement `n`, or a known 0 or 1), one
statement is a table of 24 entries for each bit.
"""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from loong_jax.data.response import Response
from loong_jax.environments import environment, runner
from loong_jax.environments.environment import Style
from loong_jax.environments.problem import Domain, Problem
from loong_jax.environments.runner import Runner
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

NUM_STATEMENTS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
NUM_BITS = 4
OPERATORS, SHARES = "&|^", (0.25, 0.25, 0.5)
ONES = {"&": 0.75, "|": 0.25, "^": 0.5}  # share of ones in a mask, so that bits of x survive
MAX_OPERATORS, MAX_ANSWER_CHARS = 2, 16
INPUTS = range(2**NUM_BITS)
_SHAPE = re.compile(r"[0-9bx&|^()]+", re.ASCII)
_COMPLEMENT = {"0": "1", "1": "0", "x": "n", "n": "x"}

Statement = Sequence[str]  # operator, mask in binary


def symbols_after(symbols: str, statement: Statement) -> str:
    """Bits as functions of the bits of x (`0`, `1`, `x`, `n` = not x) after one more statement."""
    operator, mask = statement
    if operator == "&":
        return "".join(s if bit == "1" else "0" for s, bit in zip(symbols, mask, strict=True))
    if operator == "|":
        return "".join("1" if bit == "1" else s for s, bit in zip(symbols, mask, strict=True))
    return "".join(
        _COMPLEMENT[s] if bit == "1" else s for s, bit in zip(symbols, mask, strict=True)
    )


def run_program(statements: Sequence[Statement], x: int) -> int:
    """What the specification computes from x."""
    for operator, mask in statements:
        number = int(mask, 2)
        x = x & number if operator == "&" else x | number if operator == "|" else x ^ number
    return x


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masks:
    """State: {"statements": [["&", "1101"], ...]}. Without a runner, answers go to the sandbox."""

    run: Runner | None = None
    name: str = "masks"
    domain: Domain = "code"

    def problem(self, level: int, seed: int) -> Problem:
        environment.check_level(level)
        rng = environment.rng_of(self.name, level, seed)
        count = NUM_STATEMENTS[level]
        operators = [str(operator) for operator in rng.choice(list(OPERATORS), count, p=SHARES)]
        draws = rng.random((count, NUM_BITS))
        statements = [
            [operator, "".join(str(int(draw < ONES[operator])) for draw in row)]
            for operator, row in zip(operators, draws, strict=True)
        ]
        text = "x" * NUM_BITS + "".join(operator + mask for operator, mask in statements)
        return environment.make_problem(
            self,
            level=level,
            seed=seed,
            canonical=text,
            prompt=text,
            state={"statements": statements},
        )

    def _symbols(self, problem: Problem) -> list[str]:
        statements = environment.state_of(problem, self)["statements"]
        return list(itertools.accumulate(statements, symbols_after, initial="x" * NUM_BITS))

    def gold(self, problem: Problem) -> str:
        symbols = self._symbols(problem)[-1]
        kept = "".join("1" if symbol in "xn" else "0" for symbol in symbols)
        flipped = "".join("1" if symbol in "1n" else "0" for symbol in symbols)
        return f"x&0b{kept}^0b{flipped}"

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        values = self._symbols(problem)[1:]
        return Response(environment.write_steps(values, rng, style), self.gold(problem))

    def verify(self, problem: Problem, answer: Any) -> Verdict:
        """Runs the answer on every input of four bits; correct is agreement on all of them."""
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", f"not a text of at most {MAX_ANSWER_CHARS} characters")
        if not _SHAPE.fullmatch(answer):
            return verdict.wrong("format", "not an expression of x, masks, &, |, ^ and parentheses")
        if sum(answer.count(operator) for operator in OPERATORS) > MAX_OPERATORS:
            return verdict.wrong("format", f"more than {MAX_OPERATORS} operators")
        statements = environment.state_of(problem, self)["statements"]
        run = self.run or runner.shared()
        (found,) = run([(answer, [{"x": x} for x in INPUTS])])
        if isinstance(found, str):
            return verdict.wrong("error", found)
        for x, value in zip(INPUTS, found, strict=True):
            expected = run_program(statements, x)
            if value != expected or isinstance(value, bool):
                return verdict.wrong("value", f"x={x}: {value!r}, not {expected}")
        return verdict.correct(f"{len(INPUTS)} inputs agree")

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        return (len(OPERATORS) * 2**NUM_BITS) ** NUM_STATEMENTS[level]
