"""Sequences: the next terms under every rule of a stated class that gives the terms shown."""

import itertools
import random
from collections.abc import Iterator, Sequence

from loong_jax.environments import answers
from loong_jax.environments.environment import Puzzle, State

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
