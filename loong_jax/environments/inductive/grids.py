"""Grid transformations in the manner of ARC: examples of a program of steps from a stated list.

All programs of the stated length that fit the examples give the same output on the test grid, as a
search over all of them shows when the problem is drawn.
"""

import random
from collections.abc import Callable, Sequence

from loong_jax.environments import answers
from loong_jax.environments.environment import Puzzle, State, canonical_json

Grid = tuple[str, ...]
SHAPES = {1: (1, 3), 2: (2, 3), 3: (2, 4), 4: (3, 4), 5: (3, 5)}
"""Level: steps of the program, size of the grids."""
NUM_EXAMPLES = 3
SYMBOLS = "0123"


def _fall(grid: Grid) -> Grid:
    columns = ("".join(column).replace("0", "") for column in zip(*grid, strict=True))
    return tuple(
        "".join(row) for row in zip(*(c.rjust(len(grid), "0") for c in columns), strict=True)
    )


def _border(grid: Grid) -> Grid:
    inner = tuple("3" + row[1:-1] + "3" for row in grid[1:-1])
    return ("3" * len(grid[0]), *inner, "3" * len(grid[0]))


def _most(grid: Grid) -> Grid:
    text = "".join(grid)
    keep = min("123", key=lambda symbol: (-text.count(symbol), symbol))
    return tuple("".join(c if c == keep else "0" for c in row) for row in grid)


STEPS: dict[str, tuple[str, Callable[[Grid], Grid]]] = {
    "rotate": (
        "turn the grid a quarter clockwise",
        lambda g: tuple(map("".join, zip(*g[::-1], strict=True))),
    ),
    "mirror": ("mirror it left to right", lambda g: tuple(row[::-1] for row in g)),
    "flip": ("mirror it top to bottom", lambda g: g[::-1]),
    "right": (
        "move every column one to the right, the last one to the front",
        lambda g: tuple(row[-1] + row[:-1] for row in g),
    ),
    "down": ("move every row one down, the last one to the top", lambda g: (g[-1], *g[:-1])),
    "swap": (
        "exchange the symbols 1 and 2",
        lambda g: tuple(row.translate(str.maketrans("12", "21")) for row in g),
    ),
    "cycle": (
        "replace 1 by 2, 2 by 3 and 3 by 1",
        lambda g: tuple(row.translate(str.maketrans("123", "231")) for row in g),
    ),
    "fall": ("let all symbols but 0 fall to the bottom of their column", _fall),
    "border": ("overwrite the cells on the edge with 3", _border),
    "most": (
        "keep the most frequent of 1, 2, 3 (the smallest on a tie), make the others 0",
        _most,
    ),
}


def _run(program: Sequence[str], grid: Grid) -> Grid:
    for name in program:
        grid = STEPS[name][1](grid)
    return grid


def _reached(grids: tuple[Grid, ...], length: int) -> list[dict[tuple[Grid, ...], list[str]]]:
    """After each number of steps: what all programs make of the grids, with one program each."""
    rounds: list[dict[tuple[Grid, ...], list[str]]] = [{grids: []}]
    for _ in range(length):
        reached: dict[tuple[Grid, ...], list[str]] = {}
        for before, program in rounds[-1].items():
            for name, (_, step) in STEPS.items():
                reached.setdefault(tuple(map(step, before)), [*program, name])
        rounds.append(reached)
    return rounds


class GridTransformation(Puzzle):
    """State: {"program": names of steps, "examples": [[input, output], ...], "test"}.

    Answers are checked by running the program; `answer` searches for it in the examples. No
    shorter program fits.
    """

    name = "grid_transformation"

    def draw(self, level: int, rng: random.Random) -> State | None:
        length, size = SHAPES[level]
        grids = tuple(
            tuple("".join(rng.choice("00123") for _ in range(size)) for _ in range(size))
            for _ in range(NUM_EXAMPLES + 1)
        )
        program = [rng.choice(sorted(STEPS)) for _ in range(length)]
        outputs = tuple(_run(program, grid) for grid in grids)
        if len(set(outputs)) <= NUM_EXAMPLES:
            return None  # an output that says nothing of its input
        rounds = _reached(grids, length)
        shown = outputs[:NUM_EXAMPLES]
        if any(found[:NUM_EXAMPLES] == shown for reached in rounds[:-1] for found in reached):
            return None
        if len({found for found in rounds[-1] if found[:NUM_EXAMPLES] == shown}) > 1:
            return None
        examples = [[list(a), list(b)] for a, b in zip(grids, shown, strict=False)]
        return {"program": program, "examples": examples, "test": list(grids[-1])}

    def prompt(self, state: State) -> str:
        steps = "\n".join(f"- {words}" for words, _ in STEPS.values())
        examples = "\n".join(
            f"Example {number}:\n" + "\n".join(a) + "\nbecomes\n" + "\n".join(b)
            for number, (a, b) in enumerate(state["examples"], 1)
        )
        size, length = len(state["test"]), len(state["program"])
        return (
            f"One program changes every grid. It has exactly {length} step(s), each from this list "
            f"(a step may occur again):\n{steps}\n{examples}\nTest grid:\n"
            + "\n".join(state["test"])
            + f"\nWhat does it become? Answer with {size} lines of {size} symbols."
        )

    def canonical(self, state: State) -> str:
        shown = {"examples": sorted(state["examples"]), "test": state["test"]}
        return canonical_json(shown | {"length": len(state["program"])})

    def answer(self, state: State) -> str:
        inputs = tuple(tuple(a) for a, _ in state["examples"])
        outputs = tuple(tuple(b) for _, b in state["examples"])
        rounds = _reached((*inputs, tuple(state["test"])), len(state["program"]))
        (found,) = {grids[-1] for grids in rounds[-1] if grids[:-1] == outputs}
        return "\n".join(found)

    def flaw(self, state: State, answer: str) -> str | None:
        size = len(state["test"])
        given = answers.grid(answer, size, size, SYMBOLS)
        return answers.difference(given, _run(state["program"], tuple(state["test"])), "row")
