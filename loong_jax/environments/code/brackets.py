"""Code: the closing brackets that a text lacks, `([]{(` -> `)})`.

The text is the beginning of a balanced one; there is one shortest end. Working longer helps: a
solution takes out one matched pair at a time.
"""

import dataclasses
import math
import random
import re

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_CLOSED = {1: 3, 2: 4, 3: 5, 4: 6, 5: 7}
NUM_LACKING = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
CLOSER = {"(": ")", "[": "]", "{": "}"}
_MATCHED = re.compile(r"\(\)|\[\]|\{\}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Brackets(Worked):
    """State: {"text": "([]{("}."""

    name: str = "brackets"
    domain: Domain = "code"
    form = r"[)\]}]{1,40}"

    def draw(self, level: int, rng: random.Random) -> State:
        steps = [-1] * NUM_CLOSED[level] + [1] * (NUM_CLOSED[level] + NUM_LACKING[level])
        while True:  # until no bracket is closed before it opens
            rng.shuffle(steps)
            if all(sum(steps[:count]) >= 0 for count in range(1, len(steps))):
                break
        text, opened = "", ""
        for step in steps:
            if step > 0:
                opened += rng.choice(list(CLOSER))
                text += opened[-1]
            else:
                text += CLOSER[opened[-1]]
                opened = opened[:-1]
        return {"text": text}

    def text(self, state: State) -> str:
        return state["text"]

    def values(self, state: State) -> list[str]:
        """The text without its first matched pair, without the next, ... : what is left open."""
        text, found = state["text"], []
        while (shorter := _MATCHED.sub("", text, count=1)) != text:
            text = shorter
            found.append(text)
        return found

    def answer(self, state: State) -> str:
        return "".join(CLOSER[bracket] for bracket in reversed(self.values(state)[-1]))

    def flaw(self, state: State, answer: str) -> str | None:
        """Reads text and answer with a stack: it ends empty, and was not empty before."""
        expected: list[str] = []
        for place, bracket in enumerate(state["text"] + answer):
            if bracket in CLOSER:
                expected.append(CLOSER[bracket])
            elif not expected:
                return f"nothing is open at {place}"
            elif (lacking := expected.pop()) != bracket:
                return f"{bracket} closes {lacking} at {place}"
        return f"{len(expected)} brackets are still open" if expected else None

    def num_forms(self, level: int) -> int:
        """Ballot sequences, times the kind of every opening bracket."""
        closed, lacking = NUM_CLOSED[level], NUM_LACKING[level]
        length = 2 * closed + lacking
        orders = math.comb(length, closed) - (math.comb(length, closed - 1) if closed else 0)
        return orders * len(CLOSER) ** (closed + lacking)
