"""Logic: who or what comes first, and who tells the truth."""

import itertools
import random
import string

from loong_jax.environments.environment import Generator, State

NUMBERS = range(10, 1000)


class Largest(Generator):
    """Logic: the largest of some numbers, `Which number is the largest: 415, 87, 602, 233?`.

    A level is one number more.

    State: {"numbers": [415, 87, 602, 233]}, all different.
    """

    name, domain = "largest", "logic"
    form = "[1-9][0-9]{1,2}"

    def draw(self, level: int, rng: random.Random) -> State:
        return {"numbers": rng.sample(NUMBERS, level + 3)}

    def prompt(self, state: State) -> str:
        return f"Which number is the largest: {', '.join(map(str, state['numbers']))}?"

    def canonical(self, state: State) -> str:
        """In any order it is the same problem."""
        return ",".join(map(str, sorted(state["numbers"])))

    def steps(self, state: State) -> list[str]:
        return [str(n) for n in itertools.accumulate(state["numbers"], max)]

    def flaw(self, state: State, answer: str) -> str | None:
        """It is one of the numbers, and none is above it."""
        claimed = int(answer)
        if claimed not in state["numbers"]:
            return "not one of the numbers"
        above = next((n for n in state["numbers"] if n > claimed), None)
        return None if above is None else f"{above} is larger"


class Ranking(Generator):
    """Logic: a ranking from comparisons, `c>a f>c b>f`: the best comes first.

    The comparisons are of neighbours in the ranking, in any order, so there is one answer.

    State: {"comparisons": ["ca", "fc", ...]}, the better one first.
    """

    name, domain = "ranking", "logic"
    form = "[a-l]{8,12}"

    def draw(self, level: int, rng: random.Random) -> State:
        players = list(string.ascii_lowercase[: level + 7])
        rng.shuffle(players)
        comparisons = [one + other for one, other in itertools.pairwise(players)]
        rng.shuffle(comparisons)
        return {"comparisons": comparisons}

    def prompt(self, state: State) -> str:
        return " ".join(f"{one}>{other}" for one, other in state["comparisons"])

    def canonical(self, state: State) -> str:
        """In any order of the comparisons it is the same problem."""
        return " ".join(sorted(state["comparisons"]))

    def steps(self, state: State) -> list[str]:
        after = dict(state["comparisons"])
        (player,) = set(after) - set(after.values())
        found = [player]
        while (player := after.get(player, "")) != "":
            found.append(player)
        return found

    def answer(self, state: State) -> str:
        return "".join(self.steps(state))

    def flaw(self, state: State, answer: str) -> str | None:
        """Every player once, and every comparison holds."""
        if sorted(answer) != sorted({*"".join(state["comparisons"])}):
            return "not every player once"
        for one, other in state["comparisons"]:
            if answer.index(one) > answer.index(other):
                return f"{one} is better than {other}"
        return None


class Truths(Generator):
    """Logic: who tells the truth, `a1 ba0 cb1 da0`: each clue compares a speaker with one before.

    `a1` says that a is true (1), `a0` that a is false; `ba1` that b is what a is, `ba0` that it is
    not. The answer gives the truth of a, b, c, ... in order. From level 2 on the clues stand in any
    order.

    State: {"clues": ["a1", "ba0", ...]}, one for each speaker, so exactly one answer fits.
    """

    name, domain = "truths", "logic"
    form = "[01]{1,20}"

    def draw(self, level: int, rng: random.Random) -> State:
        names = string.ascii_lowercase[: level + 6]
        clues = [f"a{rng.randrange(2)}"]
        for place in range(1, len(names)):
            clues.append(f"{names[place]}{rng.choice(names[:place])}{rng.randrange(2)}")
        if level > 1:
            rng.shuffle(clues)
        return {"clues": clues}

    def prompt(self, state: State) -> str:
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

    def steps(self, state: State) -> list[str]:
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
