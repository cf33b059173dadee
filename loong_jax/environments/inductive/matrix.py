"""Matrices in the manner of Raven: the missing cell under every rule of a stated list that fits."""

import random
from collections.abc import Callable, Sequence

from loong_jax.environments import answers
from loong_jax.environments.environment import Puzzle, State

NUM_ATTRIBUTES = {1: 2, 2: 3, 3: 4, 4: 5, 5: 6}
BASE = 10

Triple = Sequence[int]


def _step(d: int) -> Callable[[int, int, Triple], int | None]:
    return lambda a, b, _: (b + d) % BASE if (a + d) % BASE == b else None


def _spread(a: int, b: int, values: Triple) -> int | None:
    rest = list(values)
    for value in (a, b):
        if value not in rest:
            return None
        rest.remove(value)
    return rest[0]


RULES: dict[str, Callable[[int, int, Triple], int | None]] = {
    **{f"step {d}": _step(d) for d in range(BASE)},
    "sum": lambda a, b, _: (a + b) % BASE,
    "difference": lambda a, b, _: (a - b) % BASE,
    "spread": _spread,
}
"""Third value of a row from its first two and the first row's values, or None: it cannot hold."""


def _thirds(column: Sequence[Triple]) -> set[int]:
    """The third entries that some rule, true of the first two rows, gives for the third row."""
    found = set()
    for rule in RULES.values():
        if all(rule(row[0], row[1], column[0]) == row[2] for row in column[:2]):
            third = rule(column[2][0], column[2][1], column[0])
            if third is not None:
                found.add(third)
    return found


class MissingCell(Puzzle):
    """State: {"cells": eight cells of digits in reading order}."""

    name = "matrix_completion"

    def draw(self, level: int, rng: random.Random) -> State | None:
        columns: list[list[list[int]]] = []
        for _ in range(NUM_ATTRIBUTES[level]):
            name = rng.choice(("step", "sum", "difference", "spread"))
            values = rng.sample(range(BASE), 3)
            step = rng.randrange(BASE)
            rows = []
            for _ in range(3):
                a, b = rng.randrange(BASE), rng.randrange(BASE)
                if name == "spread":
                    rows.append(rng.sample(values, 3))
                elif name == "step":
                    rows.append([a, (a + step) % BASE, (a + 2 * step) % BASE])
                else:
                    rows.append([a, b, (a + b if name == "sum" else a - b) % BASE])
            if len({tuple(row) for row in rows}) < 3 or _thirds(rows) != {rows[2][2]}:
                return None
            columns.append(rows)
        cells = [
            "".join(str(column[row][place]) for column in columns)
            for row in range(3)
            for place in range(3)
        ]
        return {"cells": cells[:8]} if cells[8] not in cells[:8] else None

    def prompt(self, state: State) -> str:
        cells = [*state["cells"], "?" * len(state["cells"][0])]
        rows = "\n".join(" ".join(cells[start : start + 3]) for start in (0, 3, 6))
        count = len(state["cells"][0])
        return (
            f"Each cell holds {count} digits. At every place of the digits one rule holds in all "
            "three rows, perhaps another one at each place. With the digits a, b, c of a row, from "
            "left to right and modulo 10, the rules are: b = a + d and c = b + d with one d from 0 "
            "to 9 for all rows; c = a + b; c = a - b; or each row holds the same three digits in "
            f"some order.\n{rows}\nAll rules that fit agree on the missing cell. Answer with its "
            f"{count} digits."
        )

    def canonical(self, state: State) -> str:
        """Places in sorted order: their order does not matter."""
        return "/".join(sorted("".join(place) for place in zip(*state["cells"], strict=True)))

    def answer(self, state: State) -> str:
        missing = []
        for place in range(len(state["cells"][0])):
            digits = [int(cell[place]) for cell in state["cells"]]
            (third,) = _thirds([digits[:3], digits[3:6], digits[6:]])
            missing.append(str(third))
        return "".join(missing)

    def flaw(self, state: State, answer: str) -> str | None:
        missing = self.answer(state)
        (given,) = answers.grid(answer, 1, len(missing), "0123456789")
        return answers.difference(given, missing, "digit")
