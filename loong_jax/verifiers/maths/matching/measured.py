"""Golds with a unit: quantities, temperatures, and answers with a unit nobody asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loong_jax.verifiers.maths.comparing import temperatures
from loong_jax.verifiers.maths.expression import Node, number, strip_labels, symbols
from loong_jax.verifiers.maths.forms import naming, quantities
from loong_jax.verifiers.maths.matching import ladder
from loong_jax.verifiers.maths.units import UNITS, Unit

if TYPE_CHECKING:
    from loong_jax.verifiers.maths.matching.matcher import Matcher


def temperature(matcher: "Matcher", gold: Node, answer: Node) -> bool | None:
    """On two scales: as temperatures, and undecided where only a difference could be meant."""
    given = [temperatures.kelvins(node) for node in (gold, answer)]
    if given[0] is None or given[1] is None:
        return None
    if ladder.equal(matcher, given[0], given[1]):
        return True
    numbers = [naming.right_side(node).args[0] for node in (gold, answer)]
    if ladder.equal(matcher, numbers[0], numbers[1]):
        matcher.note = "the same number of degrees on another scale"
        return None
    return False


def quantity(matcher: "Matcher", gold: Node, answer: Node) -> bool | None:
    value, unit = gold.args
    if answer.head != "quantity":
        converted = quantities.as_quantity(answer)
        if converted is not None and converted.args[1].dimensions == unit.dimensions:
            answer = converted
        elif answer.head in ("percent", "degree") or symbols(answer) - symbols(value):
            return False
        else:
            return ladder.equal(matcher, value, answer)  # the unit was asked for
    other, other_unit = answer.args
    if unit == UNITS["pound_sterling"] and other_unit == UNITS["pound"]:
        return ladder.equal(matcher, value, other)  # the word stands for both
    if unit.dimensions != other_unit.dimensions:
        matcher.note = "the units measure different things"
        return False
    if unit.factor == other_unit.factor:
        return ladder.equal(matcher, value, other)
    ratio = number(other_unit.factor / unit.factor)
    return ladder.equal(matcher, value, Node("mul", (other, ratio)))


def unasked_unit(matcher: "Matcher", gold: Node, answer: Node) -> bool | None:
    """An answer with a unit for a gold without one: the number counts."""
    as_unit = quantities.as_quantity(gold)
    if as_unit is not None:
        return quantity(matcher, as_unit, answer)
    return ladder.equal(matcher, gold, answer.args[0])


def sum_of_quantities(matcher: "Matcher", gold: Node, items: Sequence[Node]) -> bool | None:
    """3 hours and 5 minutes is one quantity; any other list is no value."""
    parts = [strip_labels(item) for item in items]
    if gold.head != "quantity" or not all(part.head == "quantity" for part in parts):
        return False
    if len({part.args[1].dimensions for part in parts}) != 1:
        return False
    factors = [part.args[1].factor for part in parts]
    if sorted(factors, reverse=True) != factors or len(set(factors)) != len(factors):
        return False
    total = Node("add", tuple(Node("mul", (p.args[0], number(p.args[1].factor))) for p in parts))
    unit = Unit(gold.args[1].factor ** 0, parts[0].args[1].dimensions)
    return matcher.match(gold, Node("quantity", (total, unit)))
