"""Quantities whose units were read as variables."""

from loong_jax.verifiers.maths.expression import ONE, Node, heads, symbols
from loong_jax.verifiers.maths.forms import quotients
from loong_jax.verifiers.maths.units import NOTHING, UNITS, Unit


def as_quantity(node: Node) -> Node | None:
    """5 m or 25 N m, whose letters were read as variables, as a number and a unit."""
    found = _with_unit(node)
    if found is None or found[1] == NOTHING:
        return None
    return Node("quantity", found)


def _with_unit(node: Node) -> tuple[Node, Unit] | None:
    head, args = node
    if head == "quantity":
        return args[0], args[1]
    if head == "symbol":
        return (ONE, UNITS[args[0]]) if args[0] in UNITS else None
    if not symbols(node) and "quantity" not in heads(node):
        return node, NOTHING
    if head == "pow":
        found, exponent = _with_unit(args[0]), args[1]
        whole = exponent.head == "number" and isinstance(exponent.args[0], int)
        if found is None or found[0] != ONE or not whole or abs(exponent.args[0]) > 9:
            return None
        return ONE, NOTHING.times(found[1], exponent.args[0])
    if head not in ("mul", "div"):
        return None
    parts = [_with_unit(arg) for arg in args]
    if None in parts:
        return None
    values_, unit = [], NOTHING
    for index, part in enumerate(parts):
        assert part is not None
        values_.append(part[0])
        unit = unit.times(part[1], -1 if head == "div" and index else 1)
    if head == "mul":
        return quotients.product(*values_), unit
    return (values_[0] if values_[1] == ONE else Node("div", tuple(values_))), unit
