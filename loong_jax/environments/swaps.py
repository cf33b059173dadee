"""Logic: track four objects through swaps of places, `abcd 13 24 12`.

A swap says which two places exchange what stands there. Chance is 1/24. Working longer helps: one swap
copies four letters, a leap over several composes permutations.
"""

import dataclasses
import itertools
import re

import numpy as np

from loong_jax.data.response import Response
from loong_jax.environments import environment
from loong_jax.environments.environment import Style
from loong_jax.environments.problem import Domain, Problem
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

OBJECTS = "abcd"
PAIRS = tuple(itertools.combinations(range(1, len(OBJECTS) + 1), 2))
NUM_SWAPS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
MAX_ANSWER_CHARS = 16


def after_swap(order: str, pair: tuple[int, int]) -> str:
    """The order once the objects at places `pair` (counted from 1) have changed places."""
    places = list(order)
    i, j = pair[0] - 1, pair[1] - 1
    places[i], places[j] = places[j], places[i]
    return "".join(places)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Swaps:
    """State: {"start": "cabd", "swaps": [[1, 3], ...]}; the last order is asked for."""

    name: str = "swaps"
    domain: Domain = "logic"

    def problem(self, level: int, seed: int) -> Problem:
        environment.check_level(level)
        rng = environment.rng_of(self.name, level, seed)
        start = "".join(rng.permutation(list(OBJECTS)))
        swaps = [list(PAIRS[k]) for k in rng.integers(len(PAIRS), size=NUM_SWAPS[level])]
        text = start + "".join(f" {i}{j}" for i, j in swaps)
        return environment.make_problem(
            self,
            level=level,
            seed=seed,
            canonical=text,
            prompt=text,
            state={"start": start, "swaps": swaps},
        )

    def _orders(self, problem: Problem) -> list[str]:
        state = environment.state_of(problem, self)
        return list(itertools.accumulate(state["swaps"], after_swap, initial=state["start"]))

    def gold(self, problem: Problem) -> str:
        return self._orders(problem)[-1]

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        orders = self._orders(problem)
        return Response(environment.write_steps(orders[1:], style), orders[-1])

    def verify(self, problem: Problem, answer: str) -> Verdict:
        """Undoes the swaps on the answer, last swap first: correct is what leads back to the start."""
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", "not a short text")
        answer = answer.strip()
        if not re.fullmatch(f"[{OBJECTS}]{{{len(OBJECTS)}}}", answer):
            return verdict.wrong("format", f"not {len(OBJECTS)} letters of {OBJECTS}")
        state = environment.state_of(problem, self)
        order = answer
        for pair in reversed(state["swaps"]):
            order = after_swap(order, pair)
        if order != state["start"]:
            return verdict.wrong("value", f"would have begun as {order}")
        return verdict.correct()

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        return 24 * len(PAIRS) ** NUM_SWAPS[level]
