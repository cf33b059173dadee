"""Whether an answer matches a gold: by the kind of the gold, down the ladder of equality.

`matcher` chooses by kind; `single` compares values, also those that an equation states, `measured`
what has a unit, `several` collections, matrices and ratios, `relations` equations and inequalities;
`ladder` compares two values or sets of real numbers.
"""

from loong_jax.verifiers.maths.matching import matcher
from loong_jax.verifiers.maths.matching.ladder import Matcher, Symbolic

__all__ = ["Matcher", "Symbolic", "matcher"]
