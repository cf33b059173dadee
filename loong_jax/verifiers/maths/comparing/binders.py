"""Names that a definition binds: f(t) = 2t + 1 and a_k = 2k - 1 say what f(x) and a_n are."""

from loong_jax.verifiers.maths.expression import Node, symbol, symbols, with_names
from loong_jax.verifiers.maths.forms import kinds

_INDICES = frozenset("jklmnrst")


def with_names_of(gold: Node, answer: Node) -> Node | None:
    """The answer with its arguments or index named as those of the gold.

    None where that is wrong: f(t) = 2x + 1 has a name of the gold that it does not bind.
    """
    own, given = _bound(gold), _bound(answer)
    if own == given or len(own) != len(given) or not own:
        return answer
    if symbols(answer.args[-1]) & (set(own) - set(given)):
        return None
    left = answer.args[1]
    if left.head == "symbol":  # the name a_k, whose index is a part of it
        left = symbol(left.args[0].partition("_")[0] + "_" + own[0])
    names = dict(zip(given, own, strict=True))
    return Node(
        "chain", (answer.args[0], *(with_names(x, names) for x in (left, *answer.args[2:])))
    )


def applied(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Both with P(x) as the name it is, where it was read as a product on the left of an equation.

    That is so where the other has P(t) there, or where a function in pieces follows.
    """
    left = _product(gold)
    if left is None:
        return gold, answer
    other = _product(answer)
    is_renamed = other is not None and left[0] == other[0] and left != other
    if gold.args[2].head != "piecewise" and not is_renamed:
        return gold, answer
    return _with_name(gold, left), answer if other is None else _with_name(answer, other)


def _product(equation: Node) -> tuple[Node, Node] | None:
    if equation.head != "chain" or equation.args[0] != ("=",):
        return None
    return equation.args[1].args if kinds.is_applied(equation.args[1]) else None


def _with_name(equation: Node, parts: tuple[Node, Node]) -> Node:
    left = Node("apply", (parts[0].args[0], parts[1]))
    return Node("chain", (equation.args[0], left, *equation.args[2:]))


def _bound(equation: Node) -> tuple[str, ...]:
    """x of f(x) = ..., n of a_n = ...; nothing where no name is bound."""
    if equation.head != "chain" or equation.args[0] != ("=",):
        return ()
    left = equation.args[1]
    if left.head == "apply":
        arguments = left.args[1:]
        if all(item.head == "symbol" for item in arguments):
            found = tuple(item.args[0] for item in arguments)
            return found if len(set(found)) == len(found) else ()
    if left.head == "symbol":
        index = left.args[0].partition("_")[2]
        return (index,) if index in _INDICES else ()
    return ()
