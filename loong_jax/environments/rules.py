"""The continuation under all rules of a stated list that fit: terms, a matrix's cell, a grid."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from loong_jax.environments import answers
from loong_jax.environments.environment import Puzzle, State, canonical_json

CLASSES = {1: "sn", 2: "ps", 3: "pqs", 4: "pqsn", 5: "pqsn"}
"""Level: coefficients that may differ from their default."""
LARGEST = {1: 4, 2: 5, 3: 4, 4: 4, 5: 6}
DEFAULT = {"p": 1, "q": 0, "s": 0, "n": 0}
MEANING = {"p": "p*a(i-1)", "q": "q*a(i-2)", "s": "s", "n": "n*i"}
MODULUS, NUM_SHOWN, NUM_ASKED = 100, 8, 3


def _next(terms: Sequence[int], rule: Sequence[int]) -> int:
    p, q, s, n = rule
    return (p * terms[-1] + q * terms[-2] + s + n * (len(terms) + 1)) % MODULUS


def _continued(start: Sequence[int], rule: Sequence[int], count: int) -> list[int]:
    terms = list(start)
    while len(terms) < count:
        terms.append(_next(terms, rule))
    return terms


def _rules(names: str, largest: int) -> Iterator[tuple[int, ...]]:
    ranges = [range(largest + 1) if name in names else (DEFAULT[name],) for name in DEFAULT]
    return itertools.product(*ranges)


def _predictions(state: State) -> set[tuple[int, ...]]:
    """The asked terms under each rule of the class that fits."""
    shown = state["terms"]
    return {
        tuple(_continued(shown, rule, len(shown) + NUM_ASKED)[len(shown) :])
        for rule in _rules(state["names"], state["largest"])
        if all(_next(shown[:i], rule) == shown[i] for i in range(2, len(shown)))
    }


class NextTerms(Puzzle):
    """State: {"names", "largest", "terms"}."""

    name = "sequence"

    def draw(self, level: int, rng: random.Random) -> State | None:
        names, largest = CLASSES[level], LARGEST[level]
        rule = [rng.randrange(1, largest + 1) if n in names else DEFAULT[n] for n in DEFAULT]
        start = [rng.randrange(MODULUS) for _ in range(2)]
        start[1] = start[1] if "q" in names else _next([0, start[0]], rule)
        terms = _continued(start, rule, NUM_SHOWN)
        state = {"names": names, "largest": largest, "terms": terms}
        if len(set(terms)) <= 5 or len(_predictions(state)) > 1:
            return None  # too regular, or its rule is still open
        return state if self.answer(state) not in ", ".join(map(str, terms)) else None

    def prompt(self, state: State) -> str:
        terms = ["a(i-1)" if "p" not in state["names"] else ""]
        terms += [MEANING[name] for name in DEFAULT if name in state["names"]]
        names = ", ".join(name for name in DEFAULT if name in state["names"])
        return (
            f"A sequence starts {', '.join(map(str, state['terms']))}. From its third term on it "
            f"follows a(i) = ({' + '.join(filter(None, terms))}) mod {MODULUS} with unknown whole "
            f"numbers {names} from 0 to {state['largest']}, where the first term is a(1). All "
            f"such numbers that fit give the same continuation. Answer with the next {NUM_ASKED} "
            "terms on one line, with commas between them."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        given = answers.integers(answer, NUM_ASKED)
        (wanted,) = _predictions(state)
        return answers.difference(given, wanted, "term")

    def answer(self, state: State) -> str:
        (found,) = _predictions(state)
        return ", ".join(map(str, found))


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


Grid = tuple[str, ...]
PROGRAMS = {1: (1, 3), 2: (2, 3), 3: (2, 4), 4: (3, 4), 5: (3, 5)}
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
        length, size = PROGRAMS[level]
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
