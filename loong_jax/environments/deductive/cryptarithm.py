"""Cryptarithms: a sum in letters, each letter one digit. The solution is unique."""

import random
from collections.abc import Sequence

from loong_jax.environments import answers
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
