"""The words of formal problems, read back as statements; what a scripted author understands."""

import re
from collections.abc import Mapping

from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.formulas import NOT, Atom, Formula, Not, Statement


class Unclear(ValueError):
    """The words are not of the form that is told."""


def read(text: str, glossary: Mapping[str, str]) -> Statement:
    """Inverse of `problems.tell`. Raises Unclear."""
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
        if self._takes(NOT):
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
