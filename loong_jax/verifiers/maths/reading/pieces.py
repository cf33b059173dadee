"""Functions in pieces, read from a cases environment or from sympy's Piecewise."""

from collections.abc import Sequence
from typing import NamedTuple

from loong_jax.verifiers.maths.expression import Node, ParseError
from loong_jax.verifiers.maths.reading.parser import Parser

MAX_BRANCHES = 8
OTHERWISE = Node("text", ("otherwise",))
_BEFORE_CONDITION = frozenset(("if", "for", "when", "where", "provided", "all", "whenever", "as"))
_ELSE = frozenset(("otherwise", "else", "elsewhere"))
_FILLERS = _BEFORE_CONDITION | {"is", "are", "an", "a", ",", ".", ";"}
_ROW_ENDS = ("\\\\", "\\end")


class Branch(NamedTuple):
    value: Node
    condition: Node


def read(parser: Parser) -> Node | None:
    """The rows of a cases environment as branches, up to its end; None where they are no such."""
    if parser.in_pieces:
        return None  # each level that is read twice would double the time
    mark, bars, ratio = parser.mark(), parser.bars, parser.colon_is_ratio
    parser.in_pieces = True
    try:
        branches = [_branch(parser)]
        while parser.accept("\\\\"):
            if not parser.at("\\end"):
                branches.append(_branch(parser))
        if parser.accept("\\end") and 1 < len(branches) <= MAX_BRANCHES:
            return Node("piecewise", tuple(tuple(branch) for branch in branches))
    except ParseError:
        pass
    finally:
        parser.in_pieces = False
    parser.reset(mark)
    parser.bars, parser.colon_is_ratio = bars, ratio
    return None


def _branch(parser: Parser) -> Branch:
    value = parser.nested(parser.union)
    comma = parser.accept(",", ";")
    if not parser.accept("&") and not comma:
        raise ParseError("a branch without condition")
    while parser.accept("&"):
        pass
    condition = _condition(parser)
    while parser.accept(",", ".", ";"):
        pass
    if not parser.at(*_ROW_ENDS):
        raise ParseError("a branch goes on after its condition")
    return Branch(value, condition)


def _condition(parser: Parser) -> Node:
    while _word(parser) in _BEFORE_CONDITION:
        parser.take()
    if _word(parser) in _ELSE:
        parser.take()
        return OTHERWISE
    mark = parser.mark()
    try:
        parts = [parser.nested(parser.relation)]
        joins = set()
        while _word(parser) in ("and", "or"):
            joins.add(parser.take().text)
            parts.append(parser.nested(parser.relation))
        while parser.accept(",", ".", ";"):
            pass
        if parser.at(*_ROW_ENDS) and len(joins) < 2 and all(p.head == "chain" for p in parts):
            return parts[0] if not joins else Node(joins.pop(), tuple(parts))
    except ParseError:
        pass
    parser.reset(mark)
    return _in_words(parser)


def _in_words(parser: Parser) -> Node:
    """A condition such as "n is even", as its words."""
    said: list[str] = []
    while not parser.at(*_ROW_ENDS) and parser.token.kind != "end":
        text = parser.take().text.lower()
        if text not in _FILLERS:
            said.append(text)
    if not any(len(word) > 2 and word.isalpha() for word in said):
        raise ParseError("no condition stands beside a value")
    return Node("text", (" ".join(said),))


def _word(parser: Parser) -> str:
    return parser.token.text.lower() if parser.token.kind in ("word", "text") else ""


def of_pairs(arguments: Sequence[Node]) -> Node:
    """Piecewise((x, x > 0), (0, True)) of sympy."""
    branches = []
    for pair in arguments:
        if pair.head != "tuple" or len(pair.args) != 2:
            raise ParseError("a branch is a value and a condition")
        value, condition = pair.args
        is_rest = condition.head == "symbol" and condition.args[0] in ("True", "true")
        branches.append((value, OTHERWISE if is_rest else condition))
    if not 1 <= len(branches) <= MAX_BRANCHES:
        raise ParseError(f"more than {MAX_BRANCHES} branches")
    return Node("piecewise", tuple(branches))
