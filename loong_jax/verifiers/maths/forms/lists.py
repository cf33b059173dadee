"""Lists: their items, what a sign of plus-minus spreads into, and what repeats."""

from collections.abc import Sequence
from typing import Any

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.expression import BARE_LISTS, COLLECTIONS, Node, negate
from loong_jax.verifiers.maths.forms import kinds, naming

ELLIPSIS = Node("symbol", ("...",))


def in_turns(items: Sequence[Node]) -> tuple[list[str], list[tuple[Node, ...]]] | None:
    """Names, and a row of values each time they come, of x = 1, y = 2, x = 3, y = 4."""
    names = [name for item in items if (name := naming.left_side(item)) is not None]
    size = len(set(names))
    if len(names) < len(items) or size < 2 or len(names) == size or len(names) % size:
        return None
    rows = []
    for i in range(0, len(names), size):
        row = dict(zip(names[i : i + size], items[i : i + size], strict=True))
        if len(row) < size:
            return None
        rows.append(tuple(naming.right_side(row[name]) for name in names[:size]))
    return names[:size], rows


def grouped(gold: Node, answer: Node) -> Node:
    """x = 1, y = 2, x = 3, y = 4 as two points, where the gold has points."""
    found = in_turns(answer.args) if answer.head in BARE_LISTS else None
    golds = [item.unlabelled for item in gold.args]
    if found is None or any(g.head != "tuple" or len(g.args) != len(found[0]) for g in golds):
        return answer
    return Node("list", tuple(Node("tuple", row) for row in found[1]))


def without_restrictions(items: Sequence[Node]) -> Sequence[Node]:
    """An expression without the values that its unknowns may not have: x + 1, x != 1."""
    first, *rest = items
    allowed = first.symbols
    if first.head == "chain" or not rest:
        return items
    for item in (item.unlabelled for item in rest):
        if item.head != "chain" or item.args[0] != ("!=",) or not item.args[1].symbols & allowed:
            return items
    return (first,)


def is_sequence(items: Sequence[Node]) -> bool:
    """Whether a bare list is more than a set: it repeats itself, or goes on."""
    return ELLIPSIS in items or len(distinct(items)) < len(items)


def distinct(items: Sequence[Node]) -> list[Node]:
    return list(dict.fromkeys(items))


def may_be_interval(items: Sequence[Node]) -> bool:
    ends = [values.real_value(item) for item in items]
    return len(ends) == 2 and None not in ends and values.gap(*ends) < 0


def without_repeats(items: list[Node]) -> list[Node]:
    """Without repeated values, among few."""
    if len(items) > 12:
        return items
    kept: list[Node] = []
    for item in items:
        if not any(
            kinds.is_value(item) and kinds.is_value(k) and values.equal(k, item) for k in kept
        ):
            kept.append(item)
    return kept


def flat(node: Node) -> tuple[Node, ...]:
    """Items with a plus-minus spread out; (x, y) = (1, 2) inside a list stays one item."""
    items: list[Node] = []
    for item in node.args:
        items += spread(item)
    return tuple(items)


def spread(node: Node) -> tuple[Node, ...]:
    """Both values of an expression with plus-minus: all upper signs, then all lower ones."""
    if node.head in (*COLLECTIONS, "matrix") or "pm" not in node.heads:
        return (node,)
    return with_sign(node, 1), with_sign(node, -1)


def with_sign(item: Any, sign: int) -> Any:
    if type(item) is tuple:
        return tuple(with_sign(part, sign) for part in item)
    if not isinstance(item, Node):
        return item
    args = tuple(with_sign(arg, sign) for arg in item.args)
    if item.head != "pm":
        return Node(item.head, args)
    last = args[-1] if sign > 0 else negate(args[-1])
    return last if len(args) == 1 else Node("add", (args[0], last))
