"""An answer in the names of its gold: bounds, indices, constants of integration, i and e."""

import itertools
import re
from collections.abc import Iterator

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import kinds
from loong_jax.verifiers.maths.expression import UNNAMED, Node, substitute, symbol, with_names


def with_bounds_named(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Both, where one bounds what it does not name and the other has one unknown: that is meant."""
    own, other = gold.symbols, answer.symbols
    if UNNAMED.args[0] in other and len(own) == 1:
        answer = substitute(answer, UNNAMED.args[0], Node("symbol", tuple(own)))
    elif UNNAMED.args[0] in own and len(other) == 1:
        gold = substitute(gold, UNNAMED.args[0], Node("symbol", tuple(other)))
    return gold, answer


def renamed_constant(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """Both with one name for a constant of integration, or for the whole number in pi/4 + k pi."""
    own, other = gold.symbols - answer.symbols, answer.symbols - gold.symbols
    if len(own) != 1 or len(other) != 1:
        return None
    (name,), (given,) = own, other
    is_periodic = name in "kmn" and given in "kmn" and kinds.PI in gold.walk()
    if is_periodic or (name[0] in "CKck" and given[0] in "CKck"):
        return gold, substitute(answer, given, Node("symbol", (name,)))
    return None


_ALIASES = {"I": "i", "j": "i", "E": "e"}  # as Python and engineers write them


def with_constants(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """Both with I, j and E as the constants they may be; not where both have such a variable."""
    once = (gold.symbols ^ answer.symbols) & _ALIASES.keys()
    for name in once:
        meant = Node("constant", (_ALIASES[name],))
        gold, answer = (substitute(node, name, meant) for node in (gold, answer))
    return (gold, answer) if once else None


_INDICES = frozenset("jklmnrst")


def with_names_of(gold: Node, answer: Node) -> Node | None:
    """The answer with its arguments or index named as those of the gold.

    None where that is wrong: f(t) = 2x + 1 has a name of the gold that it does not bind.
    """
    own, given = _bound(gold), _bound(answer)
    if own == given or len(own) != len(given) or not own:
        return answer
    if answer.args[-1].symbols & (set(own) - set(given)):
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


MAX_CONSTANTS = 3
_ARBITRARY = re.compile(r"[CcKk]_?\d|[CcK]")
_OTHER_NAMES = re.compile(r"[ABDEMNabdk](?:_?\d)?|alpha|beta|lambda")
_VARIABLES = frozenset(("x", "t", "y", "z", "s", "u", "theta", "n"))


def renamed(gold: Node, answer: Node) -> Iterator[Node]:
    """The answer with its constants under the names that the gold has, in every order."""
    own, given = gold.symbols, answer.symbols
    if not any(map(_is_arbitrary, own | given)):
        return
    constants = sorted(name for name in own if _may_be_constant(name))
    others = sorted(name for name in given if _may_be_constant(name))
    fixed = {name for name in {*constants} & {*others} if not _is_arbitrary(name)}
    constants = [name for name in constants if name not in fixed]
    others = [name for name in others if name not in fixed]
    if not 0 < len(constants) == len(others) <= MAX_CONSTANTS:
        return
    if own - set(constants) != given - set(others) or not own - set(constants) & _VARIABLES:
        return
    if not (all(map(_is_arbitrary, constants)) or all(map(_is_arbitrary, others))):
        return
    if _is_defined(gold, constants) or _is_defined(answer, others):
        return  # C = 2 pi r
    for order in itertools.permutations(constants):
        if list(order) != others:
            yield with_names(answer, dict(zip(others, order, strict=True)))


def _is_arbitrary(name: str) -> bool:
    return _ARBITRARY.fullmatch(name) is not None


def _may_be_constant(name: str) -> bool:
    return _is_arbitrary(name) or _OTHER_NAMES.fullmatch(name) is not None


def _is_defined(node: Node, constants: list[str]) -> bool:
    """Whether one of them is what an equation says the value of."""
    return (
        node.head == "chain" and node.args[1].head == "symbol" and node.args[1].args[0] in constants
    )


def absorbed(gold: Node, answer: Node) -> bool:
    """Whether both end on a free constant and differ by a constant besides: ln|x| and ln|2x|."""
    own, given = _without_constant(gold), _without_constant(answer)
    if own is None or given is None or own.symbols != given.symbols or not own.symbols:
        return False
    return values.is_fixed(Node("add", (own, Node("neg", (given,)))))


def _without_constant(node: Node) -> Node | None:
    """The terms of a sum but its arbitrary constant, which has to stand there alone and once."""
    if node.head != "add":
        return None
    free = [term for term in node.args if term.head == "symbol" and _is_arbitrary(term.args[0])]
    if len(free) != 1:
        return None
    rest = Node("add", tuple(term for term in node.args if term != free[0]))
    (name,) = free[0].args
    is_line = len(rest.symbols) > 1  # c of a x^2 + b x + c is given, and of x^2 + c + 1
    is_given = name.islower() and (is_line or any(not term.symbols for term in rest.args))
    return None if name in rest.symbols or is_given else rest
