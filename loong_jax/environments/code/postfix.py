"""Code: the value of an expression in postfix form, `73+2*85-+`.

Digits are pushed on a stack; an operator takes two numbers off it and pushes its result. Working
longer helps: a solution writes the result of every operator.
"""

import dataclasses
import math
import random

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import INTEGER, State, Worked

NUM_OPERATORS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
OPERATORS, DIGITS = "+-*", "123456789"


def combined(sign: str, a: int, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b


@dataclasses.dataclass(frozen=True, kw_only=True)
class Postfix(Worked):
    """State: {"text": "73+2*85-+"}."""

    name: str = "postfix"
    domain: Domain = "code"
    form = INTEGER

    def draw(self, level: int, rng: random.Random) -> State:
        """One of all shapes, equally likely: exactly one rotation of any order is well formed."""
        count = NUM_OPERATORS[level]
        steps = [1] * (count + 1) + [-1] * count  # what becomes of the height of the stack
        rng.shuffle(steps)
        heights = [sum(steps[: place + 1]) for place in range(len(steps))]
        start = max(place for place, height in enumerate(heights) if height == min(heights)) + 1
        rotated = steps[start:] + steps[:start]
        return {"text": "".join(rng.choice(DIGITS if s > 0 else OPERATORS) for s in rotated)}

    def text(self, state: State) -> str:
        return state["text"]

    def values(self, state: State) -> list[str]:
        stack: list[int] = []
        found = []
        for symbol in state["text"]:
            if symbol in DIGITS:
                stack.append(int(symbol))
            else:
                b, a = stack.pop(), stack.pop()
                stack.append(combined(symbol, a, b))
                found.append(str(stack[-1]))
        return found

    def answer(self, state: State) -> str:
        return self.values(state)[-1]

    def flaw(self, state: State, answer: str) -> str | None:
        """Reads it from the right, as a tree: an operator, its second part, its first."""
        symbols = list(state["text"])

        def value() -> int:
            symbol = symbols.pop()
            if symbol in DIGITS:
                return int(symbol)
            second = value()
            return combined(symbol, value(), second)

        found = value()
        return None if int(answer) == found else f"it is {found}"

    def num_forms(self, level: int) -> int:
        count = NUM_OPERATORS[level]
        shapes = math.comb(2 * count, count) // (count + 1)
        return shapes * len(OPERATORS) ** count * len(DIGITS) ** (count + 1)
