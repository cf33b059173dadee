"""Formulas from examples: a short formula over p, q, r, s that agrees with every row shown."""

import itertools
import random
import re

from loong_jax.environments.answers import Malformed, one_line
from loong_jax.environments.environment import Puzzle, State

SHAPES = {1: (2, 7), 2: (3, 8), 3: (4, 9), 4: (5, 10), 5: (6, 11)}
"""Level: operators, rows shown."""
NAMES = "pqrs"
MAX_DEPTH = 40


def _columns(rows: list[str]) -> dict[str, int]:
    """The values of each name over the rows as a bit mask; a row is `1010` (p, q, r, s)."""
    return {
        name: sum(1 << place for place, row in enumerate(rows) if row[index] == "1")
        for index, name in enumerate(NAMES)
    }


def _shortest(rows: list[str], num_operators: int) -> list[dict[int, str]]:
    """By number of operators: each mask that no shorter formula has, with one formula."""
    full = (1 << len(rows)) - 1
    sizes: list[dict[int, str]] = [{mask: name for name, mask in _columns(rows).items()}]
    seen = set(sizes[0])
    for count in range(1, num_operators + 1):
        found: dict[int, str] = {}
        for mask, text in sizes[count - 1].items():
            if full ^ mask not in seen:
                found.setdefault(full ^ mask, f"not {text}")
        for left in range(count):
            right = count - 1 - left
            if left > right:
                break
            for (a, x), (b, y) in itertools.product(sizes[left].items(), sizes[right].items()):
                if a & b not in seen:
                    found.setdefault(a & b, f"({x} and {y})")
                if a | b not in seen:
                    found.setdefault(a | b, f"({x} or {y})")
        seen |= set(found)
        sizes.append(found)
    return sizes


class _Parser:
    """formula := part (and part)* | part (or part)*; part := NAME | not part | ( formula )."""

    def __init__(self, text: str, columns: dict[str, int], full: int):
        self._tokens = re.findall(r"[a-z]+|\S", text)
        self._columns, self._full = columns, full
        self._place = 0
        self.num_operators = 0

    def mask(self) -> int:
        found = self._formula(0)
        if self._place < len(self._tokens):
            raise Malformed(f"{self._tokens[self._place][:20]!r} was not expected")
        return found

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _formula(self, depth: int) -> int:
        found = self._part(depth)
        operator = self._peek()
        while self._peek() in ("and", "or"):
            if self._peek() != operator:
                raise Malformed("'and' and 'or' are mixed without brackets")
            self._place += 1
            self.num_operators += 1
            other = self._part(depth)
            found = found & other if operator == "and" else found | other
        return found

    def _part(self, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise Malformed(f"nested deeper than {MAX_DEPTH}")
        token = self._peek()
        self._place += 1
        if token == "not":
            self.num_operators += 1
            return self._full ^ self._part(depth + 1)
        if token == "(":
            found = self._formula(depth + 1)
            if self._peek() != ")":
                raise Malformed("a bracket is not closed")
            self._place += 1
            return found
        if token not in self._columns:
            raise Malformed(f"{token[:20]!r} is not one of {', '.join(NAMES)}")
        return self._columns[token]


class FormulaInduction(Puzzle):
    """State: {"rows": ["1010", ...], "values": "01...", "operators"}.

    No formula with fewer operators agrees with the rows.
    """

    name = "formula_induction"

    def draw(self, level: int, rng: random.Random) -> State | None:
        num_operators, num_rows = SHAPES[level]
        rows = rng.sample(["".join(bits) for bits in itertools.product("01", repeat=4)], num_rows)
        rows.sort()
        masks = sorted(_shortest(rows, num_operators)[-1])
        if not masks:
            return None
        mask = rng.choice(masks)
        values = "".join(str(mask >> place & 1) for place in range(num_rows))
        return {"rows": rows, "values": values, "operators": num_operators}

    def prompt(self, state: State) -> str:
        rows = "\n".join(
            f"{' '.join(row)} | {value}"
            for row, value in zip(state["rows"], state["values"], strict=True)
        )
        return (
            f"Some rows of the truth table of a formula (1 is true):\n{' '.join(NAMES)} | value\n"
            f"{rows}\nFind a formula that agrees with all of them and has at most "
            f"{state['operators']} operators. It is built from p, q, r, s, not, and, or, and "
            "brackets; 'and' and 'or' are never mixed without brackets, and 'not' binds most. Any "
            "such formula is right. Answer with the formula on one line, as in\n(p and not q) or r"
        )

    def flaw(self, state: State, answer: str) -> str | None:
        rows = state["rows"]
        parser = _Parser(one_line(answer), _columns(rows), (1 << len(rows)) - 1)
        mask = parser.mask()
        if parser.num_operators > state["operators"]:
            return f"{parser.num_operators} operators, more than {state['operators']}"
        for place, value in enumerate(state["values"]):
            if mask >> place & 1 != int(value):
                return f"row {rows[place]} is not {value}"
        return None

    def answer(self, state: State) -> str:
        mask = sum(1 << place for place, value in enumerate(state["values"]) if value == "1")
        sizes = _shortest(state["rows"], state["operators"])
        return next(found[mask] for found in sizes if mask in found)
