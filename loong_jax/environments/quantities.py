"""Stem: fractions, quantities with units, and chances."""

import itertools
import math
import operator
import random
from fractions import Fraction

from loong_jax.environments.environment import INTEGER, Generator, State

DENOMINATORS = {1: (2, 3, 4, 6), 2: (2, 3, 4, 6), 3: (2, 3, 4, 5, 6), 4: (2, 3, 4, 5, 6, 8, 9),
                5: (2, 3, 4, 5, 6, 7, 8, 9)}  # fmt: skip


class FractionSum(Generator):
    """Stem: sums of fractions in lowest terms, `1/4+2/3-1/6+3/4`.

    State: {"start": [1, 4], "operations": [["+", 2, 3], ...]}; one answer, in lowest terms.
    """

    name, domain = "fractions", "stem"
    form = rf"{INTEGER}(?:/[1-9][0-9]{{0,6}})?"

    def draw(self, level: int, rng: random.Random) -> State:
        pool = [[p, q] for q in DENOMINATORS[level] for p in range(1, q)]
        operations = [[rng.choice("+-"), *rng.choice(pool)] for _ in range(level + 2)]
        return {"start": rng.choice(pool), "operations": operations}

    def prompt(self, state: State) -> str:
        start = "{}/{}".format(*state["start"])
        return start + "".join(f"{sign}{p}/{q}" for sign, p, q in state["operations"])

    def steps(self, state: State) -> list[str]:
        terms = [Fraction(p if sign == "+" else -p, q) for sign, p, q in state["operations"]]
        totals = itertools.accumulate(terms, initial=Fraction(*state["start"]))
        return [str(total) for total in totals][1:]

    def flaw(self, state: State, answer: str) -> str | None:
        """Brings everything to the product of all denominators, in whole numbers."""
        p, _, q = answer.partition("/")
        claimed, denominator = int(p), int(q or 1)
        if str(Fraction(claimed, denominator)) != answer:
            return "not in lowest terms"
        terms = [("+", *state["start"]), *state["operations"]]
        common = math.prod(bottom for *_, bottom in terms)
        total = sum(int(f"{sign}1") * top * (common // bottom) for sign, top, bottom in terms)
        if total * denominator != claimed * common:
            return f"it is {total}/{common}"
        return None


MAX_NUMBER = 99
UNITS: dict[str, dict[str, int]] = {  # in the smallest unit, which is asked for
    "length": {"mm": 1, "cm": 10, "dm": 100, "m": 1000},
    "time": {"s": 1, "min": 60, "h": 3600},
    "mass": {"g": 1, "kg": 1000, "t": 1_000_000},
}


class Units(Generator):
    """Stem: quantities in several units, added up in one of them, `4m+35cm-7mm?mm`.

    State: {"quantity": "length", "terms": [["+", 4, "m"], ...]}; the first term is added.
    """

    name, domain = "units", "stem"
    form = INTEGER

    def draw(self, level: int, rng: random.Random) -> State:
        quantity = rng.choice(sorted(UNITS))
        terms = [
            [rng.choice("+-"), rng.randint(1, MAX_NUMBER), rng.choice(list(UNITS[quantity]))]
            for _ in range(level + 2)
        ]
        terms[0][0] = "+"
        return {"quantity": quantity, "terms": terms}

    def prompt(self, state: State) -> str:
        terms = "".join(f"{sign}{number}{unit}" for sign, number, unit in state["terms"])
        return f"{terms[1:]}?{next(iter(UNITS[state['quantity']]))}"

    def steps(self, state: State) -> list[str]:
        factors = UNITS[state["quantity"]]
        terms = (int(f"{sign}{number}") * factors[unit] for sign, number, unit in state["terms"])
        return list(map(str, itertools.accumulate(terms)))

    def flaw(self, state: State, answer: str) -> str | None:
        """Takes the terms off the answer, unit by unit; nothing may be left."""
        rest = int(answer)
        for unit, factor in UNITS[state["quantity"]].items():
            of_unit = [(sign, number) for sign, number, u in state["terms"] if u == unit]
            added = sum(number for sign, number in of_unit if sign == "+")
            rest -= factor * (2 * added - sum(number for _, number in of_unit))
        return f"{rest} too many" if rest else None


COLOURS = "rbgy"
NUM_COUNTS = 5  # of balls of a colour: the number of draws, and up to four more


class Urn(Generator):
    """Stem: how likely these colours are drawn in this order, without putting back, `3r4b5g6y:rby`.

    The answer is a fraction in lowest terms.

    State: {"counts": {"r": 3, ...}, "draws": "rby"}; no colour can run out.
    """

    name, domain = "urn", "stem"
    form = "[1-9][0-9]{0,11}/[1-9][0-9]{0,11}"

    def draw(self, level: int, rng: random.Random) -> State:
        fewest = level + 2
        return {
            "counts": {colour: fewest + rng.randrange(NUM_COUNTS) for colour in COLOURS},
            "draws": "".join(rng.choices(COLOURS, k=fewest)),
        }

    def prompt(self, state: State) -> str:
        urn = "".join(f"{count}{colour}" for colour, count in state["counts"].items())
        return f"{urn}:{state['draws']}"

    def steps(self, state: State) -> list[str]:
        """After each draw: how likely all draws so far are."""
        left, factors = dict(state["counts"]), []
        for colour in state["draws"]:
            factors.append(Fraction(left[colour], sum(left.values())))
            left[colour] -= 1
        return list(map(str, itertools.accumulate(factors, operator.mul)))

    def flaw(self, state: State, answer: str) -> str | None:
        """Counts ordered draws: those that fit and all of them."""
        claimed, of = map(int, answer.split("/"))
        if math.gcd(claimed, of) != 1:
            return "not in lowest terms"
        draws, counts = state["draws"], state["counts"]
        fitting = math.prod(math.perm(counts[c], draws.count(c)) for c in set(draws))
        possible = math.perm(sum(counts.values()), len(draws))
        return None if claimed * possible == fitting * of else f"{fitting} of {possible} draws fit"
