"""Whether an answer matches a gold: by the kind of the gold, down the ladder of equality.

`matcher` chooses by kind; `single` compares values, `measured` what has a unit, `several`
collections, matrices and ratios, `sets` sets of real numbers, `relations` equations and
inequalities. `stated` finds the value that an equation gives; `ladder` compares two values.
"""

from loong_jax.verifiers.maths.matching import matcher
from loong_jax.verifiers.maths.matching.ladder import Matcher, Symbolic

__all__ = ["Matcher", "Symbolic", "matcher"]
