"""The ladder of equality for two values: exact, numeric, identities, then sympy."""

from typing import TYPE_CHECKING

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import constants
from loong_jax.verifiers.maths.expression import Node, is_constant
from loong_jax.verifiers.maths.forms import kinds, renaming

if TYPE_CHECKING:
    from loong_jax.verifiers.maths.matching.matcher import Matcher


def equal(matcher: "Matcher", gold: Node, answer: Node) -> bool | None:
    outcome = values.equal(gold, answer, matcher.tolerance)
    if outcome is True:
        matcher.rung = "numeric" if is_constant(gold) else "identity"
        return True
    if outcome is False:
        renamed = renaming.renamed_constant(gold, answer) or renaming.with_constants(gold, answer)
        if renamed is not None and values.equal(*renamed, matcher.tolerance):
            return True
        matcher.rung = "numeric" if is_constant(gold) else "identity"
        others = constants.renamed(gold, answer)
        return any(values.equal(gold, other) for other in others) or constants.absorbed(
            gold, answer
        )
    if kinds.needs_symbolic(gold) or kinds.needs_symbolic(answer):
        return ask(matcher, gold, answer)
    return False if kinds.structure(gold) != kinds.structure(answer) else None


def ask(matcher: "Matcher", gold: Node, answer: Node) -> bool | None:
    matcher.rung = "symbolic"
    return None if matcher.symbolic is None else matcher.symbolic(gold, answer)
