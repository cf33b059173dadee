"""Sums and products with an ellipsis as what they stand for: 1 + 2 + ... + n is a sum over k.

The general term is read off the end that names a parameter and must give two of the terms written
at the other end. With numbers alone, each number in the terms moves by a constant step, or the
terms themselves by a constant factor. What fits in two ways, or in none, is left as it is.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.evaluator import RATIONAL
from loong_jax.verifiers.maths.expression import ZERO, Node, number, rewritten, substitute, symbol

ELLIPSIS = symbol("...")
_INDICES = "kjmiuvw"
_PARAMETERS = "nmkNrpjq"
_BIG = {"add": "sum", "mul": "product"}
_FIRST = range(-1, 5)  # where an index may begin
MIN_TERMS = 2
MAX_STEPS = 5000


def closed(node: Node) -> Node:
    """The expression with each sum and product that has an ellipsis in closed notation."""
    if "..." not in node.symbols:
        return node
    args = tuple(closed(arg) if isinstance(arg, Node) else arg for arg in node.args)
    node = Node(node.head, args)
    if node.head not in ("add", "mul") or ELLIPSIS not in node.args:
        return node
    at = args.index(ELLIPSIS)
    before, after = args[:at], args[at + 1 :]
    if not before or not after or ELLIPSIS in after:
        return node
    parts = node.head, before, after
    found = _with_parameter(*parts)
    found = found or _with_parameter(node.head, after[::-1], before[::-1])
    if found is not None or any(term.symbols for term in (*before, *after)):
        return found or node
    laws = [f for f in (_by_step(*parts), _by_factor(*parts)) if f]
    return laws[0] if len(laws) == 1 else node


def _with_parameter(head: str, first: Sequence[Node], last: Sequence[Node]) -> Node | None:
    """The terms `first` at the fixed end, `last` at the end that names the parameter."""
    end = last[-1]
    names = end.symbols - frozenset().union(*(term.symbols for term in first))
    if len(names) != 1 or not names <= frozenset(_PARAMETERS):
        return None
    (name,) = names
    if len(first) + (head == "mul" and first[0] != number(1)) < MIN_TERMS:
        return None
    starts = [
        start
        for start in _FIRST
        if all(
            values.equal(term, substitute(end, name, number(start + i)))
            for i, term in enumerate(first)
        )
    ]
    if len(starts) != 1:
        return None
    for back, term in enumerate(reversed(last)):
        there = Node("add", (symbol(name), number(-back)))
        if values.equal(term, substitute(end, name, there)) is not True:
            return None
    index = next(letter for letter in _INDICES if letter not in end.symbols)
    body = substitute(end, name, symbol(index))
    return Node(_BIG[head], (index, number(starts[0]), symbol(name), body))


# ---- numbers alone


def _by_step(head: str, first: Sequence[Node], last: Sequence[Node]) -> Node | None:
    """Terms of one shape whose numbers move by constant steps."""
    if len(first) < MIN_TERMS:
        return None
    leaves = [_leaves(term) for term in (*first, *last)]
    if len({_shape(term) for term in (*first, *last)}) != 1:
        return _by_step_from_second(head, first, last)
    counts, steps = set(), []
    for row in zip(*leaves, strict=True):
        step = row[1] - row[0]
        pairs = [*itertools.pairwise(row[: len(first)]), *itertools.pairwise(row[len(first) :])]
        if any(b - a != step for a, b in pairs) or (not step and row[-1] != row[0]):
            return None
        if step:
            counts.add(Fraction(row[-1] - row[0]) / step)
        steps.append(step)
    if len(counts) != 1:
        return None
    (count,) = counts
    if count.denominator != 1 or not len(first) <= count <= MAX_STEPS:
        return None
    body = _moving(first[0], iter(steps))
    return Node(_BIG[head], ("k", number(0), number(int(count)), body))


def _by_step_from_second(head: str, first: Sequence[Node], last: Sequence[Node]) -> Node | None:
    """1/(1*2) + 1/(2*3) + ..., whose first term is read as 1/2: the second and the last tell."""
    if len(last) > 1 or len(first) != MIN_TERMS or _shape(first[1]) != _shape(last[0]):
        return None
    gaps = [b - a for a, b in zip(_leaves(first[1]), _leaves(last[0]), strict=True)]
    if not any(gaps) or not all(isinstance(gap, int) for gap in gaps):
        return None
    count = math.gcd(*map(int, gaps))
    body = _moving(first[1], iter([int(gap) // count for gap in gaps]))
    before = substitute(body, "k", number(-1))
    if count > MAX_STEPS or values.equal(first[0], before) is not True:
        return None
    return Node(_BIG[head], ("k", number(-1), number(count), body))


def _by_factor(head: str, first: Sequence[Node], last: Sequence[Node]) -> Node | None:
    found = [values.real_value(term) for term in (*first, *last)]
    row, ahead = [Fraction(x) for x in found if isinstance(x, RATIONAL) and x], len(first)
    if ahead < MIN_TERMS or len(row) < len(found) or abs(ratio := row[1] / row[0]) == 1:
        return None
    if any(
        b / a != ratio for part in (row[:ahead], row[ahead:]) for a, b in itertools.pairwise(part)
    ):
        return None
    count, value = ahead - 1, row[ahead - 1]
    while value != row[-1]:
        count, value = count + 1, value * ratio
        if count > 400:
            return None
    body = Node("mul", (number(row[0]), Node("pow", (number(ratio), symbol("k")))))
    return Node(_BIG[head], ("k", number(0), number(count), body))


def _leaves(node: Node) -> list[int | Fraction]:
    if node.head == "number":
        return [node.args[0]]
    return [leaf for arg in node.args if isinstance(arg, Node) for leaf in _leaves(arg)]


def _shape(node: Node) -> Node:
    return rewritten(node, lambda part: ZERO if part.head == "number" else None)


def _moving(node: Node, steps: Iterator[int | Fraction]) -> Node:
    """The first term with each number moved by its step times the index."""

    def moved(part: Node) -> Node | None:
        step = next(steps) if part.head == "number" else 0
        return Node("add", (part, Node("mul", (number(step), symbol("k"))))) if step else None

    return rewritten(node, moved)
