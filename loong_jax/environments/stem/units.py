"""Stem: quantities in several units, added up in one of them, `4m+35cm-7mm?mm`.

Working longer helps: one conversion is a factor, a leap several factors and a sum.
"""

import dataclasses
import itertools
import random

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import INTEGER, State, Worked

NUM_TERMS = {1: 3, 2: 4, 3: 5, 4: 6, 5: 7}
MAX_NUMBER = 99
UNITS: dict[str, dict[str, int]] = {  # in the smallest unit, which is asked for
    "length": {"mm": 1, "cm": 10, "dm": 100, "m": 1000},
    "time": {"s": 1, "min": 60, "h": 3600},
    "mass": {"g": 1, "kg": 1000, "t": 1_000_000},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Units(Worked):
    """State: {"quantity": "length", "terms": [["+", 4, "m"], ...]}; the first term is added."""

    name: str = "units"
    domain: Domain = "stem"
    form = INTEGER

    def draw(self, level: int, rng: random.Random) -> State:
        quantity = rng.choice(sorted(UNITS))
        terms = [
            [rng.choice("+-"), rng.randint(1, MAX_NUMBER), rng.choice(list(UNITS[quantity]))]
            for _ in range(NUM_TERMS[level])
        ]
        terms[0][0] = "+"
        return {"quantity": quantity, "terms": terms}

    def text(self, state: State) -> str:
        terms = "".join(f"{sign}{number}{unit}" for sign, number, unit in state["terms"])
        return f"{terms[1:]}?{next(iter(UNITS[state['quantity']]))}"

    def totals(self, state: State) -> list[int]:
        factors = UNITS[state["quantity"]]
        terms = (int(f"{sign}{number}") * factors[unit] for sign, number, unit in state["terms"])
        return list(itertools.accumulate(terms))

    def values(self, state: State) -> list[str]:
        return [str(total) for total in self.totals(state)]

    def answer(self, state: State) -> str:
        return str(self.totals(state)[-1])

    def flaw(self, state: State, answer: str) -> str | None:
        """Takes the terms off the answer, unit by unit; nothing may be left."""
        rest = int(answer)
        for unit, factor in UNITS[state["quantity"]].items():
            of_unit = [(sign, number) for sign, number, u in state["terms"] if u == unit]
            added = sum(number for sign, number in of_unit if sign == "+")
            rest -= factor * (2 * added - sum(number for _, number in of_unit))
        return f"{rest} too many" if rest else None

    def num_forms(self, level: int) -> int:
        count = NUM_TERMS[level]
        terms = sum((MAX_NUMBER * len(units)) ** count for units in UNITS.values())
        return 2 ** (count - 1) * terms
