"""Code: what a network of comparators makes of five digits, `83152:12 45 13 24`.

A comparator `ij` (i < j, places counted from 1) swaps the digits at its places where they stand in
the wrong order. Working longer helps: a solution writes the digits after every comparator.
"""

import dataclasses
import itertools
import random

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_COMPARATORS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
NUM_WIRES = 5


def pairs() -> list[tuple[int, int]]:
    return list(itertools.combinations(range(1, NUM_WIRES + 1), 2))


def after_comparator(digits: str, comparator: str) -> str:
    i, j = (int(place) - 1 for place in comparator)
    low, high = sorted((digits[i], digits[j]))
    return f"{digits[:i]}{low}{digits[i + 1 : j]}{high}{digits[j + 1 :]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparators(Worked):
    """State: {"digits": "83152", "comparators": ["12", "45", ...]}."""

    name: str = "comparators"
    domain: Domain = "code"
    form = "[0-9]{1,9}"

    def draw(self, level: int, rng: random.Random) -> State:
        drawn = rng.choices(pairs(), k=NUM_COMPARATORS[level])
        return {
            "digits": "".join(rng.choices("0123456789", k=NUM_WIRES)),
            "comparators": [f"{i}{j}" for i, j in drawn],
        }

    def text(self, state: State) -> str:
        return f"{state['digits']}:{' '.join(state['comparators'])}"

    def values(self, state: State) -> list[str]:
        return list(
            itertools.accumulate(state["comparators"], after_comparator, initial=state["digits"])
        )[1:]

    def answer(self, state: State) -> str:
        return self.values(state)[-1]

    def flaw(self, state: State, answer: str) -> str | None:
        """By thresholds: the network moves every "at least t" on its own, as or and and of bits.

        (Comparators commute with monotone maps, on which the 0-1 principle rests.)
        """
        if len(answer) != len(state["digits"]):
            return f"not {len(state['digits'])} digits"
        for threshold in "123456789":
            bits = [digit >= threshold for digit in state["digits"]]
            for comparator in state["comparators"]:
                i, j = (int(place) - 1 for place in comparator)
                bits[i], bits[j] = bits[i] and bits[j], bits[i] or bits[j]
            if bits != [digit >= threshold for digit in answer]:
                return f"digits from {threshold} on stand elsewhere"
        return None

    def num_forms(self, level: int) -> int:
        return 10**NUM_WIRES * len(pairs()) ** NUM_COMPARATORS[level]
