"""Equality of two numbers: exact, or at two precisions."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from loong_jax.verifiers.maths.expression import Node
from loong_jax.verifiers.maths.values import rounding
from loong_jax.verifiers.maths.values.evaluator import Evaluator
from loong_jax.verifiers.maths.values.powers import Undefined, Value
from loong_jax.verifiers.maths.values.rounding import Tolerance

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
    if tolerance.as_written and len({*map(rounding.num_digits, (gold, answer))} - {0}) > 1:
        return False
    try:
        a, evaluator = evaluate(gold, LOW_DIGITS, bindings, common_log)
        b, other = evaluate(answer, LOW_DIGITS, bindings, common_log)
    except Undefined:
        return None
    allowance = rounding.between(gold, answer, tolerance.digits)
    if is_exact(a) and is_exact(b):
        if a == b:
            return True
        gap, size = abs(a - b), max(abs(a), abs(b))
        return gap <= max(tolerance.absolute, tolerance.relative * abs(a), allowance(size, gap))
    context = evaluator.context
    if not (context.isfinite(evaluator.real(a)) and context.isfinite(evaluator.real(b))):
        return bool(a == b)
    if allowance is not rounding.none or not tolerance.is_zero:
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
