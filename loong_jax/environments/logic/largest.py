"""Logic: the largest of some numbers, `Which number is the largest: 415, 87, 602, 233?`.

A level is one number more. Working longer helps: a solution goes through the numbers and writes
down the largest so far.
"""

import dataclasses
import itertools
import math
import random

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_NUMBERS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
NUMBERS = range(10, 1000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Largest(Worked):
    """State: {"numbers": [415, 87, 602, 233]}, all different."""

    name: str = "largest"
    domain: Domain = "logic"
    form = "[1-9][0-9]{1,2}"

    def draw(self, level: int, rng: random.Random) -> State:
        return {"numbers": rng.sample(NUMBERS, NUM_NUMBERS[level])}

    def text(self, state: State) -> str:
        return f"Which number is the largest: {', '.join(map(str, state['numbers']))}?"

    def canonical(self, state: State) -> str:
        """In any order it is the same problem."""
        return ",".join(map(str, sorted(state["numbers"])))

    def values(self, state: State) -> list[str]:
        return [str(n) for n in itertools.accumulate(state["numbers"], max)]

    def answer(self, state: State) -> str:
        return self.values(state)[-1]

    def flaw(self, state: State, answer: str) -> str | None:
        """It is one of the numbers, and none is above it."""
        claimed = int(answer)
        if claimed not in state["numbers"]:
            return "not one of the numbers"
        above = next((n for n in state["numbers"] if n > claimed), None)
        return None if above is None else f"{above} is larger"

    def num_forms(self, level: int) -> int:
        return math.comb(len(NUMBERS), NUM_NUMBERS[level])
