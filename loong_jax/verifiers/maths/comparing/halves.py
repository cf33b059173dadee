"""Curves as their two halves: y = +-sqrt(1 - x^2) is all of x^2 + y^2 = 1."""

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.expression import ZERO, Node, difference, number, substitute, symbols
from loong_jax.verifiers.maths.forms import signs


def solves(curve: Node, halves: Node) -> bool:
    """Whether an equation quadratic in a name has as its solutions both values of the other.

    The coefficient of the square has to be a number: x y^2 = x has the line x = 0 besides.
    """
    if curve.args[0] != ("=",) or halves.args[0] != ("=",) or halves.args[1].head != "symbol":
        return False
    name = halves.args[1].args[0]
    roots = signs.spread(halves.args[2])
    if len(roots) != 2 or name in symbols(halves.args[2]) or name not in symbols(curve):
        return False
    if len(symbols(curve)) < 2 or values.equal(*roots) is not False:
        return False
    gap = difference(curve.args[1], curve.args[2])
    at = [substitute(gap, name, number(y)) for y in range(4)]
    third, second = _weighted(at, (1, -3, 3, -1)), _weighted(at, (1, -2, 1))
    if not values.equal(third, ZERO) or values.equal(second, ZERO) is not False:
        return False
    if symbols(second) and not values.is_fixed(second):
        return False
    return all(values.equal(substitute(gap, name, root), ZERO) for root in roots)


def _weighted(terms: list[Node], weights: tuple[int, ...]) -> Node:
    pairs = zip(weights, terms, strict=False)
    return Node("add", tuple(Node("mul", (number(weight), term)) for weight, term in pairs))
