"""Arbitrary constants: those of integration, and those of the solutions of differential equations.

C, c, K and C_1 are arbitrary where a variable stands beside them. Another letter, such as A, may be
their name in the other text, but two such letters are given quantities and stay what they are.
"""

import itertools
import re
from collections.abc import Iterator

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.expression import Node, symbols, with_names

MAX_CONSTANTS = 3
_ARBITRARY = re.compile(r"[CcKk]_?\d|[CcK]")
_OTHER_NAMES = re.compile(r"[ABDEMNabdk](?:_?\d)?|alpha|beta|lambda")
_VARIABLES = frozenset(("x", "t", "y", "z", "s", "u", "theta", "n"))


def renamed(gold: Node, answer: Node) -> Iterator[Node]:
    """The answer with its constants under the names that the gold has, in every order."""
    own, given = symbols(gold), symbols(answer)
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
    if own is None or given is None or symbols(own) != symbols(given) or not symbols(own):
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
    is_line = len(symbols(rest)) > 1  # c of a x^2 + b x + c is given, and of x^2 + c + 1
    is_given = name.islower() and (is_line or any(not symbols(term) for term in rest.args))
    return None if name in symbols(rest) or is_given else rest
