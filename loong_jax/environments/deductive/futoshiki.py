"""Futoshiki: a Latin square with inequalities between neighbours. The solution is unique."""

import itertools
import random

from loong_jax.environments import answers, csp
from loong_jax.environments.environment import Puzzle, State

SHAPES = {1: (4, 9), 2: (4, 13), 3: (5, 17), 4: (5, 21), 5: (6, 29)}
"""Level: size, number of empty cells."""
SHARE_COMPARED = 0.45  # of the pairs of neighbours


def _network(size: int, less: list[list[int]]) -> csp.Network:
    network = csp.Network(size * size, size)
    for a, b in itertools.combinations(range(size * size), 2):
        if a // size == b // size or a % size == b % size:
            network.relate(a, b, csp.differ)
    for a, b in less:
        network.relate(a, b, csp.less)
    return network


def _place(cell: int, size: int) -> str:
    return f"({cell // size + 1},{cell % size + 1})"


class Futoshiki(Puzzle):
    """State: {"cells": "1..4...", "less": [[cell, larger cell], ...]}."""

    name = "futoshiki"

    def draw(self, level: int, rng: random.Random) -> State | None:
        size, num_empty = SHAPES[level]
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
        network, full = _network(size, less), (1 << size) - 1
        masks = [1 << digit for digit in solution]
        empty = 0
        for cell in rng.sample(range(size * size), size * size):
            if empty == num_empty:
                break
            masks[cell] = full ^ (1 << solution[cell])
            others = network.solutions(masks, 1)  # one that differs in this cell
            masks[cell] = 1 << solution[cell] if others else full
            empty += not others
        if empty < num_empty:
            return None
        cells = "".join("." if mask == full else str(mask.bit_length()) for mask in masks)
        return {"cells": cells, "less": less}

    def _size(self, state: State) -> int:
        return round(len(state["cells"]) ** 0.5)

    def prompt(self, state: State) -> str:
        size, cells = self._size(state), state["cells"]
        board = "\n".join(cells[start : start + size] for start in range(0, size**2, size))
        less = ", ".join(f"{_place(a, size)} < {_place(b, size)}" for a, b in state["less"])
        return (
            f"Fill the {size} by {size} grid with the digits 1 to {size} so that every row and "
            "every column holds each digit once. A dot is an empty cell.\n"
            f"{board}\nWith (row, column) counted from 1 at the top left, also: {less}.\nThere is "
            f"exactly one solution. Answer with the whole grid: {size} lines of {size} digits."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        size = self._size(state)
        rows = answers.grid(answer, size, size, "123456789"[:size])
        given = "".join(rows)
        for cell, (clue, digit) in enumerate(zip(state["cells"], given, strict=True)):
            if clue not in (".", digit):
                return f"{_place(cell, size)} was {clue}"
        for kind, found in (("row", rows), ("column", zip(*rows, strict=True))):
            for number, line in enumerate(found, 1):
                if len(set(line)) < size:
                    return f"{kind} {number} repeats a digit"
        for a, b in state["less"]:
            if given[a] >= given[b]:
                return f"not {_place(a, size)} < {_place(b, size)}"
        return None

    def answer(self, state: State) -> str:
        size = self._size(state)
        domains = [
            (1 << size) - 1 if cell == "." else 1 << (int(cell) - 1) for cell in state["cells"]
        ]
        text = "".join(str(v + 1) for v in _network(size, state["less"]).solutions(domains, 1)[0])
        return "\n".join(text[start : start + size] for start in range(0, size**2, size))
