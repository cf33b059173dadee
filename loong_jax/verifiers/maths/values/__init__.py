"""Equality of two values: exact rationals, then numbers at two precisions, then identity testing.

Two exact values are equal only if they are the same, however close: 1/2004! is not 1/2006!.
`evaluator` gives values, `functions` those of sin and its like, `powers` exact roots; `numbers`
compares numbers and says what a decimal may stand for, `identities` functions.
"""

from loong_jax.verifiers.maths.values.identities import constant_ratio, equal, is_fixed
from loong_jax.verifiers.maths.values.numbers import (
    EXACT,
    LONG_DIGITS,
    Tolerance,
    affine,
    gap,
    is_exact,
    rational,
    real_value,
)

__all__ = [
    "EXACT",
    "LONG_DIGITS",
    "Tolerance",
    "affine",
    "constant_ratio",
    "equal",
    "gap",
    "is_exact",
    "is_fixed",
    "rational",
    "real_value",
]
