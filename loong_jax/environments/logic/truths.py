"""Logic: who tells the truth, `a1 ba0 cb1 da0`: each clue compares a speaker with one before.

`a1` says that a is true (1), `a0` that a is false; `ba1` that b is what a is, `ba0` that it is not.
The answer gives the truth of a, b, c, ... in order. From level 2 on the clues stand in any order.
Working longer helps: a solution settles one speaker at a time.
"""

import dataclasses
import random
import string

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_SPEAKERS = {1: 7, 2: 8, 3: 9, 4: 10, 5: 11}
FIRST_SHUFFLED_LEVEL = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Truths(Worked):
    """State: {"clues": ["a1", "ba0", ...]}, one for each speaker, so exactly one answer fits."""

    name: str = "truths"
    domain: Domain = "logic"
    form = "[01]{1,20}"

    def draw(self, level: int, rng: random.Random) -> State:
        names = string.ascii_lowercase[: NUM_SPEAKERS[level]]
        clues = [f"a{rng.randrange(2)}"]
        for place in range(1, len(names)):
            clues.append(f"{names[place]}{rng.choice(names[:place])}{rng.randrange(2)}")
        if level >= FIRST_SHUFFLED_LEVEL:
            rng.shuffle(clues)
        return {"clues": clues}

    def text(self, state: State) -> str:
        return " ".join(state["clues"])

    def canonical(self, state: State) -> str:
        """In any order of the clues it is the same problem."""
        return " ".join(sorted(state["clues"]))

    def truths(self, state: State) -> dict[str, int]:
        of: dict[str, int] = {}
        for clue in sorted(state["clues"]):  # a speaker is compared with an earlier one
            other, bit = clue[1:-1], int(clue[-1])
            of[clue[0]] = bit if not other else of[other] if bit else 1 - of[other]
        return of

    def values(self, state: State) -> list[str]:
        return [f"{name}{bit}" for name, bit in self.truths(state).items()]

    def answer(self, state: State) -> str:
        return "".join(map(str, self.truths(state).values()))

    def flaw(self, state: State, answer: str) -> str | None:
        """Holds every clue against the answer."""
        if len(answer) != len(state["clues"]):
            return f"not {len(state['clues'])} truths"
        of = dict(zip(string.ascii_lowercase, answer, strict=False))
        for clue in state["clues"]:
            other = of[clue[1]] if len(clue) == 3 else "1"
            if (of[clue[0]] == other) != (clue[-1] == "1"):
                return f"{clue} does not hold"
        return None

    def num_forms(self, level: int) -> int:
        count, forms = NUM_SPEAKERS[level], 2
        for place in range(1, count):
            forms *= 2 * place
        return forms
