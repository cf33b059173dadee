"""Equality of two numbers: exact, or at two precisions."""

import dataclasses
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from loong_jax.verifiers.maths.expression import Node, number, substitute
from loong_jax.verifiers.maths.values.evaluator import Evaluator
from loong_jax.verifiers.maths.values.functions import Undefined, Value

FLOAT_DIGITS, LONG_DIGITS = 15, 10
FLOAT_TOLERANCE = Fraction(1, 10**11)  # relative, where one side is a double


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What may differ, beside rounding of long decimals: nothing by default."""

    relative: Fraction = Fraction(0)
    absolute: Fraction = Fraction(0)
    digits: int = LONG_DIGITS  # from which on a decimal stands for what it rounds
    as_written: bool = False  # 2.50 is not 2.5

    @property
    def is_zero(self) -> bool:
        return not self.relative and not self.absolute


EXACT = Tolerance()


def none(size: int | Fraction, gap: int | Fraction) -> int | Fraction:
    return Fraction(0)


def between(
    gold: Node, answer: Node, least: int = LONG_DIGITS
) -> Callable[[int | Fraction, int | Fraction], int | Fraction]:
    """How far apart the two may be because one of them is a rounded decimal."""
    digits = max(num_digits(gold), num_digits(answer))
    if digits >= FLOAT_DIGITS:
        return lambda size, gap: size * FLOAT_TOLERANCE
    for one, other in ((gold, answer), (answer, gold)):
        literal = _literal(one)
        if literal is None or literal[1] < least or _literal(other) is not None:
            continue
        unit = Fraction(1, _places(literal[0]) * (1 if literal[1] >= LONG_DIGITS else 2))
        return lambda size, gap, unit=unit: gap if gap < unit else Fraction(0)
    return none


def num_digits(node: Node) -> int:
    if node.head == "number":
        return node.args[1]
    return max((n.args[1] for n in node.walk() if n.head == "number"), default=0)


def _literal(node: Node) -> tuple[Fraction, int] | None:
    """Value and digits of a decimal or whole number that stands alone."""
    if node.head in ("percent", "quantity", "labelled", "degree"):
        node = node.args[0]
    sign = 1
    if node.head == "neg":
        node, sign = node.args[0], -1
    if node.head != "number" or (not node.args[1] and isinstance(node.args[0], Fraction)):
        return None
    return Fraction(node.args[0]) * sign, node.args[1]


def _places(value: Fraction) -> int:
    """10^k for the k decimals that a terminating decimal has."""
    power = 1
    while (value * power).denominator != 1:
        power *= 10
    return power


LOW_DIGITS, HIGH_DIGITS = 40, 250


def evaluate(
    node: Node, digits: int, bindings: Mapping[str, Value], common_log: bool
) -> tuple[Value, Evaluator]:
    evaluator = Evaluator(digits, bindings, common_log=common_log)
    return evaluator.value(node), evaluator


def is_exact(value: Value) -> bool:
    return isinstance(value, (int, Fraction))


def equal(
    gold: Node, answer: Node, bindings: Mapping[str, Value], tolerance: Tolerance, common_log: bool
) -> bool | None:
    if tolerance.as_written and len({*map(num_digits, (gold, answer))} - {0}) > 1:
        return False
    try:
        a, evaluator = evaluate(gold, LOW_DIGITS, bindings, common_log)
        b, other = evaluate(answer, LOW_DIGITS, bindings, common_log)
    except Undefined:
        return None
    both_exact = is_exact(a) and is_exact(b)
    if both_exact and a == b:
        return True
    allowance = between(gold, answer, tolerance.digits)
    if both_exact:
        gap, size = abs(a - b), max(abs(a), abs(b))
        return gap <= max(tolerance.absolute, tolerance.relative * abs(a), allowance(size, gap))
    context = evaluator.context
    if not (context.isfinite(evaluator.real(a)) and context.isfinite(evaluator.real(b))):
        return bool(a == b)
    if allowance is not none or not tolerance.is_zero:
        left, right = evaluator.real(a), evaluator.real(b)
        gap, size = as_fraction(abs(left - right)), as_fraction(max(abs(left), abs(right)))
        wanted = tolerance.relative * as_fraction(abs(left))
        return gap <= max(tolerance.absolute, wanted, allowance(size, gap))
    digits = HIGH_DIGITS + int(max(evaluator.max_bits, other.max_bits) / 3.3)
    digits = min(digits, 12_000)
    try:
        c, high = evaluate(gold, digits, bindings, common_log)
        d, _ = evaluate(answer, digits, bindings, common_log)
    except Undefined:
        return None
    return near(high, c, d, digits - 60) or _both_vanish(high, a, b, c, d)


def near(evaluator: Evaluator, a: Value, b: Value, digits: int) -> bool:
    context = evaluator.context
    a, b = evaluator.real(a), evaluator.real(b)
    gap = abs(a - b)
    if gap == 0:
        return True
    return gap <= max(abs(a), abs(b)) * context.mpf(10) ** -digits


def _both_vanish(high: Evaluator, a: Value, b: Value, c: Value, d: Value) -> bool:
    """Whether both are 0 but for rounding: the error shrank when the precision grew."""
    context = high.context
    bound = context.mpf(10) ** -(HIGH_DIGITS - 60)
    pairs = ((high.real(a), high.real(c)), (high.real(b), high.real(d)))
    return all(
        abs(later) == 0 or (abs(later) < bound and abs(later) < abs(early) * bound)
        for early, later in pairs
    )


def as_fraction(value: Any) -> Fraction:
    """An mpf as a rational; huge and tiny ones by their order of magnitude only."""
    sign, mantissa, exponent, _ = value._mpf_
    if abs(exponent) > 5000:
        return Fraction(10**1500) if exponent > 0 else Fraction(0)
    return (-1) ** sign * int(mantissa) * Fraction(2) ** exponent


def real_value(node: Node, digits: int = LOW_DIGITS) -> Value | None:
    """The real value of a constant, exact or not; None where it has none."""
    try:
        value, evaluator = evaluate(node, digits, {}, False)
    except Undefined:
        return None
    if is_exact(value):
        return value
    return evaluator.context.re(value) if evaluator.context.im(value) == 0 else None


def gap(a: Value, b: Value) -> Value:
    """a - b of two real values; mpmath subtracts a Fraction from an mpf, but not the reverse."""
    return -(b - a) if is_exact(a) and not is_exact(b) else a - b


def affine(node: Node, name: str) -> tuple[Value, Value] | None:
    """Value at 0 and slope of an affine function of one unknown; None if it is none."""
    at = [real_value(substitute(node, name, number(k))) for k in (0, 1, 2, 5)]
    if any(value is None for value in at):
        return None
    start, step = at[0], gap(at[1], at[0])
    off = (gap(gap(at[i], start), k * step) for i, k in ((2, 2), (3, 5)))
    return None if any(abs(x) * 10**20 > abs(step) for x in off) else (start, step)


def rational(value: Value) -> Fraction:
    return Fraction(value) if is_exact(value) else as_fraction(value)
