"""Rounded decimals: how far two values may be apart because one of them was rounded.

A decimal stands for a rounded value only if it has many digits, as a program prints them:
`FLOAT_DIGITS` significant digits make a double, `LONG_DIGITS` a rounding; 0.333 is not 1/3.
"""

import dataclasses
from collections.abc import Callable
from fractions import Fraction

from loong_jax.verifiers.maths.expression import Node, walk

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
    return max((n.args[1] for n in walk(node) if n.head == "number"), default=0)


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
