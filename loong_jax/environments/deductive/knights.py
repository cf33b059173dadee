"""Knights and knaves: knights say what is true, knaves what is false. The solution is unique."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

from loong_jax.environments import answers
from loong_jax.environments.environment import Puzzle, State

NUM_PEOPLE = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
NAMES = "ABCDEFGH"
KINDS = ("knave", "knight")


def _is_true(statement: Sequence[Any], is_knight: Sequence[bool]) -> bool:
    kind, *rest = statement
    if kind == "count":
        return sum(is_knight) == rest[0]
    if kind == "same":
        return is_knight[rest[0]] == is_knight[rest[1]]
    first, first_is, second, second_is = rest
    left, right = is_knight[first] == first_is, is_knight[second] == second_is
    return {"and": left and right, "or": left or right, "if": not left or right}[kind]


def _words(statement: Sequence[Any]) -> str:
    kind, *rest = statement
    if kind == "count":
        return f"Exactly {rest[0]} of us are knights."
    if kind == "same":
        return f"{NAMES[rest[0]]} and {NAMES[rest[1]]} are of the same kind."
    left = f"{NAMES[rest[0]]} is a {KINDS[rest[1]]}"
    right = f"{NAMES[rest[2]]} is a {KINDS[rest[3]]}"
    return f"If {left}, then {right}." if kind == "if" else f"{left} {kind} {right}."


def _fits(statements: Sequence[Sequence[Any]]) -> list[tuple[bool, ...]]:
    """All ways to be knights and knaves under which everyone speaks as they must."""
    return [
        is_knight
        for is_knight in itertools.product((False, True), repeat=len(statements))
        if all(
            _is_true(said, is_knight) == by for said, by in zip(statements, is_knight, strict=True)
        )
    ]


class Knights(Puzzle):
    """State: {"statements": one of each person}."""

    name = "knights_and_knaves"

    def draw(self, level: int, rng: random.Random) -> State | None:
        count = NUM_PEOPLE[level]
        statements: list[list[Any]] = []
        for speaker in range(count):
            others = [person for person in range(count) if person != speaker]
            first, second = rng.sample(others, 2)
            kind = rng.choice(("count", "same", "and", "or", "if"))
            if kind == "count":
                statements.append([kind, rng.randrange(1, count)])
            elif kind == "same":
                statements.append([kind, min(first, second), max(first, second)])
            else:
                statements.append([kind, first, rng.random() < 0.5, second, rng.random() < 0.5])
        return {"statements": statements} if len(_fits(statements)) == 1 else None

    def prompt(self, state: State) -> str:
        said = [
            f'{name} says: "{_words(statement)}"'
            for name, statement in zip(NAMES, state["statements"], strict=False)
        ]
        return (
            "On an island everyone is either a knight, who only says what is true, or a knave, "
            "who only says what is false. 'Or' includes both, and 'if' is false only where its "
            "first part holds and its second does not.\n" + "\n".join(said) + "\nExactly one "
            "answer fits. Write one line with everyone's kind in the form A=knight, B=knave, ..."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        statements = state["statements"]
        kinds = answers.assignment(answer, NAMES[: len(statements)], KINDS)
        is_knight = [kinds[name] == "knight" for name in NAMES[: len(statements)]]
        for place, said in enumerate(statements):
            if _is_true(said, is_knight) != is_knight[place]:
                return f"{NAMES[place]}, a {KINDS[is_knight[place]]}, could not say so"
        return None

    def answer(self, state: State) -> str:
        is_knight = _fits(state["statements"])[0]
        return ", ".join(f"{NAMES[i]}={KINDS[kind]}" for i, kind in enumerate(is_knight))
