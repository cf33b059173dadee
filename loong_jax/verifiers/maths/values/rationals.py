"""Exact values: rationals, how large they may grow, and their roots where those are exact."""

import math
from fractions import Fraction
from typing import Any

MAX_EXACT_BITS = 100_000  # of a numerator or denominator: 2004! has 19,155


class Undefined(ArithmeticError):
    """The expression has no value here: 1/0, an unbound name, a head without numeric meaning."""


Value = Any  # int, Fraction, or an mpf or mpc of the thread's context


def bits_of(value: int | Fraction) -> int:
    if isinstance(value, int):
        return value.bit_length()
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def exact_root(base: int | Fraction, degree: int) -> int | Fraction | None:
    """The rational root of a rational that is not negative, where there is one."""
    if base < 0 or degree > 64 or bits_of(base) > 2000:
        return None
    base = Fraction(base)
    above, below = _integer_root(base.numerator, degree), _integer_root(base.denominator, degree)
    return None if above is None or below is None else Fraction(above, below)


def _integer_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
    else:
        root = 1 << -(-value.bit_length() // degree)
        while root > 0:
            smaller = ((degree - 1) * root + value // root ** (degree - 1)) // degree
            if smaller >= root:
                break
            root = smaller
    return root if root**degree == value else None
