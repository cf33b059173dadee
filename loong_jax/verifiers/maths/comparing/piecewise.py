"""Functions in pieces, compared on every part of the line.

The ends of all conditions cut the line into points and gaps. On each, every branch of one that
holds must agree with every branch of the other: at a point by value, on a gap as functions.
"""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import real_sets
from loong_jax.verifiers.maths.expression import (
    REALS,
    CostError,
    Node,
    difference,
    number,
    substitute,
)
from loong_jax.verifiers.maths.reading.brackets import OTHERWISE, Branch

MAX_COMPARED = 256  # pairs of values
_STEPS = frozenset(("floor", "ceiling", "mod", "sign", "gcd", "lcm", "arg", "re", "im"))
_INSIDE = tuple(map(Fraction, ("0.1373", "0.3871", "0.6113", "0.9129")))  # of a gap's width
_BEYOND = tuple(map(Fraction, ("0.137", "1.93", "13.7", "311")))  # past the last end
FARTHEST = 10**9  # from 0, of an end
_NARROWEST = Fraction(1, 10**9)


def equal(gold: Node, answer: Node) -> bool | None:
    """True if both are the same function; either may be an expression, which holds everywhere."""
    own, given = _branches(gold), _branches(answer)
    conditions = [branch.condition for branch in (*own, *given)]
    unknowns = frozenset[str]().union(*(c.symbols for c in conditions))
    if any(c.head == "text" and c != OTHERWISE for c in conditions):
        name = _parity_variable(conditions)
        return _equal_by_branch(own, given) if name is None else _equal_by_parity(own, given, name)
    if len(unknowns) != 1:
        return _equal_by_branch(own, given)
    return _equal_by_place(own, given, *unknowns)


def _branches(node: Node) -> list[Branch]:
    if node.head == "piecewise":
        return [Branch(*pair) for pair in node.args]
    return [Branch(node, OTHERWISE)]


def _sets(branches: Sequence[Branch]) -> list[Node] | None:
    found: list[Node] = []
    for _, condition in branches:
        if condition == OTHERWISE:
            one = real_sets.joined("setminus", REALS, *found)
        elif condition.head == "chain" and condition.args[0] == ("=",):
            one = real_sets.real_set(Node("set", (condition.args[2],)))  # x = 0
        else:
            one = real_sets.real_set(condition)
        if one is None:
            return None
        found.append(one)
    return found


def _equal_by_place(own: list[Branch], given: list[Branch], name: str) -> bool | None:
    sets = _sets(own), _sets(given)
    if sets[0] is None or sets[1] is None:
        return _equal_by_branch(own, given)
    breaks = [real_sets.point(x) for b in (*own, *given) for x in _breaks(b.value, name)]
    line = real_sets.cut([*sets[0], *sets[1], *breaks])
    if line is None:
        return _equal_by_branch(own, given)
    if any(abs(value) > FARTHEST for value, _ in line.ends):
        raise CostError(f"a piece ends beyond {FARTHEST}")
    compared = 0
    for place in line.places():
        left, right = (
            [b.value for b, part in zip(branches, parts, strict=True) if line.holds(part, place)]
            for branches, parts in ((own, sets[0]), (given, sets[1]))
        )
        if bool(left) != bool(right):
            return False
        pairs = list(itertools.product(left, right))
        if not all(_is_plain(value) or a == b for a, b in pairs for value in (a, b)):
            return None
        compared += len(pairs)
        if compared * len(_BEYOND) > MAX_COMPARED:
            raise CostError(f"the pieces overlap in more than {compared - len(pairs)} ways")
        at = [line.end(place)] if place == int(place) else _samples(*line.around(place))
        for a, b in pairs:
            if not (outcome := _agree(a, b, name, at)):
                return outcome
    return True


def _is_plain(value: Node) -> bool:
    """True if the kinks of a value are known, so that a few points of a gap speak for all of it."""
    if "piecewise" in value.heads:
        return False
    return not any(n.head == "call" and n.args[0] in _STEPS for n in value.walk())


def _agree(a: Node, b: Node, name: str, at: Sequence[Node]) -> bool | None:
    agreed = 0
    for x in at:
        outcome = values.equal(*(substitute(node, name, x) for node in (a, b)))
        if outcome is False:
            return False
        agreed += outcome is True
    return True if agreed >= min(2, len(at)) else None


def _breaks(value: Node, name: str) -> Iterator[Node]:
    """The kinks of absolute values, maxima and minima of affine arguments."""
    for node in value.walk():
        if node.head != "call" or node.args[0] not in ("abs", "max", "min"):
            continue
        first, *rest = node.args[1:]
        kink = difference(first, rest[0]) if rest else first
        found = real_sets.root_and_slope(kink, name) if kink.symbols == {name} else None
        if found is not None:
            yield found[0]


def _samples(low: float, high: float) -> list[Node]:
    """Points of a gap, near its ends and far from them."""
    if math.isinf(low) and math.isinf(high):
        return [number(sign * x) for x in _BEYOND[:3] for sign in (1, -1)]
    if math.isinf(low) or math.isinf(high):
        end, sign = (high, -1) if math.isinf(low) else (low, 1)
        return [number(Fraction(end) + sign * x) for x in _BEYOND]
    start, width = Fraction(low), Fraction(high) - Fraction(low)
    if width < _NARROWEST:
        raise CostError(f"a piece {float(width):.3g} wide is below {float(_NARROWEST)}")
    return [number(start + width * part) for part in _INSIDE]


def _equal_by_branch(own: list[Branch], given: list[Branch]) -> bool | None:
    """Each branch of one beside a branch of the other with the same condition and value."""
    if len(own) != len(given):
        return False
    rest = list(given)
    for branch in own:
        other = next((o for o in rest if _same_condition(branch.condition, o.condition)), None)
        if other is None or not values.equal(branch.value, other.value):
            return False
        rest.remove(other)
    return True


def _same_condition(one: Node, other: Node) -> bool:
    if one == other or "text" in (one.head, other.head):
        return one == other
    left, right = real_sets.real_set(one), real_sets.real_set(other)
    if left is not None and right is not None and one.symbols == other.symbols:
        return real_sets.equal(left, right) is True
    if one.head != "chain" or other.head != "chain" or one.args[0] != other.args[0]:
        return False
    return all(values.equal(*pair) for pair in zip(one.args[1:], other.args[1:], strict=True))


_SAID = re.compile(r"(?P<name>[a-zN])\W*(?:even|odd)(?: (?:numbers?|integers?))?")
_AT = (1, 2, 3, 4, 7, 10, 13, 18)


def _parity_variable(conditions: Sequence[Node]) -> str | None:
    """n, where all conditions say that n is even or odd; None where one says anything else."""
    said = [
        _SAID.fullmatch(condition.args[0]) if condition.head == "text" else None
        for condition in conditions
        if condition != OTHERWISE
    ]
    names = {match and match["name"] for match in said}
    return names.pop() if len(names) == 1 else None


def _equal_by_parity(own: list[Branch], given: list[Branch], name: str) -> bool | None:
    """True if both have the same value at even and at odd numbers; None where one has none."""
    if not all(value.symbols <= {name} for value, _ in (*own, *given)):
        return None
    for at in _AT:
        wanted = "odd" if at % 2 else "even"
        found = [
            next((substitute(value, name, number(at)) for value, condition in branches
                  if condition == OTHERWISE or wanted in condition.args[0]), None)
            for branches in (own, given)
        ]  # fmt: skip
        if found[0] is None or found[1] is None:
            return None
        if not (same := values.equal(found[0], found[1])):
            return same
    return True
