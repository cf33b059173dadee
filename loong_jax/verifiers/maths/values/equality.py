"""Equality of two values: of numbers, or of functions where they have symbols."""

from loong_jax.verifiers.maths.expression import Node, symbols, walk
from loong_jax.verifiers.maths.values import identities, numbers
from loong_jax.verifiers.maths.values.rounding import EXACT, Tolerance


def equal(gold: Node, answer: Node, tolerance: Tolerance = EXACT) -> bool | None:
    """Whether two expressions have the same value; None where that cannot be told.

    Raises CostError.
    """
    if gold == answer:
        return True
    names = symbols(gold) | symbols(answer)
    verdict = _equal_at(gold, answer, names, tolerance, common_log=False)
    if verdict is not True and _has_bare_log(gold) and _has_log(answer):
        verdict = _equal_at(gold, answer, names, tolerance, common_log=True) or verdict
    return verdict


def _has_bare_log(node: Node) -> bool:
    return any(n.head == "call" and n.args[0] == "log" and len(n.args) == 2 for n in walk(node))


def _has_log(node: Node) -> bool:
    return any(n.head == "call" and n.args[0] == "log" for n in walk(node))


def _equal_at(
    gold: Node, answer: Node, names: frozenset[str], tolerance: Tolerance, *, common_log: bool
) -> bool | None:
    if names:
        return identities.equal(gold, answer, names, common_log)
    return numbers.equal(gold, answer, {}, tolerance, common_log)
