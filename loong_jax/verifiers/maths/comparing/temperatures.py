"""Temperatures: 25 degrees Celsius are 298.15 K and 77 degrees F, and 25 K only as a difference."""

from fractions import Fraction

from loong_jax.verifiers.maths.expression import Node, number, symbols
from loong_jax.verifiers.maths.units import UNITS

_KELVIN = UNITS["K"].dimensions
_SCALES = {  # kelvins of a degree, and where its zero is in such degrees above absolute zero
    "C": (Fraction(1), Fraction("273.15")),
    "F": (Fraction(5, 9), Fraction("459.67")),
}


def scale(node: Node) -> str:
    """C, F or K where it is a temperature in them; else nothing."""
    if node.head == "labelled" and node.args[1] in (("degreesC",), ("degreesF",)):
        return node.args[1][0][-1]
    if node.head == "chain" and node.args[0] == ("=",) and node.args[1].head == "symbol":
        return scale(node.args[2])
    is_kelvin = node.head == "quantity" and node.args[1].dimensions == _KELVIN
    return "K" if is_kelvin else ""


def kelvins(node: Node) -> Node | None:
    """The value in kelvins; None where it holds a name."""
    if node.head == "chain":
        node = node.args[2]
    given = scale(node)
    value = node.args[0]
    if symbols(value):
        return None
    if given == "K":
        return Node("mul", (value, number(node.args[1].factor)))
    size, zero = _SCALES[given]
    return Node("mul", (number(size), Node("add", (value, number(zero)))))
