"""Sets of real numbers: intervals, unions, differences, inequalities in one unknown.

All ends of two sets, in order, cut the line into points and gaps, on which both hold or do not.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.expression import (
    INFINITY,
    REALS,
    Node,
    difference,
    number,
    substitute,
)
from loong_jax.verifiers.maths.names import FLIPPED

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
            return _builder(variable, condition)
        case Node("chain") as relation:
            return _relation(relation)
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
        return len(node.args) == 2 and any(map(is_infinite, node.args))
    return node.head in ("interval", "union", "intersection", "setminus", "builder")


def is_infinite(node: Node) -> bool:
    return node in (INFINITY, _MINUS_INFINITY)


def _builder(variable: Node, condition: Node) -> Node | None:
    base: Node | None = REALS
    if variable.head == "chain" and variable.args[0] == ("in",):
        variable, base = variable.args[1], real_set(variable.args[2])
    if variable.head != "symbol" or not condition.symbols <= {variable.args[0]}:
        return None
    return joined("intersection", base, real_set(condition))


def _relation(node: Node) -> Node | None:
    match node.args:
        case (("in",), Node("symbol"), domain):
            return real_set(domain)
        case (("notin",), Node("symbol"), domain):
            return joined("setminus", REALS, real_set(domain))
        case (("!=",), left, Node("pm", args)):
            is_plain = len(args) == 1 and left.head == "symbol"
            return _without(*args, Node("neg", args)) if is_plain else None
    operators, *operands = node.args
    names = node.symbols
    if len(names) != 1 or not set(operators) <= {"<", "<=", ">", ">=", "!=", "="}:
        return None
    if operators == ("=",):
        return None  # an assignment is a value
    (name,) = names
    sides = zip(operands, operators, operands[1:], strict=False)
    return joined("intersection", *(_affine(*side, name) for side in sides))


def _affine(left: Node, operator: str, right: Node, name: str) -> Node | None:
    """The solutions of one inequality whose difference of sides is affine in its unknown."""
    if not left.symbols and not right.symbols:
        return None
    if left.head == "symbol" and not right.symbols:
        return _ray(operator, right)
    if right.head == "symbol" and not left.symbols:
        return _ray(FLIPPED[operator], left)
    if left.head == "call" and left.args[0] == "abs" and not right.symbols and operator != "!=":
        return joined(
            "intersection" if operator in ("<", "<=") else "union",
            _affine(left.args[1], FLIPPED[operator], Node("neg", (right,)), name),
            _affine(left.args[1], operator, right, name),
        )
    if right.head == "call" and right.args[0] == "abs":
        return _affine(right, FLIPPED[operator], left, name)
    if (found := root_and_slope(difference(left, right), name)) is None:
        return None
    return _ray(operator if found[1] > 0 else FLIPPED[operator], found[0])


def root_and_slope(gap: Node, name: str) -> tuple[Node, Any] | None:
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

    def places(self) -> list[float]:
        finite = [i for i, (value, _) in enumerate(self.ends) if abs(value) != float("inf")]
        return [*finite, *(i + 0.5 for i in range(-1, len(self.ends)))]

    def holds(self, part: Node, at: float) -> bool:
        if part.head == "interval":
            low, high, no_low, no_high = part.args
            start = -1 if is_infinite(low) else self._place(low)
            end = float("inf") if is_infinite(high) else self._place(high)
            if low == INFINITY or high == _MINUS_INFINITY:
                return False
            return (at > start if no_low else at >= start) and (at < end if no_high else at <= end)
        holds = [self.holds(inner, at) for inner in part.args]
        if part.head == "union":
            return any(holds)
        return holds[0] and holds[1] == (part.head == "intersection")

    def end(self, at: float) -> Node:
        return self.ends[int(at)][1]

    def around(self, at: float) -> tuple[float, float]:
        """The values beside a gap."""
        before, after = int(at - 0.5), int(at + 0.5)
        low = float(self.ends[before][0]) if before >= 0 else -float("inf")
        high = float(self.ends[after][0]) if after < len(self.ends) else float("inf")
        return low, high

    def _place(self, node: Node) -> int:
        value = values.real_value(node)
        return next(i for i, known in enumerate(self.ends) if _is_same(value, node, known))


def cut(parts: Sequence[Node]) -> Line | None:
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
    return Line(ends)


def _ends(part: Node) -> Iterable[Node]:
    if part.head == "interval":
        return (end for end in part.args[:2] if not is_infinite(end))
    return itertools.chain.from_iterable(map(_ends, part.args))


def _is_same(value: Any, node: Node, known: tuple[Any, Node]) -> bool:
    return value == known[0] or values.equal(known[1], node) is True


def equal(gold: Node | None, answer: Node | None) -> bool | None:
    """True if two sets hold the same numbers; None where an end has no real value."""
    if gold is None or answer is None or (line := cut((gold, answer))) is None:
        return None
    return all(line.holds(gold, at) == line.holds(answer, at) for at in line.places())
