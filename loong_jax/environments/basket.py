"""Stem, with a tool: the price of a basket, `kdax?`, by a price list that only the tool can see.

Prices are two digits and add up modulo 100. Without the tool a guess is right in 1 of 100; with it
what is left are a few sums. Made for turns with tools: the policy has to ask before it can answer,
and to ask for what the prompt names (arXiv:2509.18883, 2.2.3: problems that require their tools).
"""

import dataclasses
import itertools
import json
import string
from collections.abc import Mapping
from typing import Any

import numpy as np

from loong_jax.environments.environment import Generator, State, array_rng, state_of
from loong_jax.problems.problem import Problem

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

    def flaw(self, state: State, answer: str) -> str | None:
        total = sum(state["prices"].values())
        return f"the basket costs {total} modulo 100" if (total - int(answer)) % 100 else None


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
