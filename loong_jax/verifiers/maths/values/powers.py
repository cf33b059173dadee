"""Powers, and the arguments that a power or another function would take too long over."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from loong_jax.verifiers.maths.expression import CostError

if TYPE_CHECKING:
    from loong_jax.verifiers.maths.values.evaluator import Evaluator

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


MAX_EXPONENT_BITS = 40_000  # of the binary exponent of an inexact value, for functions of it


def power(self: Evaluator, base: Value, exponent: Value) -> Value:
    if isinstance(exponent, int):
        if isinstance(base, (int, Fraction)):
            if base == 0 and exponent <= 0:
                raise Undefined("0 to no positive power")
            size = bits_of(base) * abs(exponent)
            if base not in (1, -1) and size > MAX_EXACT_BITS:
                raise CostError("a power of too many digits")
            self.pay((size / 2000) ** 2)
            if base in (1, -1):
                return base if exponent % 2 else 1
            return self.exact(Fraction(base) ** exponent)
        self.small(base)
        if abs(exponent).bit_length() > 64:
            raise CostError("an exponent above 2^64")
        return base**exponent
    if isinstance(exponent, Fraction) and isinstance(base, (int, Fraction)):
        root = exact_root(base, exponent.denominator)
        if root is not None:
            return self.power(root, exponent.numerator)
    base, exponent = self.real(base), self.real(exponent)
    self.small(base)
    if base == 0:
        if self.context.re(exponent) > 0:
            return 0
        raise Undefined("0 to no positive power")
    growth = abs(exponent) * (1 + abs(self.context.mag(base)))
    if growth > MAX_EXPONENT_BITS:
        raise CostError("a power of too many digits")
    self.pay(self.digits * 4)
    return self.context.power(base, exponent)


def small(self: Evaluator, value: Value) -> None:
    """Refuses what a function would have to reduce at great cost."""
    context = self.context
    if isinstance(value, (int, Fraction)):
        return
    if context.isnan(value) or context.isinf(value):
        raise Undefined("an infinite value")
    if value != 0 and abs(context.mag(value)) > MAX_EXPONENT_BITS:
        raise CostError("a value of too many digits")


def moderate(self: Evaluator, value: Value) -> Any:
    value = self.real(value)
    if value != 0 and self.context.mag(value) > 20:
        raise CostError("a gamma function of a huge argument")
    return value
