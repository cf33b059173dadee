"""Cellular automata on a ring: read the rule off the rows shown, then continue them.

Every neighbourhood that the continuation meets occurs in the rows shown, so it is unique.
"""

import itertools
import random

from loong_jax.environments import answers
from loong_jax.environments.environment import Puzzle, State

SHAPES = {1: (2, 1, 10, 4, 1), 2: (2, 1, 12, 5, 2), 3: (2, 2, 14, 6, 1), 4: (2, 2, 16, 7, 2),
          5: (2, 2, 18, 8, 3)}  # fmt: skip
"""Level: symbols, radius, width, rows shown, rows asked."""
SYMBOLS = "012"


def neighbourhood(row: str, place: int, radius: int) -> str:
    width = len(row)
    return "".join(row[(place + d) % width] for d in range(-radius, radius + 1))


def after(row: str, rule: dict[str, str], radius: int) -> str | None:
    """The next row, or None where a neighbourhood is not in the rule."""
    symbols = [rule.get(neighbourhood(row, place, radius)) for place in range(len(row))]
    return None if None in symbols else "".join(symbol for symbol in symbols if symbol)


def _seen(rows: list[str], radius: int) -> dict[str, str]:
    return {
        neighbourhood(row, place, radius): below[place]
        for row, below in itertools.pairwise(rows)
        for place in range(len(row))
    }


class CellularRule(Puzzle):
    """State: {"rows", "radius", "asked"}."""

    name = "cellular_rule"

    def draw(self, level: int, rng: random.Random) -> State | None:
        num_symbols, radius, width, num_shown, num_asked = SHAPES[level]
        symbols = SYMBOLS[:num_symbols]
        rows = ["".join(rng.choice(symbols) for _ in range(width))]
        rule: dict[str, str] = {}
        for _ in range(num_shown + num_asked - 1):
            row = rows[-1]
            for place in range(width):  # the rule is drawn entry by entry, as it is needed
                rule.setdefault(neighbourhood(row, place, radius), rng.choice(symbols))
            rows.append(after(row, rule, radius) or "")
        shown, known = rows[:num_shown], _seen(rows[:num_shown], radius)
        asked = rows[num_shown - 1 : -1]
        if any(after(row, known, radius) is None for row in asked):
            return None
        if min(len(set(row)) for row in rows) < 2 or len(set(rows)) < len(rows):
            return None
        return {"rows": shown, "radius": radius, "asked": num_asked}

    def prompt(self, state: State) -> str:
        radius, width = state["radius"], len(state["rows"][0])
        return (
            f"Each row is made from the row above by one rule: the symbol at a place depends on "
            f"the {2 * radius + 1} symbols above it, from {radius} to the left to {radius} to the "
            f"right, and the rows close to a ring.\n" + "\n".join(state["rows"]) + "\nWhat follows "
            f"is settled by these rows. Answer with the next {state['asked']} row(s), one a line, "
            f"{width} symbols each."
        )

    def canonical(self, state: State) -> str:
        """The rows turned so that the first is smallest: the ring has no first place."""
        rows = state["rows"]
        turns = (tuple(row[k:] + row[:k] for row in rows) for k in range(len(rows[0])))
        return f"{state['radius']},{state['asked']}:" + "/".join(min(turns))

    def _continuation(self, state: State) -> list[str]:
        rows, known = list(state["rows"]), _seen(state["rows"], state["radius"])
        for _ in range(state["asked"]):
            row = after(rows[-1], known, state["radius"])
            assert row is not None
            rows.append(row)
        return rows[len(state["rows"]) :]

    def flaw(self, state: State, answer: str) -> str | None:
        width = len(state["rows"][0])
        given = answers.grid(answer, state["asked"], width, SYMBOLS)
        return answers.difference(given, self._continuation(state), "row")

    def answer(self, state: State) -> str:
        return "\n".join(self._continuation(state))
