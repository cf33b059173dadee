"""Sudoku: rows, columns and boxes hold every digit once. The solution is unique."""

import random

from loong_jax.environments import answers, csp
from loong_jax.environments.environment import Puzzle, State

SHAPES = {1: (2, 2, 6), 2: (2, 2, 9), 3: (2, 3, 18), 4: (3, 3, 38), 5: (3, 3, 48)}
DIGITS = "123456789"
"""Level: rows and columns of a box, number of empty cells."""


def _boxes(rows: int, columns: int) -> list[int]:
    """The box of every cell of a square of rows * columns cells a side."""
    size = rows * columns
    return [
        (row // rows) * rows + column // columns for row in range(size) for column in range(size)
    ]


def _network(rows: int, columns: int) -> csp.Network:
    size, box = rows * columns, _boxes(rows, columns)
    network = csp.Network(size * size, size)
    for a in range(size * size):
        for b in range(a):
            if a // size == b // size or a % size == b % size or box[a] == box[b]:
                network.relate(a, b, csp.differ)
    return network


def _domains(cells: str, size: int) -> list[int]:
    return [(1 << size) - 1 if cell == "." else 1 << (int(cell) - 1) for cell in cells]


class Sudoku(Puzzle):
    """State: {"box": [2, 3], "cells": "1..4..."}."""

    name = "sudoku"

    def draw(self, level: int, rng: random.Random) -> State | None:
        rows, columns, num_empty = SHAPES[level]
        size = rows * columns
        network = _network(rows, columns)
        full = (1 << size) - 1
        domains = [full] * size**2
        for cell, digit in enumerate(rng.sample(range(size), size)):
            domains[cell] = 1 << digit  # the first row; search fills the rest
        first_column = [row * size for row in range(rows, size)]
        for cell in rng.sample(first_column, min(2, len(first_column))):
            domains[cell] = 1 << rng.randrange(size)
        solutions = network.solutions(domains, 1)
        if not solutions:
            return None
        solution = _shuffled(solutions[0], rows, columns, rng)
        masks = [1 << digit for digit in solution]
        cells = list(range(size**2))
        rng.shuffle(cells)
        empty = 0
        for cell in cells:
            if empty == num_empty:
                break
            masks[cell] = full ^ (1 << solution[cell])
            others = network.solutions(masks, 1)  # one that differs in this cell
            masks[cell] = 1 << solution[cell] if others else full
            empty += not others
        if empty < num_empty:
            return None
        text = "".join("." if mask == full else DIGITS[mask.bit_length() - 1] for mask in masks)
        return {"box": [rows, columns], "cells": text}

    def prompt(self, state: State) -> str:
        rows, columns = state["box"]
        size = rows * columns
        cells = state["cells"]
        board = "\n".join(cells[start : start + size] for start in range(0, size**2, size))
        return (
            f"Fill the {size} by {size} grid with the digits 1 to {size} so that every row, every "
            f"column and every box of {rows} rows by {columns} columns holds each digit once. A "
            f"dot is an empty cell. There is exactly one solution.\n{board}\n"
            f"Answer with the whole grid: {size} lines of {size} digits."
        )

    def canonical(self, state: State) -> str:
        """Digits renamed in order of appearance: renaming makes no other puzzle."""
        names: dict[str, str] = {".": "."}
        for cell in state["cells"]:
            if cell not in names:
                names[cell] = DIGITS[len(names) - 1]
        rows, columns = state["box"]
        return f"{rows}x{columns}:" + "".join(names[cell] for cell in state["cells"])

    def flaw(self, state: State, answer: str) -> str | None:
        rows, columns = state["box"]
        size = rows * columns
        given = "".join(answers.grid(answer, size, size, DIGITS[:size]))
        for cell, (clue, digit) in enumerate(zip(state["cells"], given, strict=True)):
            if clue not in (".", digit):
                return f"row {cell // size + 1}, column {cell % size + 1} was {clue}"
        box = _boxes(rows, columns)
        for kind, group in (
            ("row", [cell // size for cell in range(size**2)]),
            ("column", [cell % size for cell in range(size**2)]),
            ("box", box),
        ):
            for index in range(size):
                digits = {given[cell] for cell in range(size**2) if group[cell] == index}
                if len(digits) < size:
                    return f"{kind} {index + 1} repeats a digit"
        return None

    def answer(self, state: State) -> str:
        rows, columns = state["box"]
        size = rows * columns
        domains = _domains(state["cells"], size)
        solution = _network(rows, columns).solutions(domains, 1)[0]
        text = "".join(DIGITS[digit] for digit in solution)
        return "\n".join(text[start : start + size] for start in range(0, size**2, size))


def _shuffled(solution: list[int], rows: int, columns: int, rng: random.Random) -> list[int]:
    """Another solution: rows within bands and columns within stacks change places."""
    size = rows * columns
    row_order = [
        band * rows + row
        for band in rng.sample(range(columns), columns)
        for row in rng.sample(range(rows), rows)
    ]
    column_order = [
        stack * columns + column
        for stack in rng.sample(range(rows), rows)
        for column in rng.sample(range(columns), columns)
    ]
    return [solution[row * size + column] for row in row_order for column in column_order]
