"""Riddles: who speaks the truth on an island; who lives where in a row of houses."""

import itertools
import operator
import random
from collections.abc import Sequence
from typing import Any

from loong_jax.environments import answers, csp
from loong_jax.environments.answers import Malformed
from loong_jax.environments.environment import Puzzle, State

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


SIZES = {1: (3, 2), 2: (3, 3), 3: (4, 3), 4: (4, 4), 5: (5, 4)}
"""Level: houses, attributes."""
ATTRIBUTES = {
    "colour": ("red", "green", "blue", "white", "yellow"),
    "pet": ("dog", "cat", "fish", "bird", "horse"),
    "drink": ("tea", "milk", "water", "juice", "coffee"),
    "job": ("baker", "nurse", "pilot", "judge", "painter"),
}


RELATIONS = {
    "same": (operator.eq, "{} and {} are in the same house."),
    "apart": (operator.ne, "{} and {} are in different houses."),
    "just left": (lambda a, b: a + 1 == b, "{} is in the house just left of {}."),
    "beside": (lambda a, b: abs(a - b) == 1, "{} is in a house next to {}."),
    "left": (operator.lt, "{} is somewhere left of {}."),
}


def _clue_text(clue: Sequence[Any]) -> str:
    if clue[0] == "at":
        return f"{clue[1].capitalize()} is in house {clue[2] + 1}."
    sentence = RELATIONS[clue[0]][1].format(clue[1], clue[2])
    return sentence[0].upper() + sentence[1:]


def _houses(state: State, clues: Sequence[Sequence[Any]], limit: int) -> list[list[int]]:
    """The house of every value, attribute by attribute, in up to `limit` solutions."""
    num_houses = state["houses"]
    values = [value for attribute in state["attributes"] for value in attribute[1]]
    index = {value: place for place, value in enumerate(values)}
    network = csp.Network(len(values), num_houses)
    for start in range(0, len(values), num_houses):
        for a, b in itertools.combinations(range(start, start + num_houses), 2):
            network.relate(a, b, operator.ne)
    domains = [(1 << num_houses) - 1] * len(values)
    for kind, first, second in clues:
        if kind == "at":
            domains[index[first]] &= 1 << second
        else:
            network.relate(index[first], index[second], RELATIONS[kind][0])
    return network.solutions(domains, limit)


class Zebra(Puzzle):
    """State: {"houses", "attributes": [[name, values], ...], "clues": [[kind, a, b], ...]}.

    No clue can be left out.
    """

    name = "zebra"

    def draw(self, level: int, rng: random.Random) -> State | None:
        num_houses, num_attributes = SIZES[level]
        chosen = rng.sample(sorted(ATTRIBUTES), num_attributes)
        attributes = [
            [name, sorted(rng.sample(ATTRIBUTES[name], num_houses))] for name in sorted(chosen)
        ]
        house = {
            value: place
            for _, values in attributes
            for value, place in zip(values, rng.sample(range(num_houses), num_houses), strict=True)
        }
        state = {"houses": num_houses, "attributes": attributes}
        clues: list[list[Any]] = [["at", value, place] for value, place in house.items()]
        rng.shuffle(clues)
        clues = clues[:1]  # one value is told, the others follow from relations
        attribute_of = {value: name for name, values in attributes for value in values}
        for a, b in itertools.permutations(house, 2):
            for kind, (holds, _) in RELATIONS.items():
                symmetric = kind in ("same", "apart", "beside")
                within = attribute_of[a] == attribute_of[b] and kind in ("same", "apart")
                if not within and (a < b or not symmetric) and holds(house[a], house[b]):
                    clues.append([kind, a, b])
        rng.shuffle(clues)
        needed = clues
        for size in range(len(house), len(clues), 4):
            if len(_houses(state, clues[:size], 2)) == 1:
                needed = clues[:size]
                break
        else:
            if len(_houses(state, clues, 2)) > 1:
                return None
        for clue in list(needed):
            fewer = [other for other in needed if other is not clue]
            if len(_houses(state, fewer, 2)) == 1:
                needed = fewer
        return state | {"clues": sorted(needed)}

    def prompt(self, state: State) -> str:
        num_houses, attributes = state["houses"], state["attributes"]
        kinds = "\n".join(f"- {name}: {', '.join(values)}" for name, values in attributes)
        clues = "\n".join(
            f"{place}. {_clue_text(clue)}" for place, clue in enumerate(state["clues"], 1)
        )
        order = ", ".join(name.upper() for name, _ in attributes)
        return (
            f"{num_houses} houses stand in a row, numbered 1 to {num_houses} from left to right. "
            f"Each house has one value of every attribute, and no two houses share a value.\n"
            f"{kinds}\nClues:\n{clues}\nExactly one arrangement fits. Answer with {num_houses} "
            f"lines, one for each house in order, as in\n1: {order}"
        )

    def canonical(self, state: State) -> str:
        clues = ";".join(" ".join(map(str, clue)) for clue in sorted(state["clues"], key=str))
        return f"{state['houses']}:{clues}"

    def flaw(self, state: State, answer: str) -> str | None:
        num_houses, attributes = state["houses"], state["attributes"]
        found = answers.lines(answer)
        if len(found) != num_houses:
            raise Malformed(f"{len(found)} lines, not {num_houses}")
        house: dict[str, int] = {}
        for place, line in enumerate(found):
            number, colon, rest = line.partition(":")
            if not colon or number.strip() != str(place + 1):
                raise Malformed(f"line {place + 1} does not start with '{place + 1}:'")
            values = answers.items(rest)
            if len(values) != len(attributes):
                raise Malformed(f"line {place + 1} has {len(values)} values")
            for value, (name, known) in zip(values, attributes, strict=True):
                if value not in known:
                    raise Malformed(f"{value[:20]!r} is no {name}")
                if value in house:
                    return f"{value} is in two houses"
                house[value] = place
        for clue in state["clues"]:
            kind, first, second = clue
            holds = operator.eq if kind == "at" else RELATIONS[kind][0]
            if not holds(house[first], house.get(second, second)):
                return f"against the clue: {_clue_text(clue)}"
        return None

    def answer(self, state: State) -> str:
        places = iter(_houses(state, state["clues"], 1)[0])
        rows: list[list[str]] = [[] for _ in range(state["houses"])]
        for _, values in state["attributes"]:
            for value in values:
                rows[next(places)].append(value)
        return "\n".join(f"{place}: {', '.join(row)}" for place, row in enumerate(rows, 1))
