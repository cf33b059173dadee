"""A statement as a prover reads it, and a proof as it writes one.

A hypothesis is a rule as a proof uses it: the goal, a letter, the premises, last one first. So
`A:p B:p>q C:p>q>r |-r` is `rCqp.qBp.pA.r`. A premise that is an implication names what it assumes:
`(p>q)>r` is `rA(pB)q`, where B may be used for that q alone.

A proof is a list of letters, each the rule that proves the goal that is next; before every letter
stand the goals that are still open, the next one last: `rC qpA qB pA`. So each step is a piece of
the text: the rule of the last goal is looked up, and its premises replace it. Only the letters
count; the goals between are the prover's notes.

Rules come in the order in which a search from the goal meets them, and those that it does not meet
at the end. Letters and names are drawn at random, so that all are met in the smallest statements,
and nothing that is learnt there hangs on a name.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from loong_jax.synth.formal import formulas, proof_term
from loong_jax.synth.formal.formulas import Atom, Formula
from loong_jax.synth.formal.problems import ATOM_NAMES
from loong_jax.synth.formal.proof_term import LETTERS, Argument, Node, NoProof
from loong_jax.synth.formal.statement import Statement

NUM_LETTERS = 12  # that rules are named by, where that is enough
_NAMES = ATOM_NAMES + "".join(c for c in "abcdefghijklmnopqrstuvwxyz" if c not in ATOM_NAMES)


class Rule(NamedTuple):
    """A hypothesis, or what a premise assumes: `letter` proves `goal` from `premises`."""

    letter: str
    formula: Formula
    goal: Formula
    premises: "tuple[Premise, ...]"


class Premise(NamedTuple):
    """`goal`, to be shown with the help of `assumed`."""

    assumed: tuple[Rule, ...]
    goal: Formula


class Reading(NamedTuple):
    """`posed` in letters and names that were drawn."""

    posed: Statement
    rules: tuple[Rule, ...]  # as they are met
    places: tuple[int, ...]  # of the rules among the hypotheses of `posed`
    name_of: dict[str, str]  # the drawn names of its atoms

    @property
    def prompt(self) -> str:
        rules = "".join(f"{self._rule(rule)}." for rule in self.rules)
        return f"{rules}{self._said(self.posed.goal)}\n"

    def answer(self, node: Node) -> str:
        """A proof of `posed` as the prover writes it."""
        letter_of = {LETTERS[p]: r for p, r in zip(self.places, self.rules, strict=True)}
        return "".join(self._steps([(node, letter_of)]))

    def proof(self, answer: str) -> str:
        """The proof of `posed` that the letters of `answer` are. Raises NoProof."""
        letters = [char for char in answer if char in LETTERS]
        rules = {r.letter: (LETTERS[p], r) for p, r in zip(self.places, self.rules, strict=True)}
        node = _built(self.posed.goal, iter(letters), rules, len(self.rules))
        if node.size < len(letters):
            raise NoProof(f"{len(letters) - node.size} steps follow a whole proof")
        return proof_term.write(node)

    def _said(self, goal: Formula) -> str:
        return formulas.show(formulas.rename(goal, self.name_of))

    def _rule(self, rule: Rule) -> str:
        premises = "".join(map(self._premise, reversed(rule.premises)))
        return f"{self._said(rule.goal)}{rule.letter}{premises}"

    def _premise(self, premise: Premise) -> str:
        assumed = ",".join(map(self._rule, premise.assumed))
        return f"({assumed}){self._said(premise.goal)}" if assumed else self._said(premise.goal)

    def _steps(self, open_goals: "list[tuple[Node, dict[str, Rule]]]") -> Iterator[str]:
        while open_goals:
            yield "".join(self._said(node.goal) for node, _ in open_goals)
            node, rule_of = open_goals.pop()
            rule = rule_of[node.head]
            yield rule.letter
            below = list(zip(node.arguments, rule.premises, strict=True))
            for argument, premise in reversed(below):
                named = [letter for letter, _ in argument.assumed]
                inner = rule_of | dict(zip(named, premise.assumed, strict=True))
                open_goals.append((argument.node, inner))


def _built(
    goal: Formula, letters: Iterator[str], rules: dict[str, tuple[str, Rule]], num_names: int
) -> Node:
    letter = next(letters, "")
    if letter not in rules:
        raise NoProof(f"{letter!r} names no rule here")
    name, rule = rules[letter]
    if rule.goal != goal:
        raise NoProof(f"{letter} proves {formulas.show(rule.goal)}, not {formulas.show(goal)}")
    arguments = []
    for premise in rule.premises:
        names = LETTERS[num_names : num_names + len(premise.assumed)]
        if len(names) < len(premise.assumed):
            raise NoProof("all letters are in use")
        inner = {r.letter: (n, r) for n, r in zip(names, premise.assumed, strict=True)}
        node = _built(premise.goal, letters, rules | inner, num_names + len(names))
        assumed = tuple((n, r.formula) for n, r in zip(names, premise.assumed, strict=True))
        arguments.append(Argument(assumed, node))
    return Node(goal, name, tuple(arguments))


def draw(posed: Statement, rng: np.random.Generator) -> Reading:
    """`rng` draws letters, names, and the order of rules that are met at the same time."""
    places = _places(posed, [int(i) for i in rng.permutation(len(posed.hypotheses))])
    num_rules = sum(map(_num_rules, posed.hypotheses))
    if num_rules > len(LETTERS):
        raise formulas.Malformed(f"{num_rules} rules are more than there are letters")
    letters = iter([LETTERS[i] for i in rng.permutation(max(NUM_LETTERS, num_rules))])
    rules = tuple(_rule(posed.hypotheses[place], letters) for place in places)
    names = rng.permutation(max(len(ATOM_NAMES), len(posed.atoms)))
    name_of = {atom: _NAMES[i] for atom, i in zip(posed.atoms, names, strict=False)}
    return Reading(posed, rules, tuple(places), name_of)


def _rule(formula: Formula, letters: Iterator[str]) -> Rule:
    letter = next(letters)
    premises, goal = formulas.premises_of(formula)
    return Rule(letter, formula, goal, tuple(_premise(p, letters) for p in premises))


def _premise(formula: Formula, letters: Iterator[str]) -> Premise:
    assumed, goal = formulas.premises_of(formula)
    return Premise(tuple(_rule(a, letters) for a in assumed), goal)


def _num_rules(formula: Formula) -> int:
    premises, _ = formulas.premises_of(formula)
    return 1 + sum(_num_rules(a) for p in premises for a in formulas.premises_of(p)[0])


def _places(posed: Statement, order: Sequence[int]) -> list[int]:
    wanted, placed = [posed.goal], []
    for target in wanted:
        for place in order:
            premises, end = formulas.premises_of(posed.hypotheses[place])
            if end == target and place not in placed:
                placed.append(place)
                wanted += [goal for goal in _goals(premises) if goal not in wanted]
    return placed + [place for place in order if place not in placed]


def _goals(premises: Sequence[Formula]) -> list[Formula]:
    """What is to be shown for premises, and then what may be assumed for it."""
    found: list[Formula] = []
    for premise in premises:
        assumed, goal = formulas.premises_of(premise)
        found += [goal, *(a for a in assumed if isinstance(a, Atom))]
    return found
