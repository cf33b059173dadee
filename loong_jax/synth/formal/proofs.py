"""Proofs of the implicational fragment: as trees, as letters, and as a prover has them.

A hypothesis is a rule that proves its last atom from its premises; what a premise assumes is a rule
for that premise alone. Every rule of a statement has a letter: hypotheses A, B, ... in order, then
what is assumed. A proof is the letters of the rules that prove one goal after the other, depth
first, such as `CABA` of `A:p B:p>q C:p>q>r |-r`. This is natural deduction in eta-long normal form:
every provable statement of the fragment has such a proof (Prawitz).

A prover gets a reading: rules as a proof uses them (the goal, the letter, the premises, last one
first), under letters and names that are drawn, such as `rCqp.qBp.pA.r` of that statement. In its
answer stand the goals that are still open before every letter, the next one last: `rC qpA qB pA`.
Only the letters count. docs/how-to/formal_loop.md says more.
"""

import itertools
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.expert_iteration import Goal
from loong_jax.synth.formal.formulas import ATOM_NAMES, Atom, Formula, Statement

LETTERS = string.ascii_uppercase
MAX_NODES = 500
NUM_LETTERS = 12  # that a prover's rules are named by, where that is enough
_NAMES = ATOM_NAMES + "".join(c for c in string.ascii_lowercase if c not in ATOM_NAMES)


class NoProof(ValueError):
    """The letters are no proof of the statement; the message says where it goes wrong."""


class Rule(NamedTuple):
    """`letter` proves `goal` from `premises`."""

    letter: str
    formula: Formula
    goal: Formula
    premises: "tuple[Premise, ...]"


class Premise(NamedTuple):
    """`goal`, to be shown with the help of `assumed`."""

    assumed: tuple[Rule, ...]
    goal: Formula


class Node(NamedTuple):
    """A proof: a rule, and a proof of each of its premises."""

    rule: Rule
    arguments: "tuple[Node, ...]"

    @property
    def size(self) -> int:
        return 1 + sum(argument.size for argument in self.arguments)

    @property
    def letters(self) -> str:
        return self.rule.letter + "".join(argument.letters for argument in self.arguments)


def goal_of(posed: Statement, level: int = 0) -> Goal:
    return Goal(uid=posed.uid, text=sequent(posed), kin=posed.kin, level=level)


def sequent(statement: Statement) -> str:
    """The statement in a line: `A:p B:p>q |-q`, every hypothesis with its letter."""
    named = [f"{n}:{_short(h)}" for n, h in zip(LETTERS, statement.hypotheses, strict=False)]
    return " ".join([*named, f"|-{_short(statement.goal)}"])


def read_sequent(text: str) -> Statement:
    """Inverse of `sequent`. Raises formulas.Malformed."""
    *named, goal = text.split() or [""]
    right = [f"{letter}:" for letter in LETTERS[: len(named)]]
    if not goal.startswith("|-") or [part[:2] for part in named] != right:
        raise formulas.Malformed(f"{text[:60]!r} is no sequent such as `A:p B:p>q |-q`")
    *hypotheses, last = [formulas.parse(p[2:].replace(">", "->")) for p in (*named, goal)]
    return Statement(tuple(hypotheses), last)


def rules_of(statement: Statement, letters: Sequence[str] = LETTERS) -> tuple[Rule, ...]:
    """The hypotheses under the first letters; what is assumed gets those that follow."""
    names = iter(letters[len(statement.hypotheses) :])

    def rule(formula: Formula, letter: str) -> Rule:
        premises, goal = formulas.premises_of(formula)
        return Rule(letter, formula, goal, tuple(map(premise, premises)))

    def premise(formula: Formula) -> Premise:
        assumed, goal = formulas.premises_of(formula)
        return Premise(tuple(rule(one, next(names)) for one in assumed), goal)

    num_rules = sum(map(_num_rules, statement.hypotheses))
    if num_rules > len(LETTERS):
        raise formulas.Malformed(f"{num_rules} rules are more than there are letters")
    return tuple(rule(h, n) for h, n in zip(statement.hypotheses, letters, strict=False))


def read(text: str, statement: Statement) -> Node:
    """The proof that the letters are, every step checked. Raises NoProof."""
    return _read(text, statement.goal, rules_of(statement))


def search(statement: Statement, max_nodes: int) -> Node | None:
    """A smallest proof of at most `max_nodes` nodes, by trying all; None where there is none.

    The existing tool that the cold start rests on. Its time grows exponentially with the size.
    """
    rules = rules_of(statement)
    every = (_proofs(statement.goal, rules, size) for size in range(1, max_nodes + 1))
    return next(itertools.chain.from_iterable(every), None)


class Reading(NamedTuple):
    """`posed` in letters and names that were drawn."""

    posed: Statement
    rules: tuple[Rule, ...]  # in the order in which a search from the goal meets them
    letter_of: Mapping[str, str]  # our letters by drawn ones
    name_of: Mapping[str, str]  # drawn names by its atoms

    @property
    def prompt(self) -> str:
        rules = "".join(f"{self._rule(rule)}." for rule in self.rules)
        return f"{rules}{self._said(self.posed.goal)}\n"

    def answer(self, proof: str) -> str:
        """A proof of `posed` as the prover writes it."""
        drawn = {ours: letter for letter, ours in self.letter_of.items()}
        node = _read("".join(map(drawn.__getitem__, proof)), self.posed.goal, self.rules)
        steps, waiting = [], [node]
        while waiting:
            steps += [self._said(one.rule.goal) for one in waiting]
            node = waiting.pop()
            steps.append(node.rule.letter)
            waiting += reversed(node.arguments)
        return "".join(steps)

    def proof(self, answer: str) -> str:
        """The letters of an answer, as ours; it may prove nothing."""
        return "".join(self.letter_of.get(c, "?") for c in answer if c in LETTERS)

    def _said(self, goal: Formula) -> str:
        return formulas.show(formulas.rename(goal, self.name_of))

    def _rule(self, rule: Rule) -> str:
        said = f"{self._said(rule.goal)}{rule.letter}"
        for premise in reversed(rule.premises):
            assumed = ",".join(map(self._rule, premise.assumed))
            said += f"({assumed})" * bool(assumed) + self._said(premise.goal)
        return said


def draw(posed: Statement, rng: np.random.Generator) -> Reading:
    """`rng` draws letters, names, and the order of rules that are met at the same time.

    So all letters are met in the smallest statements, and nothing learnt there hangs on a name.
    """
    places = _places(posed, [int(i) for i in rng.permutation(len(posed.hypotheses))])
    num_rules = sum(map(_num_rules, posed.hypotheses))
    letters = [LETTERS[i] for i in rng.permutation(max(NUM_LETTERS, num_rules))]
    rules = rules_of(posed, letters)
    names = rng.permutation(max(len(ATOM_NAMES), len(posed.atoms)))
    return Reading(
        posed,
        tuple(rules[place] for place in places),
        dict(zip(letters[:num_rules], LETTERS, strict=False)),
        {atom: _NAMES[i] for atom, i in zip(posed.atoms, names, strict=False)},
    )


# ---- inside


def _short(formula: Formula) -> str:
    return formulas.show(formula).replace(" -> ", ">")


def _num_rules(formula: Formula) -> int:
    premises, _ = formulas.premises_of(formula)
    return 1 + sum(_num_rules(a) for p in premises for a in formulas.premises_of(p)[0])


def _read(text: str, goal: Formula, rules: Iterable[Rule]) -> Node:
    if len(text) > MAX_NODES:
        raise NoProof(f"it has more than {MAX_NODES} steps")
    letters = iter(text)
    node = _built(goal, letters, {rule.letter: rule for rule in rules})
    if rest := "".join(letters):
        raise NoProof(f"{len(rest)} steps follow a whole proof")
    return node


def _built(goal: Formula, letters: Iterator[str], rules: Mapping[str, Rule]) -> Node:
    letter = next(letters, "")
    if letter not in rules:
        raise NoProof(f"{letter!r} names no rule here")
    rule = rules[letter]
    if rule.goal != goal:
        raise NoProof(f"{letter} proves {formulas.show(rule.goal)}, not {formulas.show(goal)}")
    below = [
        _built(premise.goal, letters, {**rules, **{r.letter: r for r in premise.assumed}})
        for premise in rule.premises
    ]
    return Node(rule, tuple(below))


def _proofs(goal: Formula, rules: tuple[Rule, ...], size: int) -> Iterator[Node]:
    """All proofs of exactly `size` nodes."""
    for rule in rules:
        if rule.goal == goal and len(rule.premises) < size and (rule.premises or size == 1):
            for arguments in _all_arguments(rule.premises, rules, size - 1):
                yield Node(rule, arguments)


def _all_arguments(
    premises: Sequence[Premise], rules: tuple[Rule, ...], size: int
) -> Iterator[tuple[Node, ...]]:
    if not premises:
        if size == 0:
            yield ()
        return
    inner = (*rules, *premises[0].assumed)
    for first in range(1, size - len(premises) + 2):
        for node in _proofs(premises[0].goal, inner, first):
            for rest in _all_arguments(premises[1:], rules, size - first):
                yield (node, *rest)


def _places(posed: Statement, order: Sequence[int]) -> list[int]:
    """Hypotheses as a search from the goal meets them, then those that it does not meet."""
    wanted, placed = [posed.goal], []
    for target in wanted:
        for place in order:
            premises, end = formulas.premises_of(posed.hypotheses[place])
            if end != target or place in placed:
                continue
            placed.append(place)
            for assumed, goal in map(formulas.premises_of, premises):
                met = [goal, *(a for a in assumed if isinstance(a, Atom))]
                wanted += [one for one in met if one not in wanted]
    return placed + [place for place in order if place not in placed]
