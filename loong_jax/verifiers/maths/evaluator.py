"""Values of expressions and functions: exact rationals as far as they reach, then high precision.

Every step is paid for from a budget before it is taken. Contexts of mpmath belong to one thread.
"""

from __future__ import annotations

import hashlib
import math
import operator
import threading
import types
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import mpmath

from loong_jax.verifiers.maths.expression import CostError, Node

MAX_EXACT_BITS = 100_000  # of a numerator or denominator: 2004! has 19,155
MAX_EXPONENT_BITS = 40_000  # of the binary exponent of an inexact value, for functions of it
BUDGET = 400_000  # steps of some 100 ns


class Undefined(ArithmeticError):
    """The expression has no value here: 1/0, an unbound name, a head without numeric meaning."""


Value = Any  # int, Fraction, or an mpf or mpc of the thread's context
RATIONAL = (int, Fraction)


def bits_of(value: int | Fraction) -> int:
    if isinstance(value, int):
        return value.bit_length()
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def exact_root(base: int | Fraction, degree: int) -> int | Fraction | None:
    """The rational root of a rational that is not negative, where there is one."""
    if base < 0 or degree > 64 or bits_of(base) > 2000:
        return None
    root = Fraction(*(_root_below(part, degree) for part in (base.numerator, base.denominator)))
    return root if root**degree == base else None


def _root_below(value: int, degree: int) -> int:
    """The whole part of the root of a whole number."""
    if degree == 2:
        return math.isqrt(value)
    root = 1 << -(-value.bit_length() // degree)
    while root and (
        root > (smaller := ((degree - 1) * root + value // root ** (degree - 1)) // degree)
    ):
        root = smaller
    return root


def _of(
    name: str, called: str = "", most_bits: int = 64, cost_of_bit: int = 0
) -> Callable[..., Value]:
    def function(self: Evaluator, value: Value) -> Value:
        value = self.real(value)
        bits = self.context.mag(value) if value != 0 else 0
        if bits > most_bits:
            raise CostError(f"{called or name} of a huge argument")
        self.pay(max(0, bits) * cost_of_bit)
        return getattr(self.context, name)(value)

    return function


def _whole(function: Callable[..., int]) -> Callable[..., Value]:
    def whole(self: Evaluator, *values: Value) -> Value:
        if not all(isinstance(value, int) for value in values):
            raise Undefined("arguments that are not whole")
        self.pay(sum((value.bit_length() / 500) ** 2 for value in values))
        return self.exact(function(*values))

    return whole


def _whole_part(of_exact: Callable[[Any], int], name: str) -> Callable[..., Value]:
    def whole_part(self: Evaluator, value: Value) -> Value:
        if isinstance(value, RATIONAL):
            return of_exact(value)
        if self.context.im(value) != 0 or self.context.mag(value) > self.digits:
            raise Undefined("the whole part of such a value")
        return int(getattr(self.context, name)(self.context.re(value)))

    return whole_part


def _extreme(function: Callable[..., Any]) -> Callable[..., Value]:
    def extreme(self: Evaluator, *values: Value) -> Value:
        reals = [self.real(value) for value in values]
        if any(self.context.im(value) != 0 for value in reals):
            raise Undefined("the order of complex numbers")
        return values[reals.index(function(reals))]

    return extreme


class _Contexts(threading.local):
    def __init__(self):
        self.context = mpmath.MPContext()


_CONTEXTS = _Contexts()


class Evaluator:
    """Evaluates at one precision with one binding of the symbols."""

    def __init__(
        self,
        digits: int = 50,
        bindings: Mapping[str, Value] = types.MappingProxyType({}),
        *,
        budget: int = BUDGET,
    ):
        self.context = _CONTEXTS.context
        if self.context.dps != digits:
            self.context.dps = digits
        self.digits = digits
        self.bindings = dict(bindings)
        self.budget = budget
        self.max_bits = 0  # of any exact value met

    def pay(self, steps: float) -> None:
        self.budget -= int(steps) + 1
        if self.budget < 0:
            raise CostError("evaluating it costs too much")

    def value(self, node: Node) -> Value:
        if node.head == "number":
            return node.args[0]
        method = _HEADS.get(node.head)
        if method is None:
            raise Undefined(f"{node.head} has no value")
        self.pay(4)
        return method(self, node.args)

    def power(self, base: Value, exponent: Value) -> Value:
        if isinstance(exponent, int):
            if isinstance(base, RATIONAL):
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
        if isinstance(exponent, Fraction) and isinstance(base, RATIONAL):
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

    def small(self, value: Value) -> None:
        """Refuses what a function would have to reduce at great cost."""
        context = self.context
        if isinstance(value, RATIONAL):
            return
        if context.isnan(value) or context.isinf(value):
            raise Undefined("an infinite value")
        if value != 0 and abs(context.mag(value)) > MAX_EXPONENT_BITS:
            raise CostError("a value of too many digits")

    def moderate(self, value: Value) -> Any:
        value = self.real(value)
        if value != 0 and self.context.mag(value) > 20:
            raise CostError("a gamma function of a huge argument")
        return value

    def real(self, value: Value) -> Any:
        """The value as a number of the context."""
        if isinstance(value, int):
            return self.context.mpf(value)
        if isinstance(value, Fraction):
            return self.context.mpf(value.numerator) / value.denominator
        return value

    def exact(self, value: Value) -> Value:
        """Checks the size of an exact value; a whole Fraction becomes an int."""
        if isinstance(value, Fraction) and value.denominator == 1:
            value = value.numerator
        if isinstance(value, RATIONAL):
            bits = bits_of(value)
            self.max_bits = max(bits, self.max_bits)
            if bits > MAX_EXACT_BITS:
                raise CostError(f"a number of {bits} bits is above {MAX_EXACT_BITS}")
            self.pay((bits / 2000) ** 2)
        return value

    # ---- functions

    def log(self, value: Value, base: Value | None = None) -> Value:
        if value == 0 or base in (0, 1):
            raise Undefined("a logarithm of 0, or to base 0 or 1")
        found = self.context.log(self.real(value))
        return found if base is None else found / self.log(base)

    def sqrt(self, value: Value) -> Value:
        root = exact_root(value, 2) if isinstance(value, RATIONAL) else None
        return self.context.sqrt(self.real(value)) if root is None else self.exact(root)

    def root(self, value: Value, degree: Value) -> Value:
        if not isinstance(degree, int) or degree == 0:
            return self.power(value, 1 / degree)
        if degree % 2 and self.context.im(self.real(value)) == 0 and value < 0:
            return -self.power(-value, Fraction(1, degree))
        return self.power(value, Fraction(1, degree))

    def factorial(self, value: Value) -> Value:
        if isinstance(value, int):
            if value > 9000:
                raise CostError("a factorial above 9000!")
            self.pay(max(0, value) * 10)
            return self.exact(math.factorial(value))  # a ValueError below 0
        return self.gamma(value + 1)

    def double_factorial(self, value: Value) -> Value:
        if not isinstance(value, int) or not 0 <= value <= 9000:
            raise Undefined("a double factorial")
        return self.exact(math.prod(range(value, 0, -2)))

    def gamma(self, value: Value) -> Value:
        if isinstance(value, int):
            return self.factorial(value - 1)
        self.pay(self.digits**2)  # beside 2020! there are thousands of digits
        return self.context.gamma(self.moderate(value))

    def zeta(self, value: Value) -> Value:
        if not isinstance(value, int) or value == 1 or not -40 <= value <= 200:
            raise Undefined("zeta of what is no whole number but 1")
        self.pay(self.digits**2)
        return self.context.zeta(value)

    def binomial(self, n: Value, k: Value) -> Value:
        if isinstance(n, int) and isinstance(k, int) and n >= 0:
            if not 0 <= k <= n:
                return 0
            k = min(k, n - k)
            if k * max(1, n.bit_length()) > MAX_EXACT_BITS * 2:
                raise CostError("a binomial coefficient of too many digits")
            self.pay((k * n.bit_length() / 2000) ** 2 + k * 10)
            return self.exact(math.comb(n, k))
        return self.context.binomial(self.moderate(n), self.moderate(k))

    def permutations(self, n: Value, k: Value) -> Value:
        if isinstance(n, int) and isinstance(k, int) and 0 <= k <= n:
            return self.exact(self.binomial(n, k) * self.factorial(k))
        raise Undefined("permutations of what is no count")

    def mod(self, value: Value, modulus: Value) -> Value:
        if not (isinstance(value, RATIONAL) and isinstance(modulus, RATIONAL)):
            raise Undefined("a remainder of what is not rational")
        return self.exact(value % modulus)

    # ---- heads

    def _symbol(self, args):
        if args[0] not in self.bindings:
            raise Undefined(f"{args[0]} is not bound")
        return self.bindings[args[0]]

    def _constant(self, args):
        context = self.context
        if args[0] in ("pi", "e"):
            return +getattr(context, args[0])
        return context.mpc(0, 1) if args[0] == "i" else context.inf

    def _add(self, args):
        exact, rest = 0, None
        for arg in args:
            value = self.value(arg)
            if isinstance(value, RATIONAL):
                exact += value
            else:
                rest = value if rest is None else rest + value
        exact = self.exact(exact)
        if rest is None:
            return exact
        return rest + self.real(exact) if exact else rest

    def _mul(self, args):
        exact, rest = 1, None
        for arg in args:
            value = self.value(arg)
            if isinstance(value, RATIONAL):
                exact = self.exact(exact * value)
            else:
                rest = value if rest is None else rest * value
        return exact if rest is None else rest * self.real(exact)

    def _div(self, args):
        if len(args) != 2:
            raise Undefined("a ratio of three")
        above, below = self.value(args[0]), self.value(args[1])
        if below == 0:
            raise Undefined("a division by 0")
        if isinstance(above, RATIONAL) and isinstance(below, RATIONAL):
            return self.exact(Fraction(above) / below)
        return self.real(above) / self.real(below)

    def _call(self, args):
        name, *nodes = args
        function = FUNCTIONS.get(name)
        if function is None:
            raise Undefined(f"{name} has no value")
        values = [self.value(node) for node in nodes]
        self.pay(self.digits * 4)
        for value in values:
            self.small(value)
        try:
            return function(self, *values)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
            raise Undefined(f"{name}: {error}") from None

    def _apply(self, args):
        """f(2): some number that depends on the name and on the arguments, and on nothing else."""
        values = [self.context.nstr(self.real(self.value(node)), 15) for node in args[1:]]
        digest = hashlib.blake2b(f"{args[0]}({values})".encode(), digest_size=8).digest()
        return Fraction(int.from_bytes(digest, "big") + 1, 2**60)

    def _series(self, args, join: Callable[[Value, Value], Value], total: Value):
        variable, low, high, body = args
        low, high = self.value(low), self.value(high)
        if not isinstance(low, int) or not isinstance(high, int):
            raise Undefined("bounds that are not whole")
        self.pay(max(0, high - low) * 20)
        outer, self.bindings = self.bindings, dict(self.bindings)
        for index in range(low, high + 1):
            self.bindings[variable] = index
            term = self.value(body)
            if isinstance(total, RATIONAL) and isinstance(term, RATIONAL):
                total = self.exact(join(total, term))
            else:
                total = join(self.real(total), self.real(term))
        self.bindings = outer
        return total


_HUNDRED = Node("number", (100, 0))
_HEADS: dict[str, Callable[[Evaluator, Any], Value]] = {
    **{
        head: getattr(Evaluator, f"_{head}")
        for head in str.split("symbol constant add mul div call apply")
    },
    "sum": lambda self, args: self._series(args, operator.add, 0),
    "product": lambda self, args: self._series(args, operator.mul, 1),
    "percent": lambda self, args: self._div((args[0], *(args[1:] or (_HUNDRED,)))),
    "quantity": lambda self, args: self._mul((args[0], Node("number", (args[1].factor, 0)))),
    "pow": lambda self, args: self.power(self.value(args[0]), self.value(args[1])),
    "degree": lambda self, args: self.real(self.value(args[0])) * self.context.pi / 180,
    "neg": lambda self, args: -self.value(args[0]),
    "ratio": Evaluator._div,
    "labelled": lambda self, args: self.value(args[0]),
    "based": lambda self, args: args[0],
}
FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{
        name: getattr(Evaluator, name)
        for name in str.split(
            "log sqrt root factorial double_factorial gamma zeta binomial permutations mod"
        )
    },
    **{  # which cost as much as the reduction of an argument of many digits
        name: _of(name, "a circular function", 20_000, 20)
        for name in ("sin", "cos", "tan", "cot", "sec", "csc")
    },
    **{
        name: _of(name)
        for name in str.split(
            "sinh cosh tanh coth sech csch asin acos atan acot asec acsc asinh acosh atanh re im "
            "arg erf lambertw"
        )
    },
    **dict.fromkeys(("abs", "norm"), lambda self, value: abs(value)),
    "ln": lambda self, value: self.log(value),
    "sign": lambda self, value: int(value > 0) - int(value < 0),  # a TypeError off the real line
    "conjugate": _of("conj"), "cis": _of("expj"), "gcd": _whole(math.gcd), "lcm": _whole(math.lcm),
    "max": _extreme(max), "min": _extreme(min), "floor": _whole_part(math.floor, "floor"),
    "ceiling": _whole_part(math.ceil, "ceil"),
}  # fmt: skip
