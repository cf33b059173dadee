"""Nonograms: fill cells so that the runs of every row and column are as told. Any fit counts."""

import functools
import random
from collections.abc import Sequence
from typing import Any

from loong_jax.environments import answers
from loong_jax.environments.environment import Puzzle, State

SIZE = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}


def runs(cells: Sequence[int]) -> list[int]:
    """Lengths of the runs of filled cells; [0] where there are none."""
    text = "".join("#" if cell else " " for cell in cells)
    return [len(run) for run in text.split()] or [0]


@functools.cache
def _lines(size: int, clue: tuple[int, ...]) -> list[tuple[int, ...]]:
    every = (tuple(bits >> place & 1 for place in range(size)) for bits in range(1 << size))
    return [cells for cells in every if tuple(runs(cells)) == clue]


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
        for side, lines in (("row", cells), ("column", zip(*cells, strict=True))):
            for number, (line, clue) in enumerate(zip(lines, state[f"{side}s"], strict=True), 1):
                if runs(line) != clue:
                    return f"the runs of {side} {number} are {runs(line)}"
        return None

    def answer(self, state: State) -> str:
        size = len(state["rows"])

        def extend(rows: list[tuple[int, ...]], columns: list[list[tuple[int, ...]]]) -> Any:
            """`columns` are the lines that each column may still be."""
            if len(rows) == size:
                return rows
            for row in _lines(size, tuple(state["rows"][len(rows)])):
                left = [
                    [line for line in lines if line[len(rows)] == cell]
                    for lines, cell in zip(columns, row, strict=True)
                ]
                if all(left) and (found := extend([*rows, row], left)):
                    return found
            return None

        found = extend([], [_lines(size, tuple(clue)) for clue in state["columns"]])
        return "\n".join("".join("#" if cell else "." for cell in row) for row in found)
