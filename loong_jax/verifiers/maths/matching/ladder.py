"""The ladder of equality for two values, and for two sets of real numbers."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import real_sets
from loong_jax.verifiers.maths.expression import Node
from loong_jax.verifiers.maths.forms import kinds, naming, renaming
from loong_jax.verifiers.maths.values import EXACT, Tolerance

Symbolic = Callable[[Node, Node], bool | None]


@dataclasses.dataclass
class Matcher:
    """One comparison. `rung` is the last step of the ladder that was needed."""

    tolerance: Tolerance = EXACT
    symbolic: Symbolic | None = None  # decides in a child process what values cannot
    conventions: frozenset[str] = frozenset()  # "base", "percent": what the question asks for
    rung: str = "exact"
    note: str = ""
    match: ClassVar[Callable[..., bool | None]]  # by the kind of the gold: see `matcher`


def equal(matcher: Matcher, gold: Node, answer: Node) -> bool | None:
    outcome = values.equal(gold, answer, matcher.tolerance)
    if outcome is True:
        matcher.rung = "numeric" if gold.is_constant else "identity"
        return True
    if outcome is False:
        renamed = renaming.renamed_constant(gold, answer) or renaming.with_constants(gold, answer)
        if renamed is not None and values.equal(*renamed, matcher.tolerance):
            return True
        matcher.rung = "numeric" if gold.is_constant else "identity"
        others = renaming.renamed(gold, answer)
        return any(values.equal(gold, other) for other in others) or renaming.absorbed(gold, answer)
    if kinds.needs_symbolic(gold) or kinds.needs_symbolic(answer):
        return ask(matcher, gold, answer)
    return False if kinds.structure(gold) != kinds.structure(answer) else None


def ask(matcher: Matcher, gold: Node, answer: Node) -> bool | None:
    matcher.rung = "symbolic"
    return None if matcher.symbolic is None else matcher.symbolic(gold, answer)


def real_set(matcher: Matcher, gold: Node, answer: Node) -> bool | None:
    if (
        answer.head == "chain"
        and answer.args[0] == ("=",)
        and naming.names_something(answer.args[1])
    ):
        answer = answer.args[2]
    left, right = real_sets.real_set(gold), real_sets.real_set(answer)
    if left is None or right is None:
        if left is None and right is None:
            return alike(gold, answer)
        return False if kinds.is_value(answer) else None
    if gold.head == "tuple" and answer.head == "bracket":
        return False
    matcher.rung = "numeric"
    return real_sets.equal(left, right)


def alike(gold: Node, answer: Node) -> bool | None:
    """Trees of the same shape whose leaves match."""
    if gold == answer:
        return True
    if kinds.is_value(gold) and kinds.is_value(answer):
        return values.equal(gold, answer)
    if gold.head != answer.head or len(gold.args) != len(answer.args):
        return None
    pairs = zip(gold.args, answer.args, strict=True)
    outcomes = [
        alike(g, a) if isinstance(g, Node) and isinstance(a, Node) else (g == a or None)
        for g, a in pairs
    ]
    return True if all(outcomes) else None
