"""Values of expressions: exact rationals as far as they reach, then high precision, never floats.

Every step is paid for from a budget before it is taken. Contexts of mpmath belong to one thread.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import mpmath

from loong_jax.verifiers.maths.expression import CostError, Node
from loong_jax.verifiers.maths.values import functions
from loong_jax.verifiers.maths.values.functions import MAX_EXACT_BITS, Undefined, Value

BUDGET = 400_000  # steps of some 100 ns


class _Contexts(threading.local):
    def __init__(self):
        self.context = mpmath.MPContext()


_CONTEXTS = _Contexts()


class Evaluator:
    """Evaluates at one precision with one binding of the symbols."""

    def __init__(
        self,
        digits: int = 50,
        bindings: Mapping[str, Value] | None = None,
        *,
        budget: int = BUDGET,
        common_log: bool = False,
    ):
        self.context = _CONTEXTS.context
        if self.context.dps != digits:
            self.context.dps = digits
        self.digits = digits
        self.bindings = dict(bindings or {})
        self.budget = budget
        self.common_log = common_log  # log without a base is the decadic one
        self.max_bits = 0  # of any exact value met

    power = functions.power
    small = functions.small
    moderate = functions.moderate

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

    def real(self, value: Value) -> Any:
        """As a number of the context."""
        if isinstance(value, int):
            return self.context.mpf(value)
        if isinstance(value, Fraction):
            return self.context.mpf(value.numerator) / value.denominator
        return value

    def exact(self, value: Value) -> Value:
        """Checks the size of an exact value; a whole Fraction becomes an int."""
        if isinstance(value, Fraction):
            if value.denominator == 1:
                value = value.numerator
            else:
                bits = max(value.numerator.bit_length(), value.denominator.bit_length())
                self._bits(bits)
                return value
        if isinstance(value, int):
            self._bits(value.bit_length())
        return value

    def _bits(self, bits: int) -> None:
        if bits > self.max_bits:
            self.max_bits = bits
        if bits > MAX_EXACT_BITS:
            raise CostError(f"a number of {bits} bits is above {MAX_EXACT_BITS}")
        self.pay((bits / 2000) ** 2)

    # ---- heads

    def _symbol(self, args):
        try:
            return self.bindings[args[0]]
        except KeyError:
            raise Undefined(f"{args[0]} is not bound") from None

    def _constant(self, args):
        context = self.context
        if args[0] in ("pi", "e"):
            return +getattr(context, args[0])
        return context.mpc(0, 1) if args[0] == "i" else context.inf

    def _add(self, args):
        exact, rest = 0, None
        for arg in args:
            value = self.value(arg)
            if isinstance(value, (int, Fraction)):
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
            if isinstance(value, (int, Fraction)):
                exact = self.exact(exact * value)
            else:
                rest = value if rest is None else rest * value
        if rest is None:
            return exact
        return rest * self.real(exact)

    def _div(self, args):
        above, below = self.value(args[0]), self.value(args[1])
        if below == 0:
            raise Undefined("a division by 0")
        if isinstance(above, (int, Fraction)) and isinstance(below, (int, Fraction)):
            return self.exact(Fraction(above) / below)
        return self.real(above) / self.real(below)

    def _neg(self, args):
        return -self.value(args[0])

    def _pow(self, args):
        return self.power(self.value(args[0]), self.value(args[1]))

    def _call(self, args):
        name, *nodes = args
        function = functions.FUNCTIONS.get(name)
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

    def _percent(self, args):
        return self._div((args[0], *(args[1:] or (_HUNDRED,))))

    def _degree(self, args):
        return self.real(self.value(args[0])) * self.context.pi / 180

    def _based(self, args):
        return args[0]

    def _labelled(self, args):
        return self.value(args[0])

    def _quantity(self, args):
        return self._mul((args[0], Node("number", (args[1].factor, 0))))

    def _ratio(self, args):
        if len(args) != 2:
            raise Undefined("a ratio of three")
        return self._div(args)

    def _product(self, args):
        return self._sum(args, is_sum=False)

    def _sum(self, args, is_sum: bool = True):
        variable, low, high, body = args
        low, high = self.value(low), self.value(high)
        if not isinstance(low, int) or not isinstance(high, int):
            raise Undefined("bounds that are not whole")
        self.pay(max(0, high - low) * 20)
        saved = self.bindings.get(variable)
        total: Value = 0 if is_sum else 1
        for index in range(low, high + 1):
            self.bindings[variable] = index
            term = self.value(body)
            if isinstance(total, (int, Fraction)) and isinstance(term, (int, Fraction)):
                total = self.exact(total + term if is_sum else total * term)
            else:
                total, term = self.real(total), self.real(term)
                total = total + term if is_sum else total * term
        if saved is None:
            self.bindings.pop(variable, None)
        else:
            self.bindings[variable] = saved
        return total


_HUNDRED = Node("number", (100, 0))
_HEADS: dict[str, Callable[[Evaluator, Any], Value]] = {
    head: getattr(Evaluator, f"_{head}")
    for head in str.split(
        "symbol constant add mul div neg pow call apply percent degree based labelled quantity "
        "ratio sum product"
    )
}
