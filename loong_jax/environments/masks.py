"""Code: shorten a program of bit masks to one expression, `xxxx&1101|0010^1000^0110&1011`.

The specification is a straight-line program on the four low bits of x; its operators apply from
left to right, its masks are binary. The answer is a Python expression in x, `x&0b1001^0b0010`, that
must agree with the program wherever both are run, with at most two operators, so a copy of the
program does not fit. A guess is right in 1 of 256, the best one in 1 of 35 to 65. Working longer
helps: thinking runs the program on unknown bits (`x`, its complement `n`, or a known 0 or 1), one
statement is a table of 24 entries for each bit.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from loong_jax.environments.environment import Generator, State, array_rng, shared_sandbox
from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict

NUM_BITS = 4
OPERATORS, SHARES = "&|^", (0.25, 0.25, 0.5)
ONES = {"&": 0.75, "|": 0.25, "^": 0.5}  # share of ones in a mask, so that bits of x survive
MAX_OPERATORS = 2
INPUTS = range(2**NUM_BITS)
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
    """Evaluates the specification at x."""
    for operator, mask in statements:
        number = int(mask, 2)
        x = x & number if operator == "&" else x | number if operator == "|" else x ^ number
    return x


class Masks(Generator):
    """State: {"statements": [["&", "1101"], ...]}."""

    name, domain = "masks", "code"
    form = r"[0-9bx&|^()]+"
    max_answer_chars = 16
    rng = array_rng

    def draw(self, level: int, rng: np.random.Generator) -> State:
        count = level + 3
        operators = [str(operator) for operator in rng.choice(list(OPERATORS), count, p=SHARES)]
        draws = rng.random((count, NUM_BITS))
        statements = [
            [operator, "".join(str(int(draw < ONES[operator])) for draw in row)]
            for operator, row in zip(operators, draws, strict=True)
        ]
        return {"statements": statements}

    def prompt(self, state: State) -> str:
        return "x" * NUM_BITS + "".join(operator + mask for operator, mask in state["statements"])

    def steps(self, state: State) -> list[str]:
        start = "x" * NUM_BITS
        return [*itertools.accumulate(state["statements"], symbols_after, initial=start)][1:]

    def answer(self, state: State) -> str:
        symbols = self.steps(state)[-1]
        kept = "".join("1" if symbol in "xn" else "0" for symbol in symbols)
        flipped = "".join("1" if symbol in "1n" else "0" for symbol in symbols)
        return f"x&0b{kept}^0b{flipped}"

    def flaw(self, state: State, answer: str) -> str | Verdict | None:
        """Runs the answer on every input of four bits; right is agreement on all of them."""
        if sum(answer.count(operator) for operator in OPERATORS) > MAX_OPERATORS:
            return verdict.wrong("format", f"more than {MAX_OPERATORS} operators")
        run = self._run or shared_sandbox().values
        (found,) = run([(answer, [{"x": x} for x in INPUTS])])
        if isinstance(found, str):
            return verdict.wrong("error", found)
        for x, value in zip(INPUTS, found, strict=True):
            expected = run_program(state["statements"], x)
            if value != expected or isinstance(value, bool):
                return f"x={x}: {value!r}, not {expected}"
        return None
