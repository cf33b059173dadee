"""Expressions as one numerator over one denominator."""

from loong_jax.verifiers.maths.expression import ONE, Node, number, symbols


def numerator(node: Node) -> Node:
    """The expression times its denominators; itself where no unknown stands in one."""
    above, below = fraction(node)
    return above if symbols(below) else node


def fraction(node: Node) -> tuple[Node, Node]:
    head, args = node
    if head == "neg":
        above, below = fraction(args[0])
        return Node("neg", (above,)), below
    if head == "div":
        (a, b), (c, d) = fraction(args[0]), fraction(args[1])
        return product(a, d), product(b, c)
    if head == "mul":
        parts = [fraction(arg) for arg in args]
        return product(*(p[0] for p in parts)), product(*(p[1] for p in parts))
    if head == "add":
        above, below = fraction(args[0])
        for arg in args[1:]:
            a, b = fraction(arg)
            if b == below:
                above = Node("add", (above, a))
            else:
                above = Node("add", (product(above, b), product(a, below)))
                below = product(below, b)
        return above, below
    if head == "pow" and args[1].head == "number" and isinstance(args[1].args[0], int):
        above, below = fraction(args[0])
        if args[1].args[0] < 0:
            above, below = below, above
        exponent = number(abs(args[1].args[0]))
        return tuple(p if p == ONE else Node("pow", (p, exponent)) for p in (above, below))  # type: ignore[return-value]
    return node, ONE


def product(*factors: Node) -> Node:
    kept = [factor for factor in factors if factor != ONE]
    if not kept:
        return ONE
    return kept[0] if len(kept) == 1 else Node("mul", tuple(kept))
