"""Functions of numbers: each gets the evaluator and values that are exact or of its context."""

from __future__ import annotations

import math
from collections.abc import Callable
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


def _of(name: str) -> Callable[..., Value]:
    def function(self: Evaluator, value: Value) -> Value:
        value = self.real(value)
        if value != 0 and self.context.mag(value) > 64:
            raise CostError(f"{name} of a huge argument")
        return getattr(self.context, name)(value)

    return function


def _circular(name: str) -> Callable[..., Value]:
    """sin and its kin: an argument of many digits costs as much as its reduction."""

    def function(self: Evaluator, value: Value) -> Value:
        value = self.real(value)
        if value != 0:
            size = self.context.mag(value)
            if size > 20_000:
                raise CostError("a circular function of a huge argument")
            self.pay(max(0, size) * 20)
        return getattr(self.context, name)(value)

    return function


def _ln(self: Evaluator, value: Value) -> Value:
    if value == 0:
        raise Undefined("the logarithm of 0")
    return self.context.log(self.real(value))


def _log(self: Evaluator, value: Value, base: Value | None = None) -> Value:
    base = 10 if base is None and self.common_log else base
    if base in (0, 1):
        raise Undefined("a logarithm to base 0 or 1")
    return _ln(self, value) if base is None else _ln(self, value) / _ln(self, base)


def _sqrt(self: Evaluator, value: Value) -> Value:
    if isinstance(value, (int, Fraction)):
        root = exact_root(value, 2)
        if root is not None:
            return self.exact(root)
    return self.context.sqrt(self.real(value))


def _root(self: Evaluator, value: Value, degree: Value) -> Value:
    if not isinstance(degree, int) or degree == 0:
        return self.power(
            value, 1 / Fraction(degree) if isinstance(degree, Fraction) else 1 / degree
        )
    if degree % 2 and self.context.im(self.real(value)) == 0 and value < 0:
        return -self.power(-value, Fraction(1, degree))
    return self.power(value, Fraction(1, degree))


def _factorial(self: Evaluator, value: Value) -> Value:
    if isinstance(value, int):
        if value < 0:
            raise Undefined("the factorial of a negative number")
        if value > 9000:
            raise CostError("a factorial above 9000!")
        self.pay(value * 10)
        return self.exact(math.factorial(value))
    return _gamma(self, value + 1)


def _double_factorial(self: Evaluator, value: Value) -> Value:
    if not isinstance(value, int) or not 0 <= value <= 9000:
        raise Undefined("a double factorial")
    return self.exact(math.prod(range(value, 0, -2)))


def _gamma(self: Evaluator, value: Value) -> Value:
    if isinstance(value, int):
        return _factorial(self, value - 1)
    self.pay(self.digits**2)  # beside 2020! there are thousands of digits
    return self.context.gamma(self.moderate(value))


def _zeta(self: Evaluator, value: Value) -> Value:
    if not isinstance(value, int) or value == 1 or not -40 <= value <= 200:
        raise Undefined("zeta of what is no whole number but 1")
    self.pay(self.digits**2)
    return self.context.zeta(value)


def _binomial(self: Evaluator, n: Value, k: Value) -> Value:
    if isinstance(n, int) and isinstance(k, int) and n >= 0:
        if not 0 <= k <= n:
            return 0
        k = min(k, n - k)
        if k * max(1, n.bit_length()) > MAX_EXACT_BITS * 2:
            raise CostError("a binomial coefficient of too many digits")
        self.pay((k * n.bit_length() / 2000) ** 2 + k * 10)
        return self.exact(math.comb(n, k))
    return self.context.binomial(self.moderate(n), self.moderate(k))


def _permutations(self: Evaluator, n: Value, k: Value) -> Value:
    if isinstance(n, int) and isinstance(k, int) and 0 <= k <= n:
        return self.exact(_binomial(self, n, k) * _factorial(self, k))
    raise Undefined("permutations of what is no count")


def _whole(function: Callable[..., int]) -> Callable[..., Value]:
    def whole(self: Evaluator, *values: Value) -> Value:
        if not all(isinstance(value, int) for value in values):
            raise Undefined("arguments that are not whole")
        self.pay(sum((value.bit_length() / 500) ** 2 for value in values))
        return self.exact(function(*values))

    return whole


def _whole_part(of_exact: Callable[[Any], int], name: str) -> Callable[..., Value]:
    def whole_part(self: Evaluator, value: Value) -> Value:
        if isinstance(value, (int, Fraction)):
            return of_exact(value)
        if self.context.im(value) != 0 or self.context.mag(value) > self.digits:
            raise Undefined("the whole part of such a value")
        return int(getattr(self.context, name)(self.context.re(value)))

    return whole_part


def _abs(self: Evaluator, value: Value) -> Value:
    return abs(value)


def _extreme(function: Callable[..., Any]) -> Callable[..., Value]:
    def extreme(self: Evaluator, *values: Value) -> Value:
        reals = [self.real(value) for value in values]
        if any(self.context.im(value) != 0 for value in reals):
            raise Undefined("the order of complex numbers")
        return values[reals.index(function(reals))]

    return extreme


def _mod(self: Evaluator, value: Value, modulus: Value) -> Value:
    if not isinstance(value, (int, Fraction)) or not isinstance(modulus, (int, Fraction)):
        raise Undefined("a remainder of what is not rational")
    return self.exact(value % modulus)


def _sign(self: Evaluator, value: Value) -> Value:
    value = self.real(value)
    if self.context.im(value) != 0:
        raise Undefined("the sign of a complex number")
    return int(value > 0) - int(value < 0)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{name: _circular(name) for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{
        name: _of(name)
        for name in str.split(
            "sinh cosh tanh coth sech csch asin acos atan acot asec acsc asinh acosh atanh re im "
            "arg erf lambertw"
        )
    },
    "conjugate": _of("conj"), "cis": _of("expj"), "log": _log, "ln": _ln, "sqrt": _sqrt,
    "root": _root, "abs": _abs, "norm": _abs, "factorial": _factorial,
    "double_factorial": _double_factorial, "gamma": _gamma, "zeta": _zeta, "binomial": _binomial,
    "permutations": _permutations, "gcd": _whole(math.gcd), "lcm": _whole(math.lcm),
    "max": _extreme(max), "min": _extreme(min), "floor": _whole_part(math.floor, "floor"),
    "ceiling": _whole_part(math.ceil, "ceil"), "mod": _mod, "sign": _sign,
}  # fmt: skip
