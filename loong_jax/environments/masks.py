"""Code: fold a program of bit masks over x into one expression, `x&=110;x^=011` into `x&6^3`.

The specification is a straight-line program on the last three bits of x; masks are written in binary.
The answer is an expression in x that must agree with it wherever both are run, in at most nine
characters, so a copy of the specification does not fit. Every such program equals `x & A ^ B` for
two masks A and B. Working longer helps: one statement is a table of 12 entries for each bit of A and
of B, a leap over two already one of 72.
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
NUM_BITS = 3
SYMBOLS, SHARES = ("&", "|", "^"), (0.25, 0.25, 0.5)
ONES = {"&": 0.75, "|": 0.25, "^": 0.5}  # share of ones in a mask, so that bits of x survive
MAX_ANSWER_CHARS = 9
INPUTS = range(2**NUM_BITS)
_SHAPE = re.compile(r"[0-9x&|^()]+", re.ASCII)

Statement = tuple[str, str]  # symbol, mask in binary
Form = tuple[int, int]  # A, B of `x & A ^ B`
Runner = Callable[[Sequence[tuple[str, Sequence[dict[str, int]]]]], Sequence[list[int] | str]]
"""Runs each (expression, assignments) in isolation: its values, one each, or why there are none."""


def form_after(form: Form, statement: Statement) -> Form:
    """A and B of `x & A ^ B` after one more statement."""
    (a, b), (symbol, mask) = form, (statement[0], int(statement[1], 2))
    if symbol == "&":
        return a & mask, b & mask
    if symbol == "|":
        return a & ~mask, b | mask
    return a, b ^ mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masks:
    """State: {"statements": [["&", "110"], ...]}. Without a runner, answers go to the sandbox."""

    run: Runner | None = None
    name: str = "masks"
    domain: Domain = "code"

    def problem(self, level: int, seed: int) -> Problem:
        environment.check_level(level)
        rng = environment.rng_of(self.name, level, seed)
        statements = []
        for symbol in rng.choice(SYMBOLS, NUM_STATEMENTS[level], p=SHARES):
            bits = rng.random(NUM_BITS) < ONES[str(symbol)]
            statements.append([str(symbol), "".join(str(int(bit)) for bit in bits)])
        text = ";".join(f"x{symbol}={mask}" for symbol, mask in statements)
        return environment.make_problem(
            self,
            level=level,
            seed=seed,
            canonical=text,
            prompt=text,
            state={"statements": statements},
        )

    def _forms(self, problem: Problem) -> list[Form]:
        forms: list[Form] = [(2**NUM_BITS - 1, 0)]
        for symbol, mask in environment.state_of(problem, self)["statements"]:
            forms.append(form_after(forms[-1], (symbol, mask)))
        return forms[1:]

    def gold(self, problem: Problem) -> str:
        a, b = self._forms(problem)[-1]
        return f"x&{a}^{b}"

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        values = [f"{a:0{NUM_BITS}b}{b:0{NUM_BITS}b}" for a, b in self._forms(problem)]
        return Response(environment.write_steps(values, rng, style), self.gold(problem))

    def verify(self, problem: Problem, answer: str) -> Verdict:
        """Runs the answer on every input of three bits; correct is agreement on all of them."""
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", f"not a text of at most {MAX_ANSWER_CHARS} characters")
        if not _SHAPE.fullmatch(answer):
            return verdict.wrong("format", "not an expression of digits, x, &, |, ^ and parentheses")
        (found,) = self._runner()([(answer, [{"x": x} for x in INPUTS])])
        if isinstance(found, str):
            return verdict.wrong("error", found)
        for x, value in zip(INPUTS, found, strict=True):
            expected = self._expected(problem, x)
            if value != expected or isinstance(value, bool):
                return verdict.wrong("value", f"x={x}: {value!r}, not {expected}")
        return verdict.correct(f"{len(INPUTS)} inputs agree")

    def _expected(self, problem: Problem, x: int) -> int:
        for symbol, mask in environment.state_of(problem, self)["statements"]:
            number = int(mask, 2)
            x = x & number if symbol == "&" else x | number if symbol == "|" else x ^ number
        return x

    def _runner(self) -> Runner:
        if self.run is not None:
            return self.run
        from loong_jax.verifiers.runner import SandboxRunner

        return SandboxRunner()

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        return (len(SYMBOLS) * 2**NUM_BITS) ** NUM_STATEMENTS[level]
