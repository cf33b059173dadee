"""Lights out, backwards: switches pressed to make the lights seen. Any such set counts."""

import random

from loong_jax.environments import answers
from loong_jax.environments.environment import Puzzle, State

SIZE = {1: 3, 2: 4, 3: 5, 4: 6, 5: 7}


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
        size, lights = SIZE[level], 0
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
