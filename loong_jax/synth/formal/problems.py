"""Theorems of the implicational fragment, drawn at random, and told in words.

A theorem grows from facts by steps such as `p > q`, `p > q > r` and `(x > y) > z`, each used by the
next, so its derivation and the derivation's size are known; some hypotheses that lead nowhere are
mixed in. The size in nodes is the level.

In words, a glossary gives each atom a plain clause. `p -> q -> r` becomes "if the lamp is lit and
the door is open, then the cat sleeps"; an implication among the premises is in square brackets.
"""

import dataclasses
import string
from collections.abc import Mapping

import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.formulas import Atom, Formula, Implies, Not, Statement

_MAX_TRIES = 5_000
ATOM_NAMES = string.ascii_lowercase[15:23]  # p to w


@dataclasses.dataclass(frozen=True, kw_only=True)
class Theorems:
    """The distribution of theorems. A size counts the nodes of the theorem's derivation."""

    min_size: int = 2
    max_size: int = 9
    max_hypotheses: int = 7
    nested_share: float = 0.2  # of steps that go by an implication between two atoms
    pair_share: float = 0.5  # of the other steps that have two premises
    max_idle: int = 2  # hypotheses that lead nowhere

    def __post_init__(self):
        if not 1 <= self.min_size <= self.max_size:
            raise ConfigError(
                f"min_size={self.min_size} and max_size={self.max_size} must rise from 1."
            )
        if not (0 <= self.nested_share <= 1 and 0 <= self.pair_share <= 1 and self.max_idle >= 0):
            raise ConfigError(
                f"nested_share={self.nested_share} and pair_share={self.pair_share} must lie in "
                f"0..1, and max_idle={self.max_idle} must be at least 0. Correct them."
            )
        if not 3 <= self.max_hypotheses <= len(ATOM_NAMES):
            raise ConfigError(
                f"max_hypotheses={self.max_hypotheses} is not in 3..{len(ATOM_NAMES)}."
            )

    def draw(self, rng: np.random.Generator) -> tuple[Statement, int]:
        """A theorem and the size of its derivation; sizes are met about equally often."""
        wanted = int(rng.integers(self.min_size, self.max_size + 1))
        for _ in range(_MAX_TRIES):
            grown = _Growth(rng)
            while grown.size < wanted and len(grown.fresh) >= 3:
                grown.step(self)
            if grown.size == wanted and len(grown.hypotheses) <= self.max_hypotheses:
                grown.add_idle(min(self.max_idle, self.max_hypotheses - len(grown.hypotheses)))
                return grown.statement(), wanted
        raise ConfigError(
            f"no derivation of {wanted} nodes was found: max_hypotheses={self.max_hypotheses}, "
            f"pair_share={self.pair_share}, nested_share={self.nested_share}. Raise one of them, "
            "or lower max_size."
        )


class _Growth:
    """A theorem under way. `last` is the atom derived last, and the goal in the end."""

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self.fresh = [ATOM_NAMES[i] for i in rng.permutation(len(ATOM_NAMES))]
        self.hypotheses: list[Formula] = []
        self._size_of: dict[str, int] = {}
        self.last = self._fact()

    @property
    def size(self) -> int:
        return self._size_of[self.last]

    def step(self, drawn: Theorems) -> None:
        """One more atom, derived from the last one."""
        premises: list[Formula]
        if self._rng.random() < drawn.nested_share:
            assumed, middle, target = (self.fresh.pop() for _ in range(3))
            is_inside = self._rng.random() < 0.5
            body: list[Formula] = [Atom(assumed)]
            premises = [Implies(Atom(assumed), Atom(middle))]
            (body if is_inside else premises).append(Atom(self.last))
            self._add_rule(body, middle)
            self._add_rule(premises, target)
            size = 3 + self.size
        else:
            premises = [Atom(self.last)]
            size = 1 + self.size
            if self._rng.random() < drawn.pair_share:
                other = str(self._rng.choice(["", *self._size_of])) or self._fact()
                premises.append(Atom(other))
                size += self._size_of[other]
            target = self.fresh.pop()
            self._add_rule(premises, target)
        self._size_of[target], self.last = size, target

    def add_idle(self, count: int) -> None:
        """Up to `count` rules from an atom that nothing derives."""
        known = list(self._size_of)
        for _ in range(int(self._rng.integers(count + 1))):
            if self.fresh:
                self._add_rule([Atom(self.fresh.pop())], str(self._rng.choice(known)))

    def statement(self) -> Statement:
        order = self._rng.permutation(len(self.hypotheses))
        return Statement(tuple(self.hypotheses[i] for i in order), Atom(self.last))

    def _fact(self) -> str:
        name = self.fresh.pop()
        self.hypotheses.append(Atom(name))
        self._size_of[name] = 1
        return name

    def _add_rule(self, premises: list[Formula], target: str) -> None:
        shuffled = [premises[i] for i in self._rng.permutation(len(premises))]
        self.hypotheses.append(formulas.implication(shuffled, Atom(target)))


# ---- in words

CLAUSES = (
    *("the lamp is lit", "the door is open", "the cat sleeps", "the bell rings"),
    *("the river is high", "the bridge is closed", "the train is late", "the shop is full"),
    *("the soup is hot", "the window is wet", "the engine runs", "the road is dry"),
    *("the baker is awake", "the tide is low", "the flag is raised", "the letter is sent"),
    *("the gate is locked", "the snow melts", "the garden is green", "the alarm is set"),
)
NOT = "it is false that "


def tell(statement: Statement, glossary: Mapping[str, str]) -> str:
    """The problem: a line for each hypothesis, then what is to be shown."""
    lines = [f"Suppose that {_said(h, glossary)}." for h in statement.hypotheses]
    return "\n".join([*lines, f"Show that {_said(statement.goal, glossary)}."])


def glossary_text(glossary: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {clause}" for name, clause in glossary.items())


def _said(formula: Formula, glossary: Mapping[str, str]) -> str:
    match formula:
        case Atom(name):
            return glossary[name]
        case Not(Atom(name)):
            return f"{NOT}{glossary[name]}"
        case Not(inner):
            return f"{NOT}[{_said(inner, glossary)}]"
        case Implies():
            premises, conclusion = formulas.premises_of(formula)
            told = [
                f"[{_said(p, glossary)}]" if isinstance(p, Implies) else _said(p, glossary)
                for p in premises
            ]
            return f"if {' and '.join(told)}, then {_said(conclusion, glossary)}"
