"""Stem: whole numbers, an equation, fractions, quantities with units, and chances."""

import itertools
import math
import operator
import random
from fractions import Fraction

from loong_jax.environments.environment import INTEGER, Generator, State


class Addition(Generator):
    """Stem: the sum of two numbers, `47 + 38 = `, a prompt that a pretrained model completes.

    A level is one digit more.

    State: {"terms": [47, 38]}.
    """

    name, domain = "addition", "stem"
    template, form = "{terms[0]} + {terms[1]} = ", "[1-9][0-9]{0,7}"

    def draw(self, level: int, rng: random.Random) -> State:
        lowest = 10**level
        return {"terms": [rng.randrange(lowest, 10 * lowest) for _ in range(2)]}

    def canonical(self, state: State) -> str:
        """In either order it is the same problem."""
        return "+".join(map(str, sorted(state["terms"])))

    def steps(self, state: State) -> list[str]:
        columns = zip(*(map(int, str(term)[::-1]) for term in state["terms"]), strict=True)
        totals = itertools.accumulate(
            (sum(column) for column in columns), lambda total, column: total // 10 + column
        )
        return [*map(str, totals), str(sum(state["terms"]))]


MAX_BASE = 9


def digits_of(number: int, base: int) -> str:
    found = ""
    while number:
        number, digit = divmod(number, base)
        found = str(digit) + found
    return found or "0"


class Bases(Generator):
    """Stem: a number from one base into another, `2102_3>7`.

    State: {"digits": "2102", "base": 3, "wanted": 7}; one answer, without leading zeros.
    """

    name, domain = "bases", "stem"
    template, form = "{digits}_{base}>{wanted}", "[1-9][0-9]{0,40}"

    def draw(self, level: int, rng: random.Random) -> State:
        base, wanted = rng.sample(range(2, MAX_BASE + 1), 2)
        first, *others = (rng.randrange(base) for _ in range(level + 3))
        while not first:
            first = rng.randrange(base)
        return {"digits": "".join(map(str, (first, *others))), "base": base, "wanted": wanted}

    def steps(self, state: State) -> list[str]:
        """In decimal the number of the first digit, of the first two, ...; then the answer."""
        base, digits = state["base"], map(int, state["digits"])
        numbers = list(itertools.accumulate(digits, lambda n, d: n * base + d))
        return [*map(str, numbers), digits_of(numbers[-1], state["wanted"])]


MAX_QUOTIENT, MAX_DIVISOR = 5, 99


class Divisor(Generator):
    """Stem: the greatest common divisor, `gcd(20512,4410)`.

    A level is the number of divisions that Euclid's algorithm takes: the two numbers are built from
    the quotients up.

    State: {"numbers": [20512, 4410]}.
    """

    name, domain = "divisor", "stem"
    template, form = "gcd({numbers[0]},{numbers[1]})", "[1-9][0-9]{0,11}"

    def draw(self, level: int, rng: random.Random) -> State:
        larger, smaller = rng.randint(1, MAX_DIVISOR), 0
        for division in range(level + 3):
            lowest = 2 if division == 0 else 1  # the last quotient is at least 2
            larger, smaller = rng.randint(lowest, MAX_QUOTIENT) * larger + smaller, larger
        return {"numbers": [larger, smaller]}

    def steps(self, state: State) -> list[str]:
        larger, smaller = state["numbers"]
        found = []
        while remainder := larger % smaller:
            found.append(str(remainder))
            larger, smaller = smaller, remainder
        return found

    def flaw(self, state: State, answer: str) -> str | None:
        """It divides both numbers, and what it leaves of them has no factor in common."""
        claimed = int(answer)
        if any(number % claimed for number in state["numbers"]):
            return "it does not divide both numbers"
        more = math.gcd(*(number // claimed for number in state["numbers"]))
        return None if more == 1 else f"{more} times as much divides both, too"


MAX_COEFFICIENT, MAX_CONSTANT, MAX_SOLUTION = 9, 99, 99


def written(terms: list[int], num_before: int) -> str:
    """Terms after `num_before` others: those at even places have x."""
    parts = (
        f"{value:+d}x" if place % 2 == 0 else f"{value:+d}"
        for place, value in enumerate(terms, num_before)
    )
    return "".join(parts).removeprefix("+")


class Equation(Generator):
    """Stem: a linear equation with an integer solution, `7x+12=-3x+502`.

    Terms with x and constants take turns; the last constant makes the drawn solution right.

    State: {"left": [7, 12], "right": [-3], "constant": 502}, coefficients and constants in turn.

    Exactly one x solves it, since the coefficients of x do not cancel out.
    """

    name, domain = "equation", "stem"
    form = INTEGER

    def draw(self, level: int, rng: random.Random) -> State:
        count = level + 2  # before the last constant
        while True:
            sizes = (MAX_CONSTANT if place % 2 else MAX_COEFFICIENT for place in range(count))
            terms = [rng.choice((-1, 1)) * rng.randint(1, size) for size in sizes]
            half = (count + 1) // 2
            state = {"left": terms[:half], "right": terms[half:], "constant": 0}
            coefficient, constant = gathered(state)[-1]
            if coefficient:
                solution = rng.randint(-MAX_SOLUTION, MAX_SOLUTION)
                return state | {"constant": coefficient * solution - constant}

    def prompt(self, state: State) -> str:
        right = written(state["right"], len(state["left"]))
        return f"{written(state['left'], 0)}={right}{state['constant']:+d}"

    def steps(self, state: State) -> list[str]:
        """`7x`, `7x:-12`, ... : all terms so far, those with x on the left; then x alone."""
        found = gathered(state)
        coefficient, constant = found[-1]
        return [f"{a}x:{b}" for a, b in found] + [str(constant // coefficient)]

    def flaw(self, state: State, answer: str) -> str | None:
        """Puts the answer in, side by side."""
        x, half = int(answer), len(state["left"])
        left = sum(v if place % 2 else v * x for place, v in enumerate(state["left"]))
        right = sum(v if place % 2 else v * x for place, v in enumerate(state["right"], half))
        right += state["constant"]
        return None if left == right else f"{left} on the left, {right} on the right"


def gathered(state: State) -> list[tuple[int, int]]:
    """Coefficient of x on the left and constant on the right, after each term."""
    coefficient = constant = 0
    found = []
    signs = [1] * len(state["left"]) + [-1] * (len(state["right"]) + 1)
    terms = [*state["left"], *state["right"], state["constant"]]
    for place, (sign, value) in enumerate(zip(signs, terms, strict=True)):
        if place % 2 or place == len(terms) - 1:
            constant -= sign * value
        else:
            coefficient += sign * value
        found.append((coefficient, constant))
    return found


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
