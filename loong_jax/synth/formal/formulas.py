"""Propositional formulas over implication and negation, truth tables, statements, theorems.

Written `p -> (q -> r)` and `~p`: `->` groups to the right, atoms are words of letters and digits.
These two connectives are the language of the verifiers' built-in Metamath database.

A statement to be proved is hypotheses and a goal, as people write theorems. Two statements are kin
when a change of names and of the order of hypotheses makes them equal. Kin have the same proofs, so
they never sit on both sides of a split.

Theorems of the implicational fragment are drawn at random: one grows from facts by steps such as
`p > q`, `p > q > r` and `(x > y) > z`, each used by the next, so its derivation and the
derivation's size, which is the level, are known; some hypotheses that lead nowhere are mixed in.

In words, a glossary gives each atom a plain clause. `p -> q -> r` becomes "if the lamp is lit and
the door is open, then the cat sleeps"; an implication among the premises is in square brackets.
"""

import dataclasses
import functools
import hashlib
import itertools
import operator
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from loong_jax.errors import ConfigError, refuse_below

T = TypeVar("T")
MAX_ATOMS = 12  # of a truth table
MAX_CHARS = 4000
MAX_DEPTH = 60

_TOKEN = re.compile(r"\s*(->|[()~]|[A-Za-z][A-Za-z0-9_]*)")


class Malformed(ValueError):
    """The text is no formula; the message says where it goes wrong."""


class Atom(NamedTuple):
    name: str


class Not(NamedTuple):
    inner: "Formula"


class Implies(NamedTuple):
    premise: "Formula"
    conclusion: "Formula"


Formula = Atom | Not | Implies


def parse(text: str) -> Formula:
    """The formula that the whole text is. Raises Malformed."""
    if len(text) > MAX_CHARS:
        raise Malformed(f"{len(text)} characters are more than {MAX_CHARS}")
    tokens, place = [], 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise Malformed(f"{text[place:].strip()[:10]!r} is no atom, bracket, '~' or '->'")
        tokens.append(match[1])
        place = match.end()
    found, end = _implication(tokens, 0, 0)
    if end != len(tokens):
        raise Malformed(f"{tokens[end]!r} follows a whole formula")
    return found


def show(formula: Formula) -> str:
    """The text that `parse` reads, with no bracket too many."""
    match formula:
        case Atom(name):
            return name
        case Not(inner):
            return f"~{_in_brackets(inner)}"
        case Implies(premise, conclusion):
            return f"{_in_brackets(premise)} -> {show(conclusion)}"


def implication(hypotheses: Sequence[Formula], goal: Formula) -> Formula:
    """`h1 -> (h2 -> ... -> goal)`."""
    for hypothesis in reversed(hypotheses):
        goal = Implies(hypothesis, goal)
    return goal


def premises_of(formula: Formula) -> tuple[tuple[Formula, ...], Formula]:
    """(premises before the arrows, conclusion of the last arrow); inverse of `implication`."""
    premises = []
    while isinstance(formula, Implies):
        premises.append(formula.premise)
        formula = formula.conclusion
    return tuple(premises), formula


def atoms_of(formulas: Iterable[Formula]) -> list[str]:
    """Names in the order of their first appearance."""
    return list(dict.fromkeys(name for formula in formulas for name in leaves(formula)))


def fold(
    formula: Formula, atom: Callable[[str], T], negated: Callable[[T], T],
    implied: Callable[[T, T], T],
) -> T:  # fmt: skip
    """Folds a formula from its atoms up, from left to right."""
    match formula:
        case Atom(name):
            return atom(name)
        case Not(inner):
            return negated(fold(inner, atom, negated, implied))
        case Implies(premise, conclusion):
            left = fold(premise, atom, negated, implied)
            return implied(left, fold(conclusion, atom, negated, implied))


@functools.lru_cache(maxsize=4096)
def leaves(formula: Formula) -> tuple[str, ...]:
    """Names of its atoms from left to right, repeated as they are."""
    return tuple(fold(formula, lambda name: [name], lambda inner: inner, lambda a, b: a + b))


def rename(formula: Formula, name_of: Mapping[str, str]) -> Formula:
    return fold(formula, lambda name: Atom(name_of[name]), Not, Implies)


# ---- truth tables


def is_satisfiable(formulas: Sequence[Formula]) -> bool:
    """True if some row makes all formulas true."""
    return any(all(value(f, row) for f in formulas) for row in _rows(formulas))


def follows(hypotheses: Sequence[Formula], goal: Formula) -> bool:
    """True if every row that makes the hypotheses true makes the goal true."""
    return not is_satisfiable([*hypotheses, Not(goal)])


def are_equivalent(left: Formula, right: Formula) -> bool:
    """True if both are true in the same rows, over the atoms of either."""
    return all(value(left, row) == value(right, row) for row in _rows([left, right]))


def value(formula: Formula, row: Mapping[str, bool]) -> bool:
    return fold(formula, row.__getitem__, operator.not_, operator.le)  # a -> b is a <= b


def _rows(formulas: Sequence[Formula]) -> Iterator[dict[str, bool]]:
    names = atoms_of(formulas)
    for row in itertools.product((False, True), repeat=len(names)):
        yield dict(zip(names, row, strict=True))


# ---- reading and writing


def _implication(tokens: Sequence[str], place: int, depth: int) -> tuple[Formula, int]:
    left, place = _operand(tokens, place, depth)
    if place < len(tokens) and tokens[place] == "->":
        right, place = _implication(tokens, place + 1, depth + 1)
        return Implies(left, right), place
    return left, place


def _operand(tokens: Sequence[str], place: int, depth: int) -> tuple[Formula, int]:
    if depth > MAX_DEPTH:
        raise Malformed(f"more than {MAX_DEPTH} formulas stand inside each other")
    token = tokens[place] if place < len(tokens) else "the end"
    if token == "~":
        inner, place = _operand(tokens, place + 1, depth + 1)
        return Not(inner), place
    if token == "(":
        inner, place = _implication(tokens, place + 1, depth + 1)
        if place == len(tokens) or tokens[place] != ")":
            raise Malformed("a bracket is not closed")
        return inner, place + 1
    if token in ("->", ")", "the end"):
        raise Malformed(f"{token!r} stands where a formula belongs")
    return Atom(token), place + 1


def _in_brackets(formula: Formula) -> str:
    return f"({show(formula)})" if isinstance(formula, Implies) else show(formula)


# ---- statements


_ROUNDS = 4  # of refinement; more than the longest chain of hypotheses needs to be told apart by


class Statement(NamedTuple):
    """`goal` follows from `hypotheses`. The goal is no implication: its premises are hypotheses."""

    hypotheses: tuple[Formula, ...]
    goal: Formula

    @property
    def formula(self) -> Formula:
        """The closed theorem `h1 -> (h2 -> ... -> goal)`."""
        return implication(self.hypotheses, self.goal)

    @property
    def atoms(self) -> list[str]:
        return atoms_of([*self.hypotheses, self.goal])

    @property
    def uid(self) -> str:
        """Equal for equal statements."""
        return hashlib.blake2b(show(self.formula).encode(), digest_size=8).hexdigest()

    @property
    def kin(self) -> str:
        """Equal for kin; some that are not kin share it as well."""
        return _kin(self)


def of_parts(hypotheses: Sequence[str], goal: str) -> Statement:
    """A statement from the texts of its formulas. Raises Malformed."""
    more, last = premises_of(parse(goal))
    return Statement((*(parse(text) for text in hypotheses), *more), last)


def says_the_same(left: Statement, right: Statement) -> bool:
    """True if their goals are equivalent and their hypotheses are, each to one of the other's.

    Hypothesis by hypothesis, because two theorems are always equivalent as a whole.
    """
    rest = list(right.hypotheses)  # equivalence makes classes: first come, first matched
    for formula in left.hypotheses:
        twin = next((r for r in rest if are_equivalent(formula, r)), None)
        if twin is None:
            return False
        rest.remove(twin)
    return not rest and are_equivalent(left.goal, right.goal)


@functools.lru_cache(maxsize=65536)
def _kin(statement: Statement) -> str:
    """Refines colours of atoms by where they stand (Weisfeiler and Leman's method)."""
    color = dict.fromkeys(statement.atoms, "")
    for _ in range(_ROUNDS):
        seen: dict[str, list[str]] = {name: [] for name in color}
        for hypothesis in statement.hypotheses:
            _note(hypothesis, _painted(hypothesis, color), seen)
        _note(statement.goal, f"goal {_painted(statement.goal, color)}", seen)
        color = {name: _hash("|".join(sorted(places))) for name, places in seen.items()}
    lines = sorted(_painted(hypothesis, color) for hypothesis in statement.hypotheses)
    return _hash("\n".join([*lines, _painted(statement.goal, color)]))


def _note(formula: Formula, where: str, seen: dict[str, list[str]]) -> None:
    for index, name in enumerate(leaves(formula)):
        seen[name].append(f"{index} of {where}")


def _painted(formula: Formula, color: Mapping[str, str]) -> str:
    return fold(formula, lambda name: f"<{color[name]}>", "~{}".format, "({}>{})".format)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# ---- theorems, drawn at random

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
        refuse_below(self, 1, "min_size")
        refuse_below(self, self.min_size, "max_size")
        refuse_below(self, 0, "nested_share", "pair_share", "max_idle")
        if max(self.nested_share, self.pair_share) > 1:
            raise ConfigError(
                f"nested_share={self.nested_share} and pair_share={self.pair_share} must lie in "
                "0..1. Lower them."
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
        self.hypotheses.append(implication(shuffled, Atom(target)))


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
            premises, conclusion = premises_of(formula)
            told = [
                f"[{_said(p, glossary)}]" if isinstance(p, Implies) else _said(p, glossary)
                for p in premises
            ]
            return f"if {' and '.join(told)}, then {_said(conclusion, glossary)}"
