"""Statements told in words, and read back from them.

A glossary gives each atom a plain clause. `p -> q -> r` becomes "if the lamp is lit and the door is
open, then the cat sleeps"; an implication among the premises stands in square brackets.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.formulas import Atom, Formula, Implies, Not
from loong_jax.synth.formal.statement import Statement

CLAUSES = (
    *("the lamp is lit", "the door is open", "the cat sleeps", "the bell rings"),
    *("the river is high", "the bridge is closed", "the train is late", "the shop is full"),
    *("the soup is hot", "the window is wet", "the engine runs", "the road is dry"),
    *("the baker is awake", "the tide is low", "the flag is raised", "the letter is sent"),
    *("the gate is locked", "the snow melts", "the garden is green", "the alarm is set"),
)
_NOT = "it is false that "


class Unclear(ValueError):
    """The words are not of the form that is told here."""


def draw_glossary(atoms: Sequence[str], rng: np.random.Generator) -> dict[str, str]:
    """A clause for each atom. Atoms are listed in the order of the alphabet."""
    chosen = rng.permutation(len(CLAUSES))
    return {name: CLAUSES[chosen[i]] for i, name in enumerate(sorted(atoms))}


def tell(statement: Statement, glossary: Mapping[str, str]) -> str:
    """The problem: a line for each hypothesis, then what is to be shown."""
    lines = [f"Suppose that {_said(h, glossary)}." for h in statement.hypotheses]
    return "\n".join([*lines, f"Show that {_said(statement.goal, glossary)}."])


def read(text: str, glossary: Mapping[str, str]) -> Statement:
    """Inverse of `tell`. Raises Unclear."""
    reader = _Reader({clause: name for name, clause in glossary.items()})
    hypotheses, goal = [], None
    for line in filter(None, map(str.strip, text.splitlines())):
        match = re.fullmatch(r"(Suppose|Show) that (.*)\.", line)
        if match is None or goal is not None:
            raise Unclear(f"{line[:60]!r} is no hypothesis, or stands behind the goal")
        formula = reader.whole(match[2])
        if match[1] == "Suppose":
            hypotheses.append(formula)
        else:
            goal = formula
    if goal is None:
        raise Unclear("nothing is to be shown")
    return Statement(tuple(hypotheses), goal)


def glossary_text(glossary: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {clause}" for name, clause in glossary.items())


def _said(formula: Formula, glossary: Mapping[str, str]) -> str:
    match formula:
        case Atom(name):
            return glossary[name]
        case Not(Atom(name)):
            return f"{_NOT}{glossary[name]}"
        case Not(inner):
            return f"{_NOT}[{_said(inner, glossary)}]"
        case Implies():
            premises, conclusion = formulas.premises_of(formula)
            told = [
                f"[{_said(p, glossary)}]" if isinstance(p, Implies) else _said(p, glossary)
                for p in premises
            ]
            return f"if {' and '.join(told)}, then {_said(conclusion, glossary)}"


class _Reader:
    def __init__(self, name_of: Mapping[str, str]):
        self._name_of = name_of
        clauses = sorted(map(re.escape, name_of), key=len, reverse=True)
        self._clause = re.compile("|".join(clauses) or "$^")
        self._text = ""

    def whole(self, text: str) -> Formula:
        self._text = text
        formula = self._formula()
        if self._text:
            raise Unclear(f"{self._text[:40]!r} is left over")
        return formula

    def _formula(self) -> Formula:
        if not self._takes("if "):
            return self._operand()
        premises = [self._operand()]
        while self._takes(" and "):
            premises.append(self._operand())
        if not self._takes(", then "):
            raise Unclear(f"', then' is missing before {self._text[:40]!r}")
        return formulas.implication(premises, self._operand())

    def _operand(self) -> Formula:
        if self._takes(_NOT):
            return Not(self._operand())
        if self._takes("["):
            inner = self._formula()
            if not self._takes("]"):
                raise Unclear("a square bracket is not closed")
            return inner
        match = self._clause.match(self._text)
        if match is None:
            raise Unclear(f"{self._text[:40]!r} begins with no clause of the glossary")
        self._text = self._text[match.end() :]
        return Atom(self._name_of[match[0]])

    def _takes(self, words: str) -> bool:
        if self._text.startswith(words):
            self._text = self._text[len(words) :]
            return True
        return False
