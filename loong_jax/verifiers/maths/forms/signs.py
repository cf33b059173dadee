"""Plus-minus as the two values it stands for."""

from typing import Any

from loong_jax.verifiers.maths.expression import COLLECTIONS, Node, heads, negate


def flat(node: Node) -> tuple[Node, ...]:
    """Items with a plus-minus spread out; (x, y) = (1, 2) inside a list stays one item."""
    items: list[Node] = []
    for item in node.args:
        items += spread(item)
    return tuple(items)


def spread(node: Node) -> tuple[Node, ...]:
    """Both values of an expression with plus-minus: all upper signs, then all lower ones."""
    if node.head in (*COLLECTIONS, "matrix") or "pm" not in heads(node):
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
