"""Abduction over rules: the fewest causes that explain every symptom and no absent one."""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from loong_jax.environments import answers
from loong_jax.environments.answers import Malformed
from loong_jax.environments.environment import Puzzle, State, canonical_json

SHAPES = {1: (5, 4), 2: (6, 5), 3: (7, 6), 4: (9, 7), 5: (11, 8)}
"""Level: causes, effects."""


def effects(rules: Sequence[Sequence[Any]], causes: frozenset[str]) -> set[str]:
    """Everything that follows from these causes."""
    known, grown = set(causes), True
    while grown:
        grown = False
        for body, head in rules:
            if head not in known and known.issuperset(body):
                known.add(head)
                grown = True
    return known


def _explanations(state: State, size: int) -> Iterator[frozenset[str]]:
    names = [f"c{number}" for number in range(1, state["causes"] + 1)]
    for chosen in itertools.combinations(names, size):
        known = effects(state["rules"], frozenset(chosen))
        if known.issuperset(state["seen"]) and known.isdisjoint(state["absent"]):
            yield frozenset(chosen)


def _smallest(state: State) -> frozenset[str]:
    sizes = range(state["causes"] + 1)
    return next(found for size in sizes for found in _explanations(state, size))


class Causes(Puzzle):
    """State: {"causes", "rules": [[body, head], ...], "seen", "absent"}."""

    name = "causal_abduction"

    def draw(self, level: int, rng: random.Random) -> State | None:
        num_causes, num_effects = SHAPES[level]
        causes = [f"c{number}" for number in range(1, num_causes + 1)]
        found = [f"e{number}" for number in range(1, num_effects + 1)]
        rules: list[list[Any]] = []
        for place, head in enumerate(found):
            for _ in range(rng.choice((1, 2, 2, 3))):
                body = sorted(rng.sample(causes + found[:place], rng.choice((1, 2, 2))))
                if [body, head] not in rules:
                    rules.append([body, head])
        chosen = frozenset(rng.sample(causes, rng.randrange(2, num_causes // 2 + 1)))
        known = effects(rules, chosen)
        seen = [effect for effect in found if effect in known]
        absent = [effect for effect in found if effect not in known]
        if len(seen) < 2 or not absent:
            return None
        rng.shuffle(rules)
        state = {"causes": num_causes, "rules": rules, "seen": seen, "absent": absent}
        few = [size for size in range(3) if any(True for _ in _explanations(state, size))]
        minimum = 2 if level < 4 else 3
        return state if not few or few[0] >= minimum else None

    def prompt(self, state: State) -> str:
        rules = "\n".join(f"{' and '.join(body)} cause {head}" for body, head in state["rules"])
        return (
            f"Causes are c1 to c{state['causes']}. What follows from what:\n{rules}\nSeen: "
            f"{', '.join(state['seen'])}. Certainly absent: {', '.join(state['absent'])}.\nAn "
            "explanation is a set of causes from which all that was seen follows and nothing that "
            "is absent. Find one with as few causes as possible; any smallest one is right. "
            "Answer with its causes on one line, with commas between them, in the form cN, cM"
        )

    def canonical(self, state: State) -> str:
        return canonical_json({**state, "rules": sorted(state["rules"])})

    def flaw(self, state: State, answer: str) -> str | None:
        found = answers.items(answers.one_line(answer))
        names = {f"c{number}" for number in range(1, state["causes"] + 1)}
        if not names.issuperset(found) or len(set(found)) < len(found):
            raise Malformed("not a list of different causes")
        known = effects(state["rules"], frozenset(found))
        if missing := [effect for effect in state["seen"] if effect not in known]:
            return f"{missing[0]} is not explained"
        if present := [effect for effect in state["absent"] if effect in known]:
            return f"{present[0]} would follow"
        smallest = len(_smallest(state))
        return f"{smallest} causes are enough" if len(found) > smallest else None

    def answer(self, state: State) -> str:
        return ", ".join(sorted(_smallest(state), key=lambda cause: int(cause[1:])))
