"""Code: the run-length code of a text, `aaabccdd` -> `3a1b2c2d`.

Runs are as long as they can be, so the code is unique. Working longer helps: a solution writes one
run at a time.
"""

import dataclasses
import itertools
import random
import re

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_RUNS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
LETTERS, MAX_RUN = "abcd", 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunLength(Worked):
    """State: {"text": "aaabccdd"}."""

    name: str = "run_length"
    domain: Domain = "code"
    form = "(?:[1-9][a-z]){1,20}"

    def draw(self, level: int, rng: random.Random) -> State:
        text = ""
        for _ in range(NUM_RUNS[level]):
            letter = rng.choice([one for one in LETTERS if one != text[-1:]])
            text += letter * rng.randint(1, MAX_RUN)
        return {"text": text}

    def text(self, state: State) -> str:
        return state["text"]

    def values(self, state: State) -> list[str]:
        return [f"{len(list(run))}{one}" for one, run in itertools.groupby(state["text"])]

    def answer(self, state: State) -> str:
        return "".join(self.values(state))

    def flaw(self, state: State, answer: str) -> str | None:
        """Decodes the answer; neighbouring runs must differ, or they were one."""
        runs = re.findall("([0-9])([a-z])", answer)
        if any(one == other for (_, one), (_, other) in itertools.pairwise(runs)):
            return "two runs of one letter side by side"
        decoded = "".join(int(count) * letter for count, letter in runs)
        return None if decoded == state["text"] else f"it is the code of {decoded}"

    def num_forms(self, level: int) -> int:
        count = NUM_RUNS[level]
        return len(LETTERS) * (len(LETTERS) - 1) ** (count - 1) * MAX_RUN**count
