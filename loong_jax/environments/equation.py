"""Stem: a linear equation with an integer solution, `7x+12=-3x+502`.

Terms with x and constants take turns; the last constant makes the drawn solution right. Working
longer helps: a solution gathers coefficient and constant term by term, a leap several at once.
"""

import random

from loong_jax.environments.environment import INTEGER, Generator, State

MAX_COEFFICIENT, MAX_CONSTANT, MAX_SOLUTION = 9, 99, 99


def written(terms: list[int], num_before: int) -> str:
    """Terms after `num_before` others: those at even places have x."""
    parts = (
        f"{value:+d}x" if place % 2 == 0 else f"{value:+d}"
        for place, value in enumerate(terms, num_before)
    )
    return "".join(parts).removeprefix("+")


class Equation(Generator):
    """State: {"left": [7, 12], "right": [-3], "constant": 502}, coefficients and constants in turn.

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
