"""The real line, cut where sets of numbers end, and sets compared on it.

Two sets are compared without building either: all their ends, in order, cut the line into points
and gaps, and on each of those both sets hold or do not.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import real_sets
from loong_jax.verifiers.maths.comparing.real_sets import RealSet
from loong_jax.verifiers.maths.expression import INFINITY, Node

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
    """Whether two sets hold the same numbers; None where an end has no real value."""
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
        into += [end for end in part.parts[:2] if not real_sets.is_infinite(end)]
    else:
        for inner in part.parts:
            _ends(inner, into)


def _holds(part: RealSet, at: float, place: Callable[[Node], int]) -> bool:
    if part.kind == "all":
        return True
    if part.kind == "interval":
        low, high, no_low, no_high = part.parts
        start = -1 if real_sets.is_infinite(low) else place(low)
        end = float("inf") if real_sets.is_infinite(high) else place(high)
        if low == INFINITY or high == Node("neg", (INFINITY,)):
            return False
        after = at > start if no_low else at >= start
        return after and (at < end if no_high else at <= end)
    holds = [_holds(inner, at, place) for inner in part.parts]
    if part.kind == "union":
        return any(holds)
    return holds[0] and holds[1] if part.kind == "intersection" else holds[0] and not holds[1]
