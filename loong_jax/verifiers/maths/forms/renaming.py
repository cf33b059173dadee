"""An answer in the names of its gold: bounds, indices, constants of integration, i and e."""

from loong_jax.verifiers.maths.expression import UNNAMED, Node, substitute, symbols, walk
from loong_jax.verifiers.maths.forms import kinds


def with_bounds_named(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Both, where one bounds what it does not name and the other has one unknown: that is meant."""
    own, other = symbols(gold), symbols(answer)
    if UNNAMED.args[0] in other and len(own) == 1:
        answer = substitute(answer, UNNAMED.args[0], Node("symbol", tuple(own)))
    elif UNNAMED.args[0] in own and len(other) == 1:
        gold = substitute(gold, UNNAMED.args[0], Node("symbol", tuple(other)))
    return gold, answer


def with_index_of(gold: Node, answer: Node) -> Node:
    """{2 n pi : n in Z} with the index that the gold has."""
    pair = gold, answer
    for node in pair:
        if node.head != "builder":
            return answer
        condition = node.args[1]
        if condition.head != "chain" or condition.args[0] != ("in",):
            return answer
    name, given = (node.args[1].args[1] for node in pair)
    if name.head != "symbol" or given.head != "symbol" or name.args[0] in symbols(answer):
        return answer
    return substitute(answer, given.args[0], name)


def renamed_constant(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """Both with one name for a constant of integration, or for the whole number in pi/4 + k pi."""
    own, other = symbols(gold) - symbols(answer), symbols(answer) - symbols(gold)
    if len(own) != 1 or len(other) != 1:
        return None
    (name,), (given,) = own, other
    is_periodic = name in "kmn" and given in "kmn" and kinds.PI in walk(gold)
    if is_periodic or (name[0] in "CKck" and given[0] in "CKck"):
        return gold, substitute(answer, given, Node("symbol", (name,)))
    return None


_ALIASES = {"I": "i", "j": "i", "E": "e"}  # as Python and engineers write them


def with_constants(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """Both with I, j and E as the constants they may be; not where both have such a variable."""
    shared = symbols(gold) & symbols(answer)
    pair = [gold, answer]
    for name, meant in _ALIASES.items():
        if name not in shared:
            pair = [substitute(node, name, Node("constant", (meant,))) for node in pair]
    return None if pair == [gold, answer] else (pair[0], pair[1])
