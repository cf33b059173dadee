"""Chains of rows of digits, each combined with the next, place by place."""

import itertools
from collections.abc import Sequence

import numpy as np

from loong_jax.environments.environment import Generator, State, array_rng

MODULUS, NUM_COORDINATES = 3, 4
NUM_OPERATIONS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}


def after_operation(vector: str, operation: Sequence[str]) -> str:
    """The vector after one operation (sign, other vector)."""
    sign, other = operation
    direction = 1 if sign == "+" else -1
    return "".join(
        str((int(x) + direction * int(y)) % MODULUS) for x, y in zip(vector, other, strict=True)
    )


class VectorSum(Generator):
    """Stem: sums and differences of vectors in (Z/3)^4, `2012+2010-1201`.

    The digits are coordinates; each is added modulo 3 by itself. A guess is right in 1 of 81.
    Working longer helps: for each coordinate one operation is a table of 18 entries, a leap over
    two of 108.

    State: {"start": "2012", "operations": [["+", "2010"], ...]}; asks for the last vector.
    """

    name, domain = "vector_sum", "stem"
    form = f"[0-{MODULUS - 1}]{{{NUM_COORDINATES}}}"
    rng = array_rng

    def draw(self, level: int, rng: np.random.Generator) -> State:
        count = NUM_OPERATIONS[level]
        digits = rng.integers(MODULUS, size=(count + 1, NUM_COORDINATES))
        start, *others = ("".join(map(str, row)) for row in digits)
        signs = rng.choice(["+", "-"], count)
        operations = [[str(sign), v] for sign, v in zip(signs, others, strict=True)]
        return {"start": start, "operations": operations}

    def prompt(self, state: State) -> str:
        return state["start"] + "".join(sign + vector for sign, vector in state["operations"])

    def steps(self, state: State) -> list[str]:
        operations = state["operations"]
        return [*itertools.accumulate(operations, after_operation, initial=state["start"])][1:]

    def flaw(self, state: State, answer: str) -> str | None:
        """Sums each coordinate as a whole number; right is agreement modulo 3 on all of them."""
        for place, claimed in enumerate(answer):
            total = int(state["start"][place])
            for sign, vector in state["operations"]:
                total += int(sign + vector[place])
            if (total - int(claimed)) % MODULUS:
                return f"coordinate {place} is {total} modulo {MODULUS}"
        return None


NUM_PLACES, NUM_DEGREES = 4, 10
GATES = {"&": min, "|": max}
NUM_GATES = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}


def after_gate(row: str, gate: Sequence[str]) -> str:
    """The row of degrees after one gate (symbol, operands)."""
    symbol, operands = gate
    return "".join(GATES[symbol](a, b) for a, b in zip(row, operands, strict=True))


class Gates(Generator):
    """Logic: rows of fuzzy truth degrees through gates, `9274&3816|2250&7093|1484&5560`.

    Degrees run from 0 (false) to 9 (true); a gate combines the row, place by place, with its own
    operands: `&` is the smaller degree, `|` the larger (Goedel's many-valued logic). A guess is
    right in less than 1 of 100. Working longer helps: one gate looks at two degrees for each place,
    a leap at three or more.

    State: {"row": "9274", "gates": [["&", "3816"], ...]}; the last row is asked for.
    """

    name, domain = "gates", "logic"
    form = f"[0-9]{{{NUM_PLACES}}}"
    rng = array_rng

    def draw(self, level: int, rng: np.random.Generator) -> State:
        count = NUM_GATES[level]
        degrees = rng.integers(NUM_DEGREES, size=(count + 1, NUM_PLACES))
        row, *others = ("".join(map(str, places)) for places in degrees)
        symbols = map(str, rng.choice(list(GATES), count))
        gates = [[symbol, operands] for symbol, operands in zip(symbols, others, strict=True)]
        return {"row": row, "gates": gates}

    def prompt(self, state: State) -> str:
        return state["row"] + "".join(symbol + operands for symbol, operands in state["gates"])

    def steps(self, state: State) -> list[str]:
        return [*itertools.accumulate(state["gates"], after_gate, initial=state["row"])][1:]

    def flaw(self, state: State, answer: str) -> str | None:
        """Follows every place alone, through all gates; right is agreement on all places."""
        for place, (degree, claimed) in enumerate(zip(state["row"], answer, strict=True)):
            value = int(degree)
            for symbol, operands in state["gates"]:
                value = GATES[symbol](value, int(operands[place]))
            if value != int(claimed):
                return f"place {place} is {value}"
        return None
