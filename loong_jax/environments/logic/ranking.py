"""Logic: a ranking from comparisons, `c>a f>c b>f`: the best comes first.

The comparisons are of neighbours in the ranking, in any order, so there is one answer. Working
longer helps: a solution looks for one neighbour at a time.
"""

import dataclasses
import itertools
import math
import random
import string

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_PLAYERS = {1: 8, 2: 9, 3: 10, 4: 11, 5: 12}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranking(Worked):
    """State: {"comparisons": ["ca", "fc", ...]}, the better one first."""

    name: str = "ranking"
    domain: Domain = "logic"
    form = "[a-l]{8,12}"

    def draw(self, level: int, rng: random.Random) -> State:
        players = list(string.ascii_lowercase[: NUM_PLAYERS[level]])
        rng.shuffle(players)
        comparisons = [one + other for one, other in itertools.pairwise(players)]
        rng.shuffle(comparisons)
        return {"comparisons": comparisons}

    def text(self, state: State) -> str:
        return " ".join(f"{one}>{other}" for one, other in state["comparisons"])

    def canonical(self, state: State) -> str:
        """In any order of the comparisons it is the same problem."""
        return " ".join(sorted(state["comparisons"]))

    def ranking(self, state: State) -> list[str]:
        after = {one: other for one, other in state["comparisons"]}
        (player,) = set(after) - set(after.values())
        found = [player]
        while (player := after.get(player, "")) != "":
            found.append(player)
        return found

    def values(self, state: State) -> list[str]:
        return self.ranking(state)

    def answer(self, state: State) -> str:
        return "".join(self.ranking(state))

    def flaw(self, state: State, answer: str) -> str | None:
        """Every player once, and every comparison holds."""
        if sorted(answer) != sorted({*"".join(state["comparisons"])}):
            return "not every player once"
        for one, other in state["comparisons"]:
            if answer.index(one) > answer.index(other):
                return f"{one} is better than {other}"
        return None

    def num_forms(self, level: int) -> int:
        return math.factorial(NUM_PLAYERS[level])
