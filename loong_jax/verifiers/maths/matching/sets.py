"""Sets of real numbers, as numbers where they can be read and by shape where not."""

from typing import TYPE_CHECKING

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import lines, real_sets
from loong_jax.verifiers.maths.expression import Node
from loong_jax.verifiers.maths.forms import kinds, naming, renaming

if TYPE_CHECKING:
    from loong_jax.verifiers.maths.matching.matcher import Matcher


def real_set(matcher: "Matcher", gold: Node, answer: Node) -> bool | None:
    if (
        answer.head == "chain"
        and answer.args[0] == ("=",)
        and naming.names_something(answer.args[1])
    ):
        answer = answer.args[2]
    left, right = real_sets.real_set(gold), real_sets.real_set(answer)
    if left is None or right is None:
        if left is None and right is None:
            return alike(gold, renaming.with_index_of(gold, answer))
        return False if kinds.is_value(answer) else None
    if gold.head == "tuple" and answer.head == "bracket":
        return False
    matcher.rung = "numeric"
    return lines.equal(left, right)


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
