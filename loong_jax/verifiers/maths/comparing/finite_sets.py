"""Sets that a rule builds from a few integers: {n^2 : n in {1, 2, 3}}, {x in Z : |x| <= 1}."""

import math
from collections.abc import Sequence

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import lines, real_sets
from loong_jax.verifiers.maths.expression import BARE_LISTS, Node, number, substitute, symbols

MAX_ELEMENTS = 64
FARTHEST = 10**9  # from 0, of an end
_INTEGERS, _NATURAL, _POSITIVE = "set Z", "set N", frozenset(("set Z+", "set N*", "set N+"))


def elements(builder: Node) -> Node | None:
    """The set as a list of its elements; None where it is not finite, or not seen to be."""
    value, condition = builder.args
    conditions = list(condition.args) if condition.head in BARE_LISTS[:2] else [condition]
    if value.head == "chain" and value.args[0] == ("in",):
        conditions.insert(0, value)
        value = value.args[1]
    found = _domain(conditions)
    if found is None:
        return None
    variable, domain, rest = found
    if not all(item.head == "chain" and symbols(item) == {variable} for item in rest):
        return None
    if domain.head == "symbol":
        whole = _integers(domain.args[0], rest)
    else:
        whole = [item for item in domain.args if _all_hold(rest, variable, item)]
    if whole is None or len(whole) > MAX_ELEMENTS:
        return None
    return Node("set", tuple(substitute(value, variable, item) for item in whole))


def _domain(conditions: Sequence[Node]) -> tuple[str, Node, list[Node]] | None:
    """The variable, what it ranges over (a set, or the name of one), and the other conditions."""
    for index, item in enumerate(conditions):
        if item.head != "chain" or len(item.args) != 3 or item.args[1].head != "symbol":
            continue
        operators, variable, domain = item.args
        rest = [*conditions[:index], *conditions[index + 1 :]]
        if operators == ("=",) and index == 0 and not any(map(symbols, (domain, *rest))):
            return variable.args[0], Node("set", (domain, *rest)), []  # k = 1, 2, 3
        is_plain = domain.head == "set" and not symbols(domain)
        is_named = domain.head == "symbol" and (
            domain.args[0] in (_INTEGERS, _NATURAL) or domain.args[0] in _POSITIVE
        )
        if operators == ("in",) and (is_plain or is_named):
            return variable.args[0], domain, rest
    return None


def _integers(domain: str, conditions: Sequence[Node]) -> list[Node] | None:
    """The integers that meet all conditions, if these leave only a bounded part of the line."""
    sets = [real_sets.real_set(condition) for condition in conditions]
    if not sets or None in sets:
        return None
    line = lines.cut([one for one in sets if one is not None])
    if line is None or not line.ends:
        return None
    beyond = line.places()[-1], -0.5
    if any(all(line.holds(one, at) for one in sets if one is not None) for at in beyond):
        return None
    if any(abs(value) > FARTHEST for value, _ in line.ends):
        return None
    low, high = math.floor(float(line.ends[0][0])), math.ceil(float(line.ends[-1][0]))
    if high - low > 4 * MAX_ELEMENTS:
        return None
    (variable,) = symbols(conditions[0])
    found = [n for n in range(low, high + 1) if _all_hold(conditions, variable, number(n))]
    if domain == _NATURAL and 0 in found:
        return None  # which 0 may belong to or not
    return [number(n) for n in found if domain == _INTEGERS or n > 0]


def _all_hold(conditions: Sequence[Node], variable: str, at: Node) -> bool:
    return all(_holds(substitute(item, variable, at)) for item in conditions)


def _holds(relation: Node) -> bool:
    """Whether a chain of inequalities between numbers is true."""
    operators, *operands = relation.args
    for operator, left, right in zip(operators, operands, operands[1:], strict=False):
        same = values.equal(left, right)
        a, b = values.real_value(left), values.real_value(right)
        if same is None or a is None or b is None:
            return False
        is_less = values.gap(a, b) < 0
        holds = {
            "=": same, "!=": not same, "<": not same and is_less, "<=": same or is_less,
            ">": not same and not is_less, ">=": same or not is_less,
        }.get(operator)  # fmt: skip
        if not holds:
            return False
    return True
