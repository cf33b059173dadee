"""Stem: the greatest common divisor, `gcd(20512,4410)`.

A level is the number of divisions that Euclid's algorithm takes: the two numbers are built from the
quotients up. Working longer helps: a solution writes down every remainder.
"""

import dataclasses
import math
import random

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_DIVISIONS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
MAX_QUOTIENT, MAX_DIVISOR = 5, 99


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divisor(Worked):
    """State: {"numbers": [20512, 4410]}."""

    name: str = "divisor"
    domain: Domain = "stem"
    form = "[1-9][0-9]{0,11}"

    def draw(self, level: int, rng: random.Random) -> State:
        larger, smaller = rng.randint(1, MAX_DIVISOR), 0
        for division in range(NUM_DIVISIONS[level]):
            lowest = 2 if division == 0 else 1  # the last quotient is at least 2
            larger, smaller = rng.randint(lowest, MAX_QUOTIENT) * larger + smaller, larger
        return {"numbers": [larger, smaller]}

    def text(self, state: State) -> str:
        return "gcd({},{})".format(*state["numbers"])

    def remainders(self, state: State) -> list[int]:
        larger, smaller = state["numbers"]
        found = []
        while remainder := larger % smaller:
            found.append(remainder)
            larger, smaller = smaller, remainder
        return found

    def values(self, state: State) -> list[str]:
        return [str(remainder) for remainder in self.remainders(state)]

    def answer(self, state: State) -> str:
        return str(self.remainders(state)[-1])

    def flaw(self, state: State, answer: str) -> str | None:
        """It divides both numbers, and what it leaves of them has no factor in common."""
        claimed = int(answer)
        if any(number % claimed for number in state["numbers"]):
            return "it does not divide both numbers"
        more = math.gcd(*(number // claimed for number in state["numbers"]))
        return None if more == 1 else f"{more} times as much divides both, too"

    def num_forms(self, level: int) -> int:
        """Numbers and quotients determine each other."""
        return MAX_DIVISOR * (MAX_QUOTIENT - 1) * MAX_QUOTIENT ** (NUM_DIVISIONS[level] - 1)
