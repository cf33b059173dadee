"""Chains of rows of digits, each combined with the next; prices of a basket, by a tool."""

import dataclasses
import itertools
import json
import operator
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
