"""Chains of rows of digits, a basket of prices, and what comes first or is true."""

import dataclasses
import itertools
import json
import operator
import random
import string
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loong_jax.environments.environment import Generator, State, array_rng, state_of
from loong_jax.problems.problem import Problem

NUM_COORDINATES = 4
NUM_OPERATIONS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}


class _Chain(Generator):
    """State: the first row under `keys[0]`, [sign, other row] of each operation under `keys[1]`."""

    keys: tuple[str, str]
    num_values: int  # of a digit; operations count modulo this
    signs: Mapping[str, Callable[[int, int], int]]
    rng = array_rng

    def draw(self, level: int, rng: np.random.Generator) -> State:
        count = NUM_OPERATIONS[level]
        digits = rng.integers(self.num_values, size=(count + 1, NUM_COORDINATES))
        start, *others = ("".join(map(str, row)) for row in digits)
        signs = map(str, rng.choice(list(self.signs), count))
        operations = [[sign, other] for sign, other in zip(signs, others, strict=True)]
        return dict(zip(self.keys, (start, operations), strict=True))

    def prompt(self, state: State) -> str:
        start, operations = (state[key] for key in self.keys)
        return start + "".join(sign + other for sign, other in operations)

    def steps(self, state: State) -> list[str]:
        row, operations = (state[key] for key in self.keys)
        found = []
        for sign, other in operations:
            pairs = zip(map(int, row), map(int, other), strict=True)
            row = "".join(str(self.signs[sign](a, b) % self.num_values) for a, b in pairs)
            found.append(row)
        return found


class VectorSum(_Chain):
    """Stem: sums and differences of vectors in (Z/3)^4, `2012+2010-1201`.

    The digits are coordinates; each is added modulo 3 by itself. A guess is right in 1 of 81.

    State: {"start": "2012", "operations": [["+", "2010"], ...]}; asks for the last vector.
    """

    name, domain, form = "vector_sum", "stem", f"[0-2]{{{NUM_COORDINATES}}}"
    keys, num_values = ("start", "operations"), 3
    signs = {"+": operator.add, "-": operator.sub}  # noqa: RUF012


class Gates(_Chain):
    """Logic: rows of fuzzy truth degrees through gates, `9274&3816|2250&7093|1484&5560`.

    Degrees run from 0 (false) to 9 (true); a gate combines the row, place by place, with its own
    operands: `&` is the smaller degree, `|` the larger (Goedel's many-valued logic). A guess is
    right in less than 1 of 100.

    State: {"row": "9274", "gates": [["&", "3816"], ...]}; the last row is asked for.
    """

    name, domain, form = "gates", "logic", f"[0-9]{{{NUM_COORDINATES}}}"
    keys, num_values = ("row", "gates"), 10
    signs = {"&": min, "|": max}  # noqa: RUF012


NUM_PRICES = 100


class Basket(Generator):
    """State: {"prices": {"k": 31, "d": 7, ...}}, in the order of the prompt; asks for their sum."""

    name, domain = "basket", "stem"
    form = "[0-9]{2}"
    rng = array_rng

    def draw(self, level: int, rng: np.random.Generator) -> State:
        count = level + 2
        items = rng.choice(list(string.ascii_lowercase), count, replace=False).tolist()
        prices = rng.integers(NUM_PRICES, size=count).tolist()
        return {"prices": dict(zip(items, prices, strict=True))}

    def prompt(self, state: State) -> str:
        return "".join(state["prices"]) + "?"

    def canonical(self, state: State) -> str:
        return json.dumps(state["prices"])

    def problem(self, level: int, seed: int) -> Problem:
        problem = super().problem(level, seed)
        arguments = {**problem.arguments, "tools": [PriceList.name]}
        return dataclasses.replace(problem, arguments=arguments)

    def calls(self, problem: Problem) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """The tool calls of a solution before its first step: names and arguments."""
        return ((PriceList.name, {"items": "".join(state_of(problem, self)["prices"])}),)

    def steps(self, state: State) -> list[str]:
        totals = itertools.accumulate(state["prices"].values())
        return [f"{total % 100:02d}" for total in totals]


class PriceList:
    """The tool of `Basket`: prices of the items of a problem, in the order they are asked for."""

    name = "prices"
    description = "Prices of items, each of them one letter."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"items": {"type": "string", "description": "One letter per item."}},
        "required": ["items"],
    }

    def call(self, arguments: Mapping[str, Any], *, problem: Problem, timeout_s: float) -> str:
        """Raises ValueError for what is not in the basket."""
        del timeout_s
        prices = problem.arguments["state"]["prices"]
        missing = [item for item in arguments["items"] if item not in prices]
        if missing:
            raise ValueError(f"no price of {''.join(missing)[:20]!r}")
        return " ".join(f"{prices[item]:02d}" for item in arguments["items"])


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
