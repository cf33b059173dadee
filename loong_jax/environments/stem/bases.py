"""Stem: a number from one base into another, `2102_3>7`.

Working longer helps: a digit more is one product and one sum, the whole number is all of them.
"""

import dataclasses
import itertools
import random

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_DIGITS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
MAX_BASE = 9


def digits_of(number: int, base: int) -> str:
    found = ""
    while number:
        number, digit = divmod(number, base)
        found = str(digit) + found
    return found or "0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bases(Worked):
    """State: {"digits": "2102", "base": 3, "wanted": 7}; one answer, without leading zeros."""

    name: str = "bases"
    domain: Domain = "stem"
    form = "[1-9][0-9]{0,40}"

    def draw(self, level: int, rng: random.Random) -> State:
        base, wanted = rng.sample(range(2, MAX_BASE + 1), 2)
        first, *others = (rng.randrange(base) for _ in range(NUM_DIGITS[level]))
        while not first:
            first = rng.randrange(base)
        return {"digits": "".join(map(str, (first, *others))), "base": base, "wanted": wanted}

    def text(self, state: State) -> str:
        return f"{state['digits']}_{state['base']}>{state['wanted']}"

    def numbers(self, state: State) -> list[int]:
        """In decimal: of the first digit, of the first two, ..."""
        base = state["base"]
        return list(itertools.accumulate(map(int, state["digits"]), lambda n, d: n * base + d))

    def values(self, state: State) -> list[str]:
        return [*map(str, self.numbers(state)), self.answer(state)]

    def answer(self, state: State) -> str:
        return digits_of(self.numbers(state)[-1], state["wanted"])

    def flaw(self, state: State, answer: str) -> str | None:
        """Both numbers as sums of powers."""
        wanted = state["wanted"]
        if any(int(digit) >= wanted for digit in answer):
            return f"a digit above {wanted - 1}"
        given, found = (
            sum(int(digit) * base**place for place, digit in enumerate(reversed(digits)))
            for digits, base in ((state["digits"], state["base"]), (answer, wanted))
        )
        return None if given == found else f"{found} in decimal, not {given}"

    def num_forms(self, level: int) -> int:
        count = NUM_DIGITS[level]
        bases = range(2, MAX_BASE + 1)
        return (len(bases) - 1) * sum((base - 1) * base ** (count - 1) for base in bases)
