"""Stem: how likely these colours are drawn in this order, without putting back, `3r4b5g6y:rby`.

The answer is a fraction in lowest terms. Working longer helps: one draw is one factor to cancel.
"""

import dataclasses
import itertools
import math
import random
from fractions import Fraction

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_DRAWS = {1: 3, 2: 4, 3: 5, 4: 6, 5: 7}
COLOURS = "rbgy"
NUM_COUNTS = 5  # of balls of a colour: the number of draws, and up to four more


@dataclasses.dataclass(frozen=True, kw_only=True)
class Urn(Worked):
    """State: {"counts": {"r": 3, ...}, "draws": "rby"}; no colour can run out."""

    name: str = "urn"
    domain: Domain = "stem"
    form = "[1-9][0-9]{0,11}/[1-9][0-9]{0,11}"

    def draw(self, level: int, rng: random.Random) -> State:
        fewest = NUM_DRAWS[level]
        return {
            "counts": {colour: fewest + rng.randrange(NUM_COUNTS) for colour in COLOURS},
            "draws": "".join(rng.choices(COLOURS, k=fewest)),
        }

    def text(self, state: State) -> str:
        urn = "".join(f"{count}{colour}" for colour, count in state["counts"].items())
        return f"{urn}:{state['draws']}"

    def chances(self, state: State) -> list[Fraction]:
        """After each draw: of all draws so far."""
        left, factors = dict(state["counts"]), []
        for colour in state["draws"]:
            factors.append(Fraction(left[colour], sum(left.values())))
            left[colour] -= 1
        return list(itertools.accumulate(factors, lambda a, b: a * b))

    def values(self, state: State) -> list[str]:
        return [str(chance) for chance in self.chances(state)]

    def answer(self, state: State) -> str:
        return str(self.chances(state)[-1])

    def flaw(self, state: State, answer: str) -> str | None:
        """Counts ordered draws: those that fit and all of them."""
        claimed, of = map(int, answer.split("/"))
        if math.gcd(claimed, of) != 1:
            return "not in lowest terms"
        draws, counts = state["draws"], state["counts"]
        fitting = math.prod(math.perm(counts[c], draws.count(c)) for c in set(draws))
        possible = math.perm(sum(counts.values()), len(draws))
        return None if claimed * possible == fitting * of else f"{fitting} of {possible} draws fit"

    def num_forms(self, level: int) -> int:
        return NUM_COUNTS ** len(COLOURS) * len(COLOURS) ** NUM_DRAWS[level]
