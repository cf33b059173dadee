"""Stem: sums of fractions in lowest terms, `1/4+2/3-1/6+3/4`.

Working longer helps: a sum of two fractions needs one common denominator, a leap one of several.
"""

import dataclasses
import itertools
import random
from fractions import Fraction

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import INTEGER, State, Worked

NUM_OPERATIONS = {1: 3, 2: 4, 3: 5, 4: 6, 5: 7}
DENOMINATORS = {1: (2, 3, 4, 6), 2: (2, 3, 4, 6), 3: (2, 3, 4, 5, 6), 4: (2, 3, 4, 5, 6, 8, 9),
                5: (2, 3, 4, 5, 6, 7, 8, 9)}  # fmt: skip


def lowest(number: Fraction) -> str:
    """`3/4`, or `3` for a whole number."""
    return str(number)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FractionSum(Worked):
    """State: {"start": [1, 4], "operations": [["+", 2, 3], ...]}; one answer, in lowest terms."""

    name: str = "fractions"
    domain: Domain = "stem"
    form = rf"{INTEGER}(?:/[1-9][0-9]{{0,6}})?"

    def draw(self, level: int, rng: random.Random) -> State:
        pool = [[p, q] for q in DENOMINATORS[level] for p in range(1, q)]
        operations = [[rng.choice("+-"), *rng.choice(pool)] for _ in range(NUM_OPERATIONS[level])]
        return {"start": rng.choice(pool), "operations": operations}

    def text(self, state: State) -> str:
        start = "{}/{}".format(*state["start"])
        return start + "".join(f"{sign}{p}/{q}" for sign, p, q in state["operations"])

    def sums(self, state: State) -> list[Fraction]:
        terms = [Fraction(p if sign == "+" else -p, q) for sign, p, q in state["operations"]]
        return list(itertools.accumulate(terms, initial=Fraction(*state["start"])))

    def values(self, state: State) -> list[str]:
        return [lowest(total) for total in self.sums(state)[1:]]

    def answer(self, state: State) -> str:
        return lowest(self.sums(state)[-1])

    def flaw(self, state: State, answer: str) -> str | None:
        """Brings everything to the product of all denominators, in whole numbers."""
        p, _, q = answer.partition("/")
        claimed, denominator = int(p), int(q or 1)
        if lowest(Fraction(claimed, denominator)) != answer:
            return "not in lowest terms"
        terms = [("+", *state["start"]), *state["operations"]]
        common = 1
        for _, _, one in terms:
            common *= one
        total = sum(int(f"{sign}1") * top * (common // bottom) for sign, top, bottom in terms)
        if total * denominator != claimed * common:
            return f"it is {total}/{common}"
        return None

    def num_forms(self, level: int) -> int:
        pool = sum(q - 1 for q in DENOMINATORS[level])
        return pool * (2 * pool) ** NUM_OPERATIONS[level]
