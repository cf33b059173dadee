"""Boards: squares of digits, each once in every row and column; nonograms; lights out."""

import functools
import itertools
import operator
import random
from collections.abc import Sequence
from typing import Any

from loong_jax.environments import answers, csp
from loong_jax.environments.environment import Puzzle, State

SUDOKUS = {1: (2, 2, 6), 2: (2, 2, 9), 3: (2, 3, 18), 4: (3, 3, 38), 5: (3, 3, 48)}
"""Level: rows and columns of a box, number of empty cells."""
FUTOSHIKIS = {1: (4, 9), 2: (4, 13), 3: (5, 17), 4: (5, 21), 5: (6, 29)}
"""Level: size, number of empty cells."""
SHARE_COMPARED = 0.45  # of the pairs of neighbours
DIGITS = "123456789"


def _size(cells: str) -> int:
    return round(len(cells) ** 0.5)


def _board(cells: str) -> str:
    size = _size(cells)
    return "\n".join(cells[start : start + size] for start in range(0, size**2, size))


def _place(cell: int, size: int) -> str:
    return f"({cell // size + 1},{cell % size + 1})"


Groups = dict[str, list[int]]  # kind -> which row, column or box each cell is in


def _lines(size: int) -> Groups:
    cells = range(size**2)
    return {"row": [c // size for c in cells], "column": [c % size for c in cells]}


def _network(groups: Groups, less: Sequence[Sequence[int]] = ()) -> csp.Network:
    """Cells of one group differ; of each pair in `less` the first is smaller."""
    num_cells = len(groups["row"])
    network = csp.Network(num_cells, round(num_cells**0.5))
    for a, b in itertools.combinations(range(num_cells), 2):
        if any(group[a] == group[b] for group in groups.values()):
            network.relate(a, b, operator.ne)
    for a, b in less:
        network.relate(a, b, operator.lt)
    return network


def _emptied(
    network: csp.Network, solution: Sequence[int], num_empty: int, order: Sequence[int]
) -> str | None:
    """The cells of a puzzle with this one solution; None where too few can be empty.

    Cells are tried in `order`, and one stays empty if no solution differs in it.
    """
    full = (1 << network.size) - 1
    masks = [1 << digit for digit in solution]
    empty = 0
    for cell in order:
        if empty == num_empty:
            break
        masks[cell] = full ^ (1 << solution[cell])
        others = network.solutions(masks, 1)
        masks[cell] = 1 << solution[cell] if others else full
        empty += not others
    if empty < num_empty:
        return None
    return "".join("." if mask == full else str(mask.bit_length()) for mask in masks)


class _Square(Puzzle):
    """State: {"cells": the digits given row by row, a dot for none, ...}, perhaps with "less"."""

    def groups(self, state: State) -> Groups:
        return _lines(_size(state["cells"]))

    def flaw(self, state: State, answer: str) -> str | None:
        size = _size(state["cells"])
        given = "".join(answers.grid(answer, size, size, DIGITS[:size]))
        for cell, (clue, digit) in enumerate(zip(state["cells"], given, strict=True)):
            if clue not in (".", digit):
                return f"{_place(cell, size)} was {clue}"
        for kind, group in self.groups(state).items():
            for index in range(size):
                digits = {given[cell] for cell in range(size**2) if group[cell] == index}
                if len(digits) < size:
                    return f"{kind} {index + 1} repeats a digit"
        for a, b in state.get("less", ()):
            if given[a] >= given[b]:
                return f"not {_place(a, size)} < {_place(b, size)}"
        return None

    def answer(self, state: State) -> str:
        cells, full = state["cells"], (1 << _size(state["cells"])) - 1
        domains = [full if cell == "." else 1 << (int(cell) - 1) for cell in cells]
        network = _network(self.groups(state), state.get("less", ()))
        return _board("".join(str(digit + 1) for digit in network.solutions(domains, 1)[0]))


def _with_boxes(rows: int, columns: int) -> Groups:
    """Groups of a square whose boxes have so many rows and columns."""
    groups = _lines(rows * columns)
    places = zip(groups["row"], groups["column"], strict=True)
    return groups | {"box": [r // rows * rows + c // columns for r, c in places]}


class Sudoku(_Square):
    """State: {"box": [2, 3], "cells": "1..4..."}."""

    name = "sudoku"

    def draw(self, level: int, rng: random.Random) -> State | None:
        rows, columns, num_empty = SUDOKUS[level]
        size = rows * columns
        network = _network(_with_boxes(rows, columns))
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
        order = list(range(size**2))
        rng.shuffle(order)
        cells = _emptied(network, solution, num_empty, order)
        return None if cells is None else {"box": [rows, columns], "cells": cells}

    def prompt(self, state: State) -> str:
        rows, columns = state["box"]
        size = rows * columns
        return (
            f"Fill the {size} by {size} grid with the digits 1 to {size} so that every row, every "
            f"column and every box of {rows} rows by {columns} columns holds each digit once. A "
            f"dot is an empty cell. There is exactly one solution.\n{_board(state['cells'])}\n"
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

    def groups(self, state: State) -> Groups:
        return _with_boxes(*state["box"])


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


class Futoshiki(_Square):
    """State: {"cells": "1..4...", "less": [[cell, larger cell], ...]}."""

    name = "futoshiki"

    def draw(self, level: int, rng: random.Random) -> State | None:
        size, num_empty = FUTOSHIKIS[level]
        orders = [rng.sample(range(size), size) for _ in range(3)]
        solution = [
            orders[2][(orders[0][row] + orders[1][column]) % size]
            for row in range(size)
            for column in range(size)
        ]
        pairs = [(c, c + 1) for c in range(size * size) if (c + 1) % size]
        pairs += [(c, c + size) for c in range(size * (size - 1))]
        chosen = sorted(rng.sample(pairs, round(SHARE_COMPARED * len(pairs))))
        less = [[a, b] if solution[a] < solution[b] else [b, a] for a, b in chosen]
        order = rng.sample(range(size * size), size * size)
        cells = _emptied(_network(_lines(size), less), solution, num_empty, order)
        return None if cells is None else {"cells": cells, "less": less}

    def prompt(self, state: State) -> str:
        size = _size(state["cells"])
        less = ", ".join(f"{_place(a, size)} < {_place(b, size)}" for a, b in state["less"])
        return (
            f"Fill the {size} by {size} grid with the digits 1 to {size} so that every row and "
            "every column holds each digit once. A dot is an empty cell.\n"
            f"{_board(state['cells'])}\nWith (row, column) counted from 1 at the top left, also: "
            f"{less}.\nThere is exactly one solution. Answer with the whole grid: {size} lines of "
            f"{size} digits."
        )


NONOGRAMS = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}


def runs(cells: Sequence[int]) -> list[int]:
    """Lengths of the runs of filled cells; [0] where there are none."""
    text = "".join("#" if cell else " " for cell in cells)
    return [len(run) for run in text.split()] or [0]


@functools.cache
def _fitting(size: int, clue: tuple[int, ...]) -> list[tuple[int, ...]]:
    every = (tuple(bits >> place & 1 for place in range(size)) for bits in range(1 << size))
    return [cells for cells in every if tuple(runs(cells)) == clue]


class Nonogram(Puzzle):
    """State: {"rows": runs of each row, "columns": runs of each column}."""

    name = "nonogram"

    def draw(self, level: int, rng: random.Random) -> State | None:
        size = NONOGRAMS[level]
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
            for row in _fitting(size, tuple(state["rows"][len(rows)])):
                left = [
                    [line for line in lines if line[len(rows)] == cell]
                    for lines, cell in zip(columns, row, strict=True)
                ]
                if all(left) and (found := extend([*rows, row], left)):
                    return found
            return None

        found = extend([], [_fitting(size, tuple(clue)) for clue in state["columns"]])
        return "\n".join("".join("#" if cell else "." for cell in row) for row in found)


LIGHTS = {1: 3, 2: 4, 3: 5, 4: 6, 5: 7}


def switched(size: int, cell: int) -> int:
    """The lights that one switch changes, as a bit mask: its own and its neighbours'."""
    row, column = divmod(cell, size)
    mask = 1 << cell
    for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
        if 0 <= r < size and 0 <= c < size:
            mask |= 1 << (r * size + c)
    return mask


def _mask(rows: list[str]) -> int:
    return sum(1 << place for place, cell in enumerate("".join(rows)) if cell == "1")


def _rows(mask: int, size: int) -> list[str]:
    return [
        "".join(str(mask >> (row * size + column) & 1) for column in range(size))
        for row in range(size)
    ]


class LightsOut(Puzzle):
    """State: {"lights": rows of 0 and 1}."""

    name = "lights_out"

    def draw(self, level: int, rng: random.Random) -> State | None:
        size, lights = LIGHTS[level], 0
        for cell in range(size * size):
            if rng.random() < 0.5:
                lights ^= switched(size, cell)
        return {"lights": _rows(lights, size)} if lights else None

    def prompt(self, state: State) -> str:
        size = len(state["lights"])
        return (
            f"A {size} by {size} grid of lights, each with a switch that turns over its own light "
            "and those just above, below, left and right of it. All lights were off; then some "
            "switches were pressed once. Now the lights are (1 is on):\n"
            + "\n".join(state["lights"])
            + "\nWhich switches were pressed? Any set that gives these lights is right. Answer "
            f"with {size} lines of {size} symbols: 1 for a pressed switch, 0 for the others."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        size = len(state["lights"])
        pressed = _mask(answers.grid(answer, size, size, "01"))
        lights = 0
        for cell in range(size * size):
            if pressed >> cell & 1:
                lights ^= switched(size, cell)
        wrong = lights ^ _mask(state["lights"])
        if not wrong:
            return None
        row, column = divmod((wrong & -wrong).bit_length() - 1, size)
        return f"the light in row {row + 1}, column {column + 1} would be another"

    def answer(self, state: State) -> str:
        """Elimination over GF(2): each basis vector carries the presses that make it."""
        size = len(state["lights"])
        basis: dict[int, tuple[int, int]] = {}  # highest bit: lights, presses

        def reduced(lights: int, presses: int) -> tuple[int, int]:
            while lights and lights.bit_length() in basis:
                other, more = basis[lights.bit_length()]
                lights, presses = lights ^ other, presses ^ more
            return lights, presses

        for cell in range(size * size):
            lights, presses = reduced(switched(size, cell), 1 << cell)
            if lights:
                basis[lights.bit_length()] = (lights, presses)
        rest, presses = reduced(_mask(state["lights"]), 0)
        assert not rest
        return "\n".join(_rows(presses, size))
