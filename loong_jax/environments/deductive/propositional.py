"""Propositional logic: entailment with a certificate; who says what is true, and who what is false.

A certificate is a refutation by resolution, or a countermodel.
"""

import itertools
import random
import re
from collections.abc import Sequence
from typing import Any

from loong_jax.environments import answers
from loong_jax.environments.answers import Malformed
from loong_jax.environments.environment import Puzzle, State

NUM_VARIABLES = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
NAMES = "pqrstuvw"
MAX_STEPS = 300

Clause = frozenset[int]  # literal +i: variable i (from 1) is true, -i: it is false


def _literal(number: int) -> str:
    name = NAMES[abs(number) - 1]
    return name if number > 0 else f"not {name}"


def _falsified(clause: Clause, assigned: Sequence[int]) -> bool:
    return all(-literal in assigned for literal in clause)


def refutation(
    clauses: Sequence[Clause], num_variables: int
) -> tuple[list[tuple[int, int, Clause]], None] | tuple[None, list[int]]:
    """A list of resolution steps (numbers of two clauses from 1, resolvent), or a model.

    Splits on variables in order; what both halves falsify is resolved on the way back.
    """
    known = list(clauses)
    steps: list[tuple[int, int, Clause]] = []

    def falsify(assigned: list[int]) -> tuple[int | None, list[int] | None]:
        for number, clause in enumerate(known):
            if _falsified(clause, assigned):
                return number, None
        if len(assigned) == num_variables:
            return None, assigned
        pivot = len(assigned) + 1
        sides: list[int] = []
        for literal in (-pivot, pivot):
            number, model = falsify([*assigned, literal])
            if number is None:
                return None, model
            if -literal not in known[number]:
                return number, None
            sides.append(number)
        resolvent = (known[sides[0]] | known[sides[1]]) - {pivot, -pivot}
        steps.append((sides[0] + 1, sides[1] + 1, resolvent))
        known.append(resolvent)
        return len(known) - 1, None

    number, model = falsify([])
    if number is None:
        assert model is not None
        return None, model
    return steps, None


class Propositional(Puzzle):
    """State: {"variables", "premises": clauses, "goal": a clause}."""

    name = "propositional_entailment"

    def draw(self, level: int, rng: random.Random) -> State | None:
        count = NUM_VARIABLES[level]
        wanted = rng.random() < 0.5
        premises: set[tuple[int, ...]] = set()
        while len(premises) < 2 * count + wanted * count // 2:
            chosen = sorted(rng.sample(range(1, count + 1), rng.choice((2, 3, 3))))
            premises.add(tuple(v if rng.random() < 0.5 else -v for v in chosen))
        goal = sorted(rng.sample(range(1, count + 1), 2))
        goal = [v if rng.random() < 0.5 else -v for v in goal]
        state = {"variables": count, "premises": sorted(map(list, premises)), "goal": goal}
        if refutation(list(map(frozenset, state["premises"])), count)[0] is not None:
            return None  # premises that contradict each other entail everything
        steps, _ = refutation(_clauses(state), count)
        if (steps is not None) != wanted or (steps is not None and len(steps) < count):
            return None
        return state

    def prompt(self, state: State) -> str:
        clauses = _clauses(state)
        num_premises = len(state["premises"])
        rows = [
            f"{number}. {' or '.join(map(_literal, sorted(clause, key=abs)))}"
            for number, clause in enumerate(clauses, 1)
        ]
        names = NAMES[: state["variables"]]
        example = ", ".join(f"{name}=true" for name in names[:2])
        return (
            f"Do the premises entail the conclusion '{' or '.join(map(_literal, state['goal']))}'"
            "? 'Or' includes both. Premises:\n" + "\n".join(rows[:num_premises]) + "\nNegation of "
            "the conclusion:\n" + "\n".join(rows[num_premises:]) + "\n"
            "Give a certificate with your answer. If they do, write 'entailed' on the first line, "
            "then a refutation by resolution: one step a line, as in\n"
            f"{len(rows) + 1}. 1 2: p, not q\n"
            "(the next number, the numbers of two clauses above, and the literals of their "
            "resolvent on one variable); the last line derives the empty clause, written false. "
            f"At most {MAX_STEPS} steps. If they do not, write 'not entailed' on the first line "
            f"and on the second a value of each of {', '.join(names)} under which the premises "
            f"hold and the conclusion does not, in the form {example}, ..."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        found = answers.lines(answer)
        if not found or found[0] not in ("entailed", "not entailed"):
            raise Malformed("the first line is neither 'entailed' nor 'not entailed'")
        clauses = _clauses(state)
        if found[0] == "not entailed":
            names = NAMES[: state["variables"]]
            values = answers.assignment("\n".join(found[1:]), names, ("true", "false"))
            model = [
                number if values[name] == "true" else -number
                for number, name in enumerate(names, 1)
            ]
            for number, clause in enumerate(clauses, 1):
                if _falsified(clause, model):
                    return f"clause {number} does not hold"
            return None
        if not 1 < len(found) <= MAX_STEPS + 1:
            raise Malformed(f"{len(found) - 1} steps, not 1 to {MAX_STEPS}")
        for line in found[1:]:
            flaw = _step(line, clauses, state["variables"])
            if flaw:
                return flaw
        return None if not clauses[-1] else "the last clause is not empty"

    def answer(self, state: State) -> str:
        clauses = _clauses(state)
        steps, model = refutation(clauses, state["variables"])
        if steps is None:
            assert model is not None
            values = (f"{NAMES[abs(v) - 1]}={'true' if v > 0 else 'false'}" for v in model)
            return "not entailed\n" + ", ".join(values)
        rows = [
            f"{number}. {a} {b}: {', '.join(map(_literal, sorted(clause, key=abs))) or 'false'}"
            for number, (a, b, clause) in enumerate(steps, len(clauses) + 1)
        ]
        return "\n".join(["entailed", *rows])


def _clauses(state: State) -> list[Clause]:
    """Premises, then the negated goal, a unit clause for each of its literals."""
    return [frozenset(c) for c in state["premises"]] + [frozenset([-g]) for g in state["goal"]]


def _step(line: str, clauses: list[Clause], num_variables: int) -> str | None:
    """Adds the step's clause; says what is wrong with it."""
    match = re.fullmatch(r"([0-9]{1,4})\. ?([0-9]{1,4}) +([0-9]{1,4}) ?: ?([a-z, ]{1,200})", line)
    if match is None:
        raise Malformed(f"{line[:40]!r} is not 'N. I J: literals'")
    number, first, second = (int(match[place]) for place in (1, 2, 3))
    if number != len(clauses) + 1 or not (0 < first < number and 0 < second < number):
        raise Malformed(f"step {number} is out of order, or uses a clause that is not above it")
    literals: set[int] = set()
    for item in [] if match[4].strip() == "false" else answers.items(match[4]):
        word = item.removeprefix("not ").strip()
        if len(word) != 1 or word not in NAMES[:num_variables]:
            raise Malformed(f"{item!r} is no literal")
        literals.add((NAMES.index(word) + 1) * (-1 if item.startswith("not ") else 1))
    left, right = clauses[first - 1], clauses[second - 1]
    resolvents = ((left - {v}) | (right - {-v}) for v in left if -v in right)
    if not any(resolvent == literals for resolvent in resolvents):
        return f"step {number} is no resolvent of {first} and {second}"
    clauses.append(frozenset(literals))
    return None


NUM_PEOPLE = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
PEOPLE = "ABCDEFGH"
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
        return f"{PEOPLE[rest[0]]} and {PEOPLE[rest[1]]} are of the same kind."
    left = f"{PEOPLE[rest[0]]} is a {KINDS[rest[1]]}"
    right = f"{PEOPLE[rest[2]]} is a {KINDS[rest[3]]}"
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
            for name, statement in zip(PEOPLE, state["statements"], strict=False)
        ]
        return (
            "On an island everyone is either a knight, who only says what is true, or a knave, "
            "who only says what is false. 'Or' includes both, and 'if' is false only where its "
            "first part holds and its second does not.\n" + "\n".join(said) + "\nExactly one "
            "answer fits. Write one line with everyone's kind in the form A=knight, B=knave, ..."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        statements = state["statements"]
        kinds = answers.assignment(answer, PEOPLE[: len(statements)], KINDS)
        is_knight = [kinds[name] == "knight" for name in PEOPLE[: len(statements)]]
        for place, said in enumerate(statements):
            if _is_true(said, is_knight) != is_knight[place]:
                return f"{PEOPLE[place]}, a {KINDS[is_knight[place]]}, could not say so"
        return None

    def answer(self, state: State) -> str:
        is_knight = _fits(state["statements"])[0]
        return ", ".join(f"{PEOPLE[i]}={KINDS[kind]}" for i, kind in enumerate(is_knight))
