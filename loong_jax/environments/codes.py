"""Digits to be found: behind letters, behind marks; and the operators between them."""

import collections
import itertools
import random
import re
from collections.abc import Sequence

from loong_jax.environments import answers
from loong_jax.environments.answers import Malformed, one_line
from loong_jax.environments.environment import Puzzle, State

SHAPES = {1: (5, 5), 2: (5, 6), 3: (6, 7), 4: (6, 8), 5: (7, 9)}
"""Level: digits of the summands, different letters."""
LETTERS = "ABCDEFGHKM"
MAX_SOLUTIONS = 2


def solutions(words: Sequence[str], limit: int) -> list[dict[str, int]]:
    """Up to `limit` solutions of words[0] + words[1] = words[2], column by column."""
    columns = [
        [word[-place] if place <= len(word) else "" for word in words]
        for place in range(1, len(words[-1]) + 1)
    ]
    leading = {word[0] for word in words}
    found: list[dict[str, int]] = []

    def choices(letter: str, digits: dict[str, int]) -> Sequence[int]:
        if not letter:
            return (0,)
        if letter in digits:
            return (digits[letter],)
        used = set(digits.values())
        return [d for d in range(10) if d not in used and (d or letter not in leading)]

    def fill(place: int, carry: int, digits: dict[str, int]) -> None:
        if len(found) == limit:
            return
        if place == len(columns):
            if not carry:
                found.append(digits)
            return
        first, second, total = columns[place]
        for a in choices(first, digits):
            with_a = digits | {first: a} if first else digits
            for b in choices(second, with_a):
                with_b = with_a | {second: b} if second else with_a
                next_carry, digit = divmod(a + b + carry, 10)
                if digit in choices(total, with_b):
                    fill(place + 1, next_carry, with_b | {total: digit})

    fill(0, 0, {})
    return found


class Cryptarithm(Puzzle):
    """State: {"words": [first, second, sum]}."""

    name = "cryptarithm"

    def draw(self, level: int, rng: random.Random) -> State | None:
        length, num_letters = SHAPES[level]
        usable = rng.sample("0123456789", num_letters)
        a, b = (int("".join(rng.choice(usable) for _ in range(length))) for _ in range(2))
        digits = f"{max(a, b)} {min(a, b)} {a + b}"
        if set(digits) - {" "} != set(usable) or min(a, b) < 10 ** (length - 1):
            return None
        letters = dict(zip(usable, rng.sample(LETTERS, num_letters), strict=True))
        words = "".join(letters.get(digit, " ") for digit in digits).split()
        return {"words": words} if len(solutions(words, MAX_SOLUTIONS)) == 1 else None

    def prompt(self, state: State) -> str:
        first, second, total = state["words"]
        letters = self._letters(state)
        return (
            f"{first} + {second} = {total}\nEach letter stands for one digit, different letters "
            "for different digits, and no number starts with 0. There is exactly one solution. "
            f"Answer with one line that gives each of {', '.join(letters)} its digit, in the form "
            f"{letters[0]}=digit, {letters[1]}=digit, ..."
        )

    def _letters(self, state: State) -> list[str]:
        return sorted(set("".join(state["words"])))

    def canonical(self, state: State) -> str:
        """Letters renamed in order of appearance; summands in the order of their text."""
        forms = []
        first, second, total = state["words"]
        for words in ((first, second, total), (second, first, total)):
            names: dict[str, str] = {}
            for letter in "".join(words):
                names.setdefault(letter, LETTERS[len(names)])
            forms.append(" ".join("".join(names[letter] for letter in word) for word in words))
        return min(forms)

    def flaw(self, state: State, answer: str) -> str | None:
        digits = answers.assignment(answer, self._letters(state), "0123456789")
        if len(set(digits.values())) < len(digits):
            return "two letters have the same digit"
        numbers = ["".join(digits[letter] for letter in word) for word in state["words"]]
        if any(number[0] == "0" for number in numbers):
            return "a number starts with 0"
        first, second, total = map(int, numbers)
        return None if first + second == total else f"{first} + {second} is not {total}"

    def answer(self, state: State) -> str:
        (digits,) = solutions(state["words"], 1)
        return ", ".join(f"{letter}={digits[letter]}" for letter in sorted(digits))


CODES = {1: (3, 6), 2: (4, 5), 3: (4, 6), 4: (4, 7), 5: (4, 8)}
"""Level: places, digits."""
DIGITS = "123456789"


def marks(code: str, guess: str) -> tuple[int, int]:
    """Right digits in the right place, and right digits in a wrong place."""
    exact = sum(a == b for a, b in zip(code, guess, strict=True))
    common = sum(min(code.count(digit), guess.count(digit)) for digit in set(guess))
    return exact, common - exact


class Mastermind(Puzzle):
    """Mastermind: the one code that explains the marks of all guesses.

    State: {"places", "digits", "guesses": [[guess, exact, misplaced], ...]}.

    No guess can be left out.
    """

    name = "mastermind"
    unordered = ("guesses",)

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

    def flaw(self, state: State, answer: str) -> str | None:
        (code,) = answers.grid(answer, 1, state["places"], DIGITS[: state["digits"]])
        for guess, a, b in state["guesses"]:
            if marks(code, guess) != (a, b):
                return f"the guess {guess} would be marked otherwise"
        return None

    def answer(self, state: State) -> str:
        every = itertools.product(DIGITS[: state["digits"]], repeat=state["places"])
        return next(code for code in map("".join, every) if self.flaw(state, code) is None)


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
