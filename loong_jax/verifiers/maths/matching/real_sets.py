"""Sets of real numbers and functions in pieces: intervals, inequalities in one unknown, cases.

All ends of two sets, in order, cut the line into points and gaps, on which both hold or do not. Of
two functions, every branch of one that holds there must agree with every such branch of the other:
at a point by value, on a gap as functions.
"""

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.expression import (
    INFINITY,
    REALS,
    CostError,
    Node,
    difference,
    number,
    substitute,
)
from loong_jax.verifiers.maths.names import FLIPPED
from loong_jax.verifiers.maths.reading.brackets import OTHERWISE, Branch

_MINUS_INFINITY = Node("neg", (INFINITY,))


def real_set(node: Node) -> Node | None:
    """The set of reals that an expression stands for; None if it stands for something else.

    A tree of nodes: intervals under unions, intersections and differences.
    """
    match node.unlabelled:
        case Node("interval") as interval:
            return interval
        case Node("symbol", ("R",)):
            return REALS
        case Node("tuple" | "bracket" as head, (low, high)):
            return Node("interval", (low, high, head == "tuple", head == "tuple"))
        case Node("set", items):
            is_plain = not any(item.head in ("tuple", "chain", "list") for item in items)
            return Node("union", tuple(map(point, items))) if is_plain else None
        case Node("union" | "intersection" | "setminus" as head, (left, right, *_)):
            return joined(head, real_set(left), real_set(right))
        case Node("builder", (variable, condition)):
            base: Node | None = REALS
            if variable.head == "chain" and variable.args[0] == ("in",):
                variable, base = variable.args[1], real_set(variable.args[2])
            if variable.head == "symbol" and condition.symbols <= {variable.args[0]}:
                return joined("intersection", base, real_set(condition))
        case Node("chain", relation):
            return _relation(*relation)
        case Node("and" | "list", (Node("chain", (("!=",), Node("symbol"), first)), *rest)) if (
            rest and all(values.real_value(item) is not None for item in (first, *rest))
        ):  # x != -1, 1
            return _without(first, *rest)
        case Node("or" | "and" | "list" as head, items):
            parts = [real_set(item) for item in items]
            names = frozenset[str]().union(*(item.symbols for item in items))
            if all(item.head == "chain" for item in items) and len(names) == 1:
                return joined("union" if head == "or" else "intersection", *parts)
            if all(item.head in ("interval", "union") for item in items):
                return joined("union", *parts)
    return None


def joined(head: str, *parts: Node | None) -> Node | None:
    """The union, intersection or difference of sets; None where one of them is none."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return functools.reduce(lambda a, b: Node(head, (a, b)), known)


def point(at: Node) -> Node:
    return Node("interval", (at, at, False, False))


def _without(*left_out: Node) -> Node:
    return Node("setminus", (REALS, Node("union", tuple(map(point, left_out)))))


def is_set(node: Node) -> bool:
    """True if a node can only be a set: brackets around two numbers might be a point or a list."""
    node = node.unlabelled
    if node.head in ("tuple", "bracket"):
        return len(node.args) == 2 and any(map(_is_infinite, node.args))
    return node.head in ("interval", "union", "intersection", "setminus", "builder")


def _is_infinite(node: Node) -> bool:
    return node in (INFINITY, _MINUS_INFINITY)


def _relation(operators: tuple[str, ...], *operands: Node) -> Node | None:
    match operators, *operands:
        case ("in",), Node("symbol"), domain:
            return real_set(domain)
        case ("notin",), Node("symbol"), domain:
            return joined("setminus", REALS, real_set(domain))
        case ("!=",), left, Node("pm", args):
            is_plain = len(args) == 1 and left.head == "symbol"
            return _without(*args, Node("neg", args)) if is_plain else None
        case ("=",), *_:
            return None  # an assignment is a value
    names = frozenset[str]().union(*(operand.symbols for operand in operands))
    if len(names) != 1 or not set(operators) <= {"<", "<=", ">", ">=", "!=", "="}:
        return None
    sides = zip(operands, operators, operands[1:], strict=False)
    return joined("intersection", *(_affine(*side, *names) for side in sides))


def _affine(left: Node, operator: str, right: Node, name: str) -> Node | None:
    """The solutions of one inequality whose difference of sides is affine in its unknown."""
    if not left.symbols:
        return _affine(right, FLIPPED[operator], left, name) if right.symbols else None
    if left.head == "symbol" and not right.symbols:
        return _ray(operator, right)
    is_absolute = [side.head == "call" and side.args[0] == "abs" for side in (left, right)]
    if all(is_absolute) and right.symbols:
        raise CostError("an absolute value stands on both sides")
    if is_absolute[0] and not right.symbols and operator != "!=":
        return joined(
            "intersection" if operator in ("<", "<=") else "union",
            _affine(left.args[1], FLIPPED[operator], Node("neg", (right,)), name),
            _affine(left.args[1], operator, right, name),
        )
    if (found := _root_and_slope(difference(left, right), name)) is None:
        return None
    return _ray(operator if found[1] > 0 else FLIPPED[operator], found[0])


def _root_and_slope(gap: Node, name: str) -> tuple[Node, Any] | None:
    """Those of an affine function of one unknown; None if it is none, or constant."""
    found = values.affine(gap, name)
    if found is None or not found[1]:
        return None
    start, end = (substitute(gap, name, number(x)) for x in (0, 1))
    return Node("div", (start, difference(start, end))), found[1]


def _ray(operator: str, end: Node) -> Node:
    if operator in ("<", "<="):
        return Node("interval", (_MINUS_INFINITY, end, True, operator == "<"))
    if operator in (">", ">="):
        return Node("interval", (end, INFINITY, operator == ">", True))
    return Node("setminus", (REALS, point(end))) if operator == "!=" else point(end)


MAX_ENDS = 64


class Line(NamedTuple):
    """The real line, cut at `ends`, which ascend. Place i is end i, place i + 0.5 the gap after."""

    ends: list[tuple[Any, Node]]
    places: list[float]

    def within(self, part: Node) -> set[float]:
        """The places that a set holds."""
        if part.head == "interval":
            low, high, no_low, no_high = part.args
            if low == INFINITY or high == _MINUS_INFINITY:
                return set()
            start = -1 if _is_infinite(low) else self._place(low) + no_low / 4
            end = math.inf if _is_infinite(high) else self._place(high) - no_high / 4
            return {at for at in self.places if start <= at <= end}
        held = [self.within(inner) for inner in part.args]
        if part.head == "union":
            return set[float]().union(*held)
        return held[0] & held[1] if part.head == "intersection" else held[0] - held[1]

    def _place(self, node: Node) -> int:
        value = values.real_value(node)
        return next(i for i, known in enumerate(self.ends) if _is_same(value, node, known))


def cut(parts: Iterable[Node]) -> Line | None:
    """The line cut at all ends of some sets; None where one has no real value."""
    nodes = [end for part in parts for end in _ends(part)]
    if len(nodes) > MAX_ENDS:
        return None
    ends: list[tuple[Any, Node]] = []
    for node in nodes:
        value = values.real_value(node)
        if value is None:
            return None
        if not any(_is_same(value, node, known) for known in ends):
            ends.append((value, node))
    ends.sort(key=functools.cmp_to_key(lambda a, b: values.gap(a[0], b[0])))
    finite = [i for i, (value, _) in enumerate(ends) if abs(value) != math.inf]
    return Line(ends, [*finite, *(i + 0.5 for i in range(-1, len(ends)))])


def _ends(part: Node) -> Iterable[Node]:
    if part.head == "interval":
        return (end for end in part.args[:2] if not _is_infinite(end))
    return itertools.chain.from_iterable(map(_ends, part.args))


def _is_same(value: Any, node: Node, known: tuple[Any, Node]) -> bool:
    return value == known[0] or values.equal(known[1], node) is True


def equal(gold: Node | None, answer: Node | None) -> bool | None:
    """True if two sets hold the same numbers; None where an end has no real value."""
    if gold is None or answer is None or (line := cut((gold, answer))) is None:
        return None
    return line.within(gold) == line.within(answer)


# ---- functions in pieces

MAX_COMPARED = 256  # pairs of values
FARTHEST = 10**9  # from 0, of an end
_NARROWEST = Fraction(1, 10**9)
_STEPS = frozenset(("floor", "ceiling", "mod", "sign", "gcd", "lcm", "arg", "re", "im"))
_INSIDE = tuple(map(Fraction, ("0.1373", "0.3871", "0.6113", "0.9129")))  # of a gap's width
_BEYOND = tuple(map(Fraction, ("0.137", "1.93", "13.7", "311")))  # past the last end
_SAID = re.compile(r"(?P<name>[a-zN])\W*(?:even|odd)(?: (?:numbers?|integers?))?")
_WHOLE = (1, 2, 3, 4, 7, 10, 13, 18)


def same_functions(gold: Node, answer: Node) -> bool | None:
    """True if both are the same function; either may be an expression, which holds everywhere."""
    own, given = (
        [Branch(*pair) for pair in node.args] if node.head == "piecewise" else
        [Branch(node, OTHERWISE)]
        for node in (gold, answer)
    )  # fmt: skip
    conditions = [c for _, c in (*own, *given) if c != OTHERWISE]
    texts = [c.args[0] if c.head == "text" else "" for c in conditions]
    if any(texts):
        names = {match and match["name"] for match in map(_SAID.fullmatch, texts)}
        if len(names) == 1 and (name := names.pop()) is not None:
            return _same_by_parity(own, given, name)
        return _same_by_branch(own, given)
    unknowns = frozenset[str]().union(*(c.symbols for c in conditions))
    sets = [*map(_sets, (own, given))] if len(unknowns) == 1 else []
    if sets and sets[0] and sets[1]:
        breaks = [point(x) for b in (*own, *given) for x in _breaks(b.value, *unknowns)]
        line = cut([*sets[0], *sets[1], *breaks])
        if line is not None:
            left, right = (
                [(b.value, line.within(part)) for b, part in zip(branches, parts, strict=True)]
                for branches, parts in ((own, sets[0]), (given, sets[1]))
            )
            return _same_by_place(line, left, right, *unknowns)
    return _same_by_branch(own, given)


def _sets(branches: Sequence[Branch]) -> list[Node] | None:
    found: list[Node] = []
    for _, condition in branches:
        if condition == OTHERWISE:
            one = joined("setminus", REALS, *found)
        elif condition.head == "chain" and condition.args[0] == ("=",):
            one = real_set(Node("set", (condition.args[2],)))  # x = 0
        else:
            one = real_set(condition)
        if one is None:
            return None
        found.append(one)
    return found


Pieces = list[tuple[Node, set[float]]]  # values, and the places where each holds


def _same_by_place(line: Line, own: Pieces, given: Pieces, name: str) -> bool | None:
    if any(abs(value) > FARTHEST for value, _ in line.ends):
        raise CostError(f"a piece ends beyond {FARTHEST}")
    compared = 0
    for place in line.places:
        left, right = ([value for value, at in part if place in at] for part in (own, given))
        if bool(left) != bool(right):
            return False
        pairs = list(itertools.product(left, right))
        if not all(a == b or (_is_smooth(a) and _is_smooth(b)) for a, b in pairs):
            return None
        compared += len(pairs)
        if compared * len(_BEYOND) > MAX_COMPARED:
            raise CostError(f"the pieces overlap in more than {compared - len(pairs)} ways")
        at = [line.ends[place][1]] if isinstance(place, int) else _samples(line.ends, place)
        for pair in pairs:
            agreed = 0
            for x in at:
                outcome = values.equal(*(substitute(node, name, x) for node in pair))
                if outcome is False:
                    return False
                agreed += outcome is True
            if agreed < min(2, len(at)):
                return None
    return True


def _is_smooth(value: Node) -> bool:
    """True if the kinks of a value are known, so that a few points of a gap speak for all of it."""
    calls = {n.args[0] for n in value.walk() if n.head == "call"}
    return "piecewise" not in value.heads and not calls & _STEPS


def _breaks(value: Node, name: str) -> Iterator[Node]:
    """The kinks of absolute values, maxima and minima of affine arguments."""
    for node in value.walk():
        if node.head != "call" or node.args[0] not in ("abs", "max", "min"):
            continue
        first, *rest = node.args[1:]
        kink = difference(first, rest[0]) if rest else first
        found = _root_and_slope(kink, name) if kink.symbols == {name} else None
        if found is not None:
            yield found[0]


def _samples(ends: Sequence[tuple[Any, Node]], place: float) -> list[Node]:
    """Points of a gap, near its ends and far from them."""
    infinite = (-math.inf, None), *ends, (math.inf, None)
    low, high = (float(value) for value, _ in infinite[int(place + 0.5) :][:2])
    if math.isinf(low) and math.isinf(high):
        return [number(sign * x) for x in _BEYOND[:3] for sign in (1, -1)]
    if math.isinf(low) or math.isinf(high):
        end, sign = (high, -1) if math.isinf(low) else (low, 1)
        return [number(Fraction(end) + sign * x) for x in _BEYOND]
    start, width = Fraction(low), Fraction(high) - Fraction(low)
    if width < _NARROWEST:
        raise CostError(f"a piece {float(width):.3g} wide is below {float(_NARROWEST)}")
    return [number(start + width * part) for part in _INSIDE]


def _same_by_branch(own: list[Branch], given: list[Branch]) -> bool | None:
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
    left, right = real_set(one), real_set(other)
    if left is not None and right is not None and one.symbols == other.symbols:
        return equal(left, right) is True
    if one.head != "chain" or other.head != "chain" or one.args[0] != other.args[0]:
        return False
    return all(values.equal(*pair) for pair in zip(one.args[1:], other.args[1:], strict=True))


def _same_by_parity(own: list[Branch], given: list[Branch], name: str) -> bool | None:
    """True if both have the same value at even and at odd numbers; None where one has none."""
    if not all(value.symbols <= {name} for value, _ in (*own, *given)):
        return None
    for n in _WHOLE:
        said = "odd" if n % 2 else "even"
        found = [
            substitute(value, name, number(n))
            for branches in (own, given)
            for value in [v for v, c in branches if c == OTHERWISE or said in c.args[0]][:1]
        ]
        if len(found) < 2:
            return None
        if not (same := values.equal(*found)):
            return same
    return True
