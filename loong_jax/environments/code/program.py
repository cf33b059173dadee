"""Code: what a tiny Python program prints, `a=7` `b=3` `a+=b` `b-=4` `a*=2` `print(a)`.

From level 3 on a statement may hang on a comparison. Working longer helps: a solution writes both
variables after every statement.
"""

import dataclasses
import itertools
import random
import re

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import INTEGER, State, Worked

NUM_STATEMENTS = {1: 3, 2: 4, 3: 5, 4: 6, 5: 7}
FIRST_CONDITIONAL_LEVEL = 3
VARIABLES, DIGITS = "ab", "123456789"
PLAIN = tuple(
    [f"{v}{sign}={x}" for v in VARIABLES for sign in "+-" for x in (*VARIABLES, *DIGITS)]
    + [f"{v}*={x}" for v in VARIABLES for x in DIGITS[1:]]
)
CONDITIONS = ("", "if a>b:", "if a<b:")
_STATEMENT = re.compile(r"(?:if (a[<>]b):)?([ab])([-+*])=([ab1-9])")


def after_statement(values: tuple[int, int], statement: str) -> tuple[int, int]:
    """Both variables after one statement of the kind above; nothing else is understood."""
    match = _STATEMENT.fullmatch(statement)
    if match is None:
        raise ValueError(f"{statement!r} is no statement of this environment.")
    condition, target, sign, operand = match.groups()
    a, b = values
    if condition and not (a > b if condition == "a>b" else a < b):
        return values
    by = values[VARIABLES.index(operand)] if operand in VARIABLES else int(operand)
    old = values[VARIABLES.index(target)]
    new = old + by if sign == "+" else old - by if sign == "-" else old * by
    return (new, b) if target == "a" else (a, new)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program(Worked):
    """State: {"start": [7, 3], "statements": ["a+=b", ...], "printed": "a"}."""

    name: str = "program"
    domain: Domain = "code"
    form = INTEGER

    def draw(self, level: int, rng: random.Random) -> State:
        conditions = CONDITIONS if level >= FIRST_CONDITIONAL_LEVEL else CONDITIONS[:1]
        return {
            "start": [int(rng.choice(DIGITS)) for _ in VARIABLES],
            "statements": [
                rng.choice(conditions) + rng.choice(PLAIN) for _ in range(NUM_STATEMENTS[level])
            ],
            "printed": rng.choice(VARIABLES),
        }

    def text(self, state: State) -> str:
        a, b = state["start"]
        return "\n".join([f"a={a}", f"b={b}", *state["statements"], f"print({state['printed']})"])

    def trace(self, state: State) -> list[tuple[int, int]]:
        a, b = state["start"]
        return list(itertools.accumulate(state["statements"], after_statement, initial=(a, b)))

    def values(self, state: State) -> list[str]:
        return [f"{a},{b}" for a, b in self.trace(state)[1:]]

    def answer(self, state: State) -> str:
        return str(self.trace(state)[-1][VARIABLES.index(state["printed"])])

    def flaw(self, state: State, answer: str) -> str | None:
        a, b = state["start"]
        for statement in state["statements"]:
            a, b = after_statement((a, b), statement)
        printed = a if state["printed"] == "a" else b
        return None if int(answer) == printed else f"it prints {printed}"

    def num_forms(self, level: int) -> int:
        conditions = len(CONDITIONS) if level >= FIRST_CONDITIONAL_LEVEL else 1
        statements = (conditions * len(PLAIN)) ** NUM_STATEMENTS[level]
        return len(DIGITS) ** 2 * statements * len(VARIABLES)
