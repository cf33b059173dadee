"""Nonograms: fill cells so that the runs of every row and column are as told. Any fit counts."""

import functools
import random
from collections.abc import Sequence

from loong_jax.environments import answers
from loong_jax.environments.environment import Puzzle, State

SIZE = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}


def runs(cells: Sequence[int]) -> list[int]:
    """Lengths of the runs of filled cells; [0] where there are none."""
    text = "".join("#" if cell else " " for cell in cells)
    return [len(run) for run in text.split()] or [0]


@functools.cache
def _rows(size: int, clue: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every row of this size with these runs."""
    found = []
    for bits in range(1 << size):
        cells = tuple(bits >> place & 1 for place in range(size))
        if tuple(runs(cells)) == clue:
            found.append(cells)
    return found


def _may_continue(cells: Sequence[int], clue: Sequence[int], size: int) -> bool:
    """Whether the first cells of a line can become a line with these runs."""
    found = runs(cells) if any(cells) else []
    is_open = bool(cells) and cells[-1] == 1
    closed = found[:-1] if is_open else found
    wanted = [run for run in clue if run]
    if len(found) > len(wanted) or closed != wanted[: len(closed)]:
        return False
    if is_open and found[-1] > wanted[len(closed)]:
        return False
    rest = wanted[len(closed) :]
    needed = sum(rest) + max(0, len(rest) - 1) - (found[-1] if is_open else 0)
    return needed <= size - len(cells)


class Nonogram(Puzzle):
    """State: {"rows": runs of each row, "columns": runs of each column}."""

    name = "nonogram"

    def draw(self, level: int, rng: random.Random) -> State | None:
        size = SIZE[level]
        cells = [[int(rng.random() < 0.55) for _ in range(size)] for _ in range(size)]
        return {
            "rows": [runs(row) for row in cells],
            "columns": [runs(column) for column in zip(*cells, strict=True)],
        }

    def prompt(self, state: State) -> str:
        size = len(state["rows"])
        words = {
            side: "; ".join(" ".join(map(str, clue)) for clue in state[side])
            for side in ("rows", "columns")
        }
        return (
            f"Fill some cells of a {size} by {size} grid. For each line the lengths of its runs of "
            "filled cells are told in order; 0 means that no cell is filled.\nRows from top to "
            f"bottom: {words['rows']}\nColumns from left to right: {words['columns']}\nAny grid "
            f"that fits is right. Answer with {size} lines of {size} symbols: # for a filled cell "
            "and . for an empty one."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        size = len(state["rows"])
        cells = [[cell == "#" for cell in row] for row in answers.grid(answer, size, size, "#.")]
        for number, (row, clue) in enumerate(zip(cells, state["rows"], strict=True), 1):
            if runs(row) != clue:
                return f"the runs of row {number} are {runs(row)}"
        columns = zip(*cells, strict=True)
        for number, (column, clue) in enumerate(zip(columns, state["columns"], strict=True), 1):
            if runs(column) != clue:
                return f"the runs of column {number} are {runs(column)}"
        return None

    def answer(self, state: State) -> str:
        size = len(state["rows"])

        def extend(rows: list[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
            if len(rows) == size:
                return rows
            for row in _rows(size, tuple(state["rows"][len(rows)])):
                columns = zip(*rows, row, strict=True)
                if all(
                    _may_continue(column, clue, size)
                    for column, clue in zip(columns, state["columns"], strict=True)
                ) and (found := extend([*rows, row])):
                    return found
            return None

        found = extend([])
        assert found is not None
        return "\n".join("".join("#" if cell else "." for cell in row) for row in found)
