"""Stem: the sum of two numbers, `47 + 38 = `, a prompt that a pretrained model completes.

A level is one digit more. Working longer helps: a solution adds column by column, each with the
carry of the one before.
"""

import dataclasses
import itertools
import random

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_DIGITS = {1: 2, 2: 3, 3: 4, 4: 5, 5: 6}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Addition(Worked):
    """State: {"terms": [47, 38]}."""

    name: str = "addition"
    domain: Domain = "stem"
    form = "[1-9][0-9]{0,7}"

    def draw(self, level: int, rng: random.Random) -> State:
        lowest = 10 ** (NUM_DIGITS[level] - 1)
        return {"terms": [rng.randrange(lowest, 10 * lowest) for _ in range(2)]}

    def text(self, state: State) -> str:
        return "{} + {} = ".format(*state["terms"])

    def canonical(self, state: State) -> str:
        """In either order it is the same problem."""
        return "+".join(map(str, sorted(state["terms"])))

    def values(self, state: State) -> list[str]:
        columns = zip(*(map(int, str(term)[::-1]) for term in state["terms"]), strict=True)
        totals = itertools.accumulate(
            (sum(column) for column in columns), lambda total, column: total // 10 + column
        )
        return [*map(str, totals), self.answer(state)]

    def answer(self, state: State) -> str:
        return str(sum(state["terms"]))

    def flaw(self, state: State, answer: str) -> str | None:
        """Takes the first term away, digit by digit, and looks for the second."""
        first, second = (str(term) for term in state["terms"])
        left, borrowed = "", 0
        for digit, taken in zip(answer[::-1], first[::-1].ljust(len(answer), "0"), strict=False):
            borrowed, rest = divmod(int(digit) - int(taken) + borrowed, 10)
            left = f"{rest}{left}"
        if borrowed or len(answer) < len(first) or left.lstrip("0") != second:
            return f"less {first} it is not {second}"
        return None

    def num_forms(self, level: int) -> int:
        count = 9 * 10 ** (NUM_DIGITS[level] - 1)
        return count * (count + 1) // 2
