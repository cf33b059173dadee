"""Code: a text after rules of rewriting, `abbaba baaa bbab`.

A rule (`baaa` writes aa for ba) is applied once, to the first place that it matches, and does
nothing where it matches nowhere. Working longer helps: a solution writes the text after every rule.
"""

import dataclasses
import itertools
import random

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_RULES = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
LENGTH = 6
PAIRS = ("aa", "ab", "ba", "bb")


def after_rule(text: str, rule: list[str]) -> str:
    left, right = rule
    return text.replace(left, right, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rewriting(Worked):
    """State: {"start": "abbaba", "rules": [["ba", "aa"], ...]}; the two sides of a rule differ."""

    name: str = "rewriting"
    domain: Domain = "code"
    form = "[ab]{1,20}"

    def draw(self, level: int, rng: random.Random) -> State:
        return {
            "start": "".join(rng.choices("ab", k=LENGTH)),
            "rules": [rng.sample(PAIRS, 2) for _ in range(NUM_RULES[level])],
        }

    def text(self, state: State) -> str:
        return " ".join([state["start"], *(left + right for left, right in state["rules"])])

    def values(self, state: State) -> list[str]:
        return list(itertools.accumulate(state["rules"], after_rule, initial=state["start"]))[1:]

    def answer(self, state: State) -> str:
        return self.values(state)[-1]

    def flaw(self, state: State, answer: str) -> str | None:
        """Walks along the text with a window of two letters, rule by rule."""
        letters = list(state["start"])
        for left, right in state["rules"]:
            for place in range(len(letters) - 1):
                if letters[place] + letters[place + 1] == left:
                    letters[place : place + 2] = right
                    break
        found = "".join(letters)
        return None if answer == found else f"it is {found}"

    def num_forms(self, level: int) -> int:
        return 2**LENGTH * (len(PAIRS) * (len(PAIRS) - 1)) ** NUM_RULES[level]
