"""Abduction: the code behind marks, the operators behind a result, what came before."""

import collections
import itertools
import random
import re
from collections.abc import Iterator, Sequence

from loong_jax.environments import answers
from loong_jax.environments.answers import Malformed, one_line
from loong_jax.environments.environment import Puzzle, State, canonical_json
from loong_jax.environments.inductive import automaton

CODES = {1: (3, 6), 2: (4, 5), 3: (4, 6), 4: (4, 7), 5: (4, 8)}
"""Level: places, digits."""
DIGITS = "123456789"


def marks(code: str, guess: str) -> tuple[int, int]:
    """Right digits in the right place, and right digits in a wrong place."""
    exact = sum(a == b for a, b in zip(code, guess, strict=True))
    common = sum(min(code.count(digit), guess.count(digit)) for digit in set(guess))
    return exact, common - exact


def _codes(state: State) -> Iterator[str]:
    """Every code that explains the marks."""
    for digits in itertools.product(DIGITS[: state["digits"]], repeat=state["places"]):
        code = "".join(digits)
        if all(marks(code, guess) == (a, b) for guess, a, b in state["guesses"]):
            yield code


class Mastermind(Puzzle):
    """Mastermind: the one code that explains the marks of all guesses.

    State: {"places", "digits", "guesses": [[guess, exact, misplaced], ...]}.

    No guess can be left out.
    """

    name = "mastermind"

    def draw(self, level: int, rng: random.Random) -> State | None:
        places, num_digits = CODES[level]
        digits = DIGITS[:num_digits]
        every = ["".join(code) for code in itertools.product(digits, repeat=places)]
        code, left = rng.choice(every), set(every)
        kept: list[tuple[list, set[str]]] = []  # a guess with its marks, the codes it leaves
        while len(left) > 1:
            guess = rng.choice(sorted(left - {code}))
            seen = marks(code, guess)
            leaves = {other for other in every if marks(other, guess) == seen}
            kept.append(([guess, *seen], leaves))
            left &= leaves
        for entry in list(kept):
            rest = [leaves for guess, leaves in kept if guess is not entry[0]]
            if rest and len(set.intersection(*rest)) == 1:
                kept = [other for other in kept if other is not entry]
        guesses = [guess for guess, _ in kept]
        return {"places": places, "digits": num_digits, "guesses": guesses}

    def prompt(self, state: State) -> str:
        rows = "\n".join(f"{guess}: {a} exact, {b} misplaced" for guess, a, b in state["guesses"])
        return (
            f"A secret code has {state['places']} digits from 1 to {state['digits']}; a digit may "
            "occur more than once. For each guess it is told how many digits are right and in the "
            "right place (exact), and how many more of its digits occur in the code in another "
            f"place (misplaced; each digit of the code counts once).\n{rows}\nExactly one code "
            f"explains this. Answer with its {state['places']} digits."
        )

    def canonical(self, state: State) -> str:
        return canonical_json({**state, "guesses": sorted(state["guesses"])})

    def flaw(self, state: State, answer: str) -> str | None:
        (code,) = answers.grid(answer, 1, state["places"], DIGITS[: state["digits"]])
        for guess, a, b in state["guesses"]:
            if marks(code, guess) != (a, b):
                return f"the guess {guess} would be marked otherwise"
        return None

    def answer(self, state: State) -> str:
        return next(_codes(state))


NUM_NUMBERS = {1: 5, 2: 6, 3: 7, 4: 8, 5: 9}


def value(numbers: Sequence[int], operators: Sequence[str]) -> int:
    """The value with products before sums and from left to right."""
    terms = [numbers[0]]
    for operator, number in zip(operators, numbers[1:], strict=True):
        if operator == "*":
            terms[-1] *= number
        else:
            terms.append(number if operator == "+" else -number)
    return sum(terms)


class MissingOperators(Puzzle):
    """Missing operators: put +, - or * between numbers so that the result is as told.

    State: {"numbers", "result"}. One of the 3^gaps ways gives the result.
    """

    name = "missing_operators"

    def draw(self, level: int, rng: random.Random) -> State | None:
        numbers = [rng.randrange(2, 10) for _ in range(NUM_NUMBERS[level])]
        ways = collections.Counter(
            value(numbers, operators)
            for operators in itertools.product("+-*", repeat=len(numbers) - 1)
        )
        results = sorted(result for result, count in ways.items() if count == 1 and result > 0)
        middle = [result for result in results if result < 50 * len(numbers)]
        return {"numbers": numbers, "result": rng.choice(middle)} if middle else None

    def prompt(self, state: State) -> str:
        return (
            "Put one of +, - and * into every gap so that the result is "
            f"{state['result']}; products come before sums and differences, and there are no "
            f"brackets:\n{' _ '.join(map(str, state['numbers']))} = {state['result']}\nExactly one "
            "way gives it. Answer with the whole left side, as in\n2 + 3 * 4"
        )

    def flaw(self, state: State, answer: str) -> str | None:
        numbers = state["numbers"]
        line = one_line(answer)
        if not re.fullmatch(r"[0-9]( ?[-+*] ?[0-9]){1,20}", line):
            raise Malformed("not digits with +, - or * between them")
        symbols = line.replace(" ", "")
        if [int(digit) for digit in symbols[::2]] != numbers:
            raise Malformed("not the numbers that were given, in their order")
        found = value(numbers, symbols[1::2])
        return None if found == state["result"] else f"the result is {found}"

    def answer(self, state: State) -> str:
        numbers = state["numbers"]
        operators = next(
            chosen
            for chosen in itertools.product("+-*", repeat=len(numbers) - 1)
            if value(numbers, chosen) == state["result"]
        )
        text = str(numbers[0])
        for operator, number in zip(operators, numbers[1:], strict=True):
            text += f" {operator} {number}"
        return text


WIDTH = {1: 8, 2: 10, 3: 12, 4: 14, 5: 16}
TRIPLES = ["".join(bits) for bits in itertools.product("10", repeat=3)]


def _rule(state: State) -> dict[str, str]:
    return dict(zip(TRIPLES, state["rule"], strict=True))


class Predecessor(Puzzle):
    """The past of a cellular automaton: a row from which the row seen was made. Any such row
    counts.

    State: {"rule": results of 111 .. 000, "row"}.

    Half of the rule's results are 1, and the row is not all one symbol.
    """

    name = "predecessor"

    def draw(self, level: int, rng: random.Random) -> State | None:
        rule = "".join(rng.sample("11110000", 8))
        before = "".join(rng.choice("01") for _ in range(WIDTH[level]))
        row = automaton.after(before, _rule({"rule": rule}), 1) or ""
        by_one_place = {"11110000", "00001111", "11001100", "00110011", "10101010", "01010101"}
        if rule in by_one_place or len(set(row)) < 2 or row in (before, before[::-1]):
            return None
        return {"rule": rule, "row": row}

    def prompt(self, state: State) -> str:
        rule = ", ".join(f"{triple} gives {result}" for triple, result in _rule(state).items())
        return (
            "On a ring of cells each new symbol depends on the cell's left neighbour, itself and "
            f"its right neighbour: {rule}. After one step the ring reads {state['row']} (its last "
            "cell is next to its first). Find a ring from which this was made. Any that gives it "
            f"is right. Answer with its {len(state['row'])} symbols, first cell first."
        )

    def canonical(self, state: State) -> str:
        row = state["row"]
        return f"{state['rule']}:{min(row[k:] + row[:k] for k in range(len(row)))}"

    def flaw(self, state: State, answer: str) -> str | None:
        row = state["row"]
        (before,) = answers.grid(answer, 1, len(row), "01")
        found = automaton.after(before, _rule(state), 1)
        return None if found == row else f"it becomes {found}"

    def answer(self, state: State) -> str:
        """Cell by cell, keeping one start for each reachable last pair."""
        rule, row = _rule(state), state["row"]
        for first in ("".join(pair) for pair in itertools.product("01", repeat=2)):
            reached = {first: first}  # last two cells: all cells so far
            for place in range(1, len(row) - 1):
                reached = {
                    (cells + symbol)[-2:]: cells + symbol
                    for cells in reached.values()
                    for symbol in "01"
                    if rule[cells[-2:] + symbol] == row[place]
                }
            for cells in reached.values():
                if automaton.after(cells, rule, 1) == row:
                    return cells
        raise ValueError(f"the row {row} has no predecessor")


SIZES = {1: 3, 2: 4, 3: 5, 4: 6, 5: 7}


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
        size, lights = SIZES[level], 0
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
