"""Sets of real numbers: intervals, unions, differences, inequalities in one unknown.

All ends of two sets, in order, cut the line into points and gaps, on which both hold or do not.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.expression import INFINITY, Node, difference, number, substitute
from loong_jax.verifiers.maths.names import FLIPPED


class RealSet(NamedTuple):
    """A tree of intervals: kind "interval" has two ends and what leaves them out."""

    kind: str
    parts: tuple[Any, ...]


ALL = RealSet("all", ())


def real_set(node: Node) -> RealSet | None:
    """The set of reals that an expression stands for; None if it stands for something else."""
    node = node.unlabelled
    head, args = node
    if head == "interval":
        return RealSet("interval", args)
    if head == "symbol" and args[0] == "R":
        return ALL
    if head in ("tuple", "bracket") and len(args) == 2:
        return RealSet("interval", (*args, head == "tuple", head == "tuple"))
    if head == "set":
        if any(item.head in ("tuple", "chain", "list") for item in args):
            return None
        return RealSet("union", tuple(map(point, args)))
    if head in ("union", "intersection", "setminus"):
        left, right = real_set(args[0]), real_set(args[1])
        return None if left is None or right is None else RealSet(head, (left, right))
    if head == "builder":
        return _builder(*args)
    if head == "chain":
        return _relation(node)
    if head in ("or", "and", "list"):
        if head != "or" and (values_ := _left_out(args)) is not None:
            return _without(values_)
        parts = [real_set(item) for item in args]
        if None in parts:
            return None
        names = {name for item in args for name in item.symbols}
        if all(item.head == "chain" for item in args) and len(names) == 1:
            join = "union" if head == "or" else "intersection"
        elif all(item.head in ("interval", "union") for item in args):
            join = "union"
        else:
            return None
        return functools.reduce(lambda a, b: RealSet(join, (a, b)), filter(None, parts))
    return None


def _left_out(items: Sequence[Node]) -> tuple[Node, ...] | None:
    """-1 and 1 of "x != -1, 1"."""
    first, *rest = items
    if first.head != "chain" or first.args[0] != ("!=",) or first.args[1].head != "symbol":
        return None
    found = (first.args[2], *rest)
    is_plain = all(values.real_value(item) is not None for item in found)
    return found if rest and is_plain else None


def _without(left_out: Sequence[Node]) -> RealSet:
    points = RealSet("union", tuple(map(point, left_out)))
    return RealSet("setminus", (ALL, points))


def is_set(node: Node) -> bool:
    """True if a node can only be a set: brackets around two numbers might be a point or a list."""
    node = node.unlabelled
    if node.head in ("interval", "union", "intersection", "setminus", "builder"):
        return True
    if node.head in ("tuple", "bracket"):
        return len(node.args) == 2 and any(is_infinite(item) for item in node.args)
    return False


def is_infinite(node: Node) -> bool:
    return node in (INFINITY, Node("neg", (INFINITY,)))


def _builder(variable: Node, condition: Node) -> RealSet | None:
    base = ALL
    if variable.head == "chain" and variable.args[0] == ("in",):
        domain = real_set(variable.args[2])
        if domain is None:
            return None
        base, variable = domain, variable.args[1]
    if variable.head != "symbol" or not condition.symbols <= {variable.args[0]}:
        return None
    inner = real_set(condition)
    return None if inner is None else RealSet("intersection", (base, inner))


def _relation(node: Node) -> RealSet | None:
    operators, *operands = node.args
    if operators == ("in",) and operands[0].head == "symbol":
        return real_set(operands[1])
    if operators == ("notin",) and operands[0].head == "symbol":
        inner = real_set(operands[1])
        return None if inner is None else RealSet("setminus", (ALL, inner))
    if operators == ("!=",) and operands[1].head == "pm":
        values_ = (operands[1].args[-1], Node("neg", operands[1].args[-1:]))
        is_plain = len(operands[1].args) == 1 and operands[0].head == "symbol"
        return _without(values_) if is_plain else None
    names = node.symbols
    if len(names) != 1 or not set(operators) <= {"<", "<=", ">", ">=", "!=", "="}:
        return None
    if operators == ("=",):
        return None  # an assignment is a value
    (name,) = names
    parts = [
        _affine(left, operator, right, name)
        for operator, left, right in zip(operators, operands, operands[1:], strict=False)
    ]
    if any(part is None for part in parts):
        return None
    return functools.reduce(lambda a, b: RealSet("intersection", (a, b)), filter(None, parts))


def _affine(left: Node, operator: str, right: Node, name: str) -> RealSet | None:
    """The solutions of one inequality whose difference of sides is affine in its unknown."""
    if not left.symbols and not right.symbols:
        return None
    if left.head == "symbol" and not right.symbols:
        return _ray(operator, right)
    if right.head == "symbol" and not left.symbols:
        return _ray(FLIPPED[operator], left)
    if left.head == "call" and left.args[0] == "abs" and not right.symbols and operator != "!=":
        inner, minus = left.args[1], Node("neg", (right,))
        low, high = (
            _affine(inner, FLIPPED[operator], minus, name),
            _affine(inner, operator, right, name),
        )
        if low is None or high is None:
            return None
        return RealSet("intersection" if operator in ("<", "<=") else "union", (low, high))
    if right.head == "call" and right.args[0] == "abs":
        return _affine(right, FLIPPED[operator], left, name)
    gap = difference(left, right)
    found = _root_and_slope(gap, name)
    return (
        None if found is None else _ray(operator if found[1] > 0 else FLIPPED[operator], found[0])
    )


def affine_root(gap: Node, name: str) -> Node | None:
    """The root of an affine function of one unknown; None if it is none, or constant."""
    found = _root_and_slope(gap, name)
    return None if found is None else found[0]


def _root_and_slope(gap: Node, name: str) -> tuple[Node, Any] | None:
    found = values.affine(gap, name)
    if found is None or not found[1]:
        return None
    start, end = (substitute(gap, name, number(x)) for x in (0, 1))
    return Node("div", (start, difference(start, end))), found[1]


def point(at: Node) -> RealSet:
    return RealSet("interval", (at, at, False, False))


def _ray(operator: str, end: Node) -> RealSet:
    if operator in ("<", "<="):
        return RealSet("interval", (Node("neg", (INFINITY,)), end, True, operator == "<"))
    if operator in (">", ">="):
        return RealSet("interval", (end, INFINITY, operator == ">", True))
    return RealSet("setminus", (ALL, point(end))) if operator == "!=" else point(end)


MAX_ENDS = 64


class Line(NamedTuple):
    """The real line, cut at `ends`, which ascend. Place i is end i, place i + 0.5 the gap after."""

    ends: list[tuple[Any, Node]]

    def places(self) -> list[float]:
        finite = [i for i, (value, _) in enumerate(self.ends) if abs(value) != float("inf")]
        return [*finite, *(i + 0.5 for i in range(-1, len(self.ends)))]

    def holds(self, part: RealSet, at: float) -> bool:
        return _holds(part, at, self._place)

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


def cut(parts: Sequence[RealSet]) -> Line | None:
    """The line cut at all ends of some sets; None where one has no real value."""
    nodes: list[Node] = []
    for part in parts:
        _ends(part, nodes)
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


def equal(gold: RealSet, answer: RealSet) -> bool | None:
    """True if two sets hold the same numbers; None where an end has no real value."""
    line = cut((gold, answer))
    if line is None:
        return None
    return all(line.holds(gold, at) == line.holds(answer, at) for at in line.places())


def _is_same(value: Any, node: Node, known: tuple[Any, Node]) -> bool:
    if value == known[0]:
        return True
    return values.equal(known[1], node) is True


def _ends(part: RealSet, into: list[Node]) -> None:
    if part.kind == "interval":
        into += [end for end in part.parts[:2] if not is_infinite(end)]
    else:
        for inner in part.parts:
            _ends(inner, into)


def _holds(part: RealSet, at: float, place: Callable[[Node], int]) -> bool:
    if part.kind == "all":
        return True
    if part.kind == "interval":
        low, high, no_low, no_high = part.parts
        start = -1 if is_infinite(low) else place(low)
        end = float("inf") if is_infinite(high) else place(high)
        if low == INFINITY or high == Node("neg", (INFINITY,)):
            return False
        after = at > start if no_low else at >= start
        return after and (at < end if no_high else at <= end)
    holds = [_holds(inner, at, place) for inner in part.parts]
    if part.kind == "union":
        return any(holds)
    return holds[0] and holds[1] if part.kind == "intersection" else holds[0] and not holds[1]
