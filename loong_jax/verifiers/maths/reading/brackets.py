"""Brackets of the grammar: tuples, intervals, sets, bars, matrices, functions in pieces."""

from collections.abc import Sequence
from typing import NamedTuple

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import EMPTY, Node, ParseError, call, number
from loong_jax.verifiers.maths.reading.parser import Parser


def raw_argument(parser: Parser) -> str:
    """The letters and digits of an argument, as a name."""
    if not parser.accept("{"):
        return parser.take().text.lstrip("\\")
    parts, depth = [], 0
    while parser.token.kind != "end":
        if parser.at("}") and not depth:
            parser.take()
            return "".join(parts)
        depth += parser.at("{") - parser.at("}")
        parts.append(parser.take().text.lstrip("\\"))
    raise ParseError("a brace is not closed")


def parenthesised(parser: Parser) -> Node:
    saved, parser.bars = parser.bars, 0
    node = parser.nested(parser.items)
    parser.bars = saved
    closing = parser.expect(")", "]", "[")
    if node.head == "list":
        if closing in "][" and len(node.args) == 2:
            return Node("interval", (*node.args, True, closing == "["))
        return Node("tuple", node.args)
    if closing != ")":
        raise ParseError("brackets do not match")
    return node


def square(parser: Parser, opening: str) -> Node:
    saved, parser.bars = parser.bars, 0
    node = parser.nested(parser.items)
    parser.bars = saved
    closing = parser.expect("]", ")", "[")
    items = node.args if node.head in ("list", "and", "or") else (node,)
    if opening == "]" or closing != "]":
        if len(items) != 2:
            raise ParseError("an interval has two ends")
        return Node("interval", (*items, opening == "]", closing in ")["))
    if len(items) == 1 and node.head == "matrix":
        return node
    return Node("bracket", items)


def braced_set(parser: Parser, closing: tuple[str, ...]) -> Node:
    if parser.accept(*closing):
        return EMPTY
    (bars, parser.bars), (ratio, parser.colon_is_ratio) = (
        (parser.bars, 1),
        (parser.colon_is_ratio, False),
    )
    node = parser.nested(parser.items)
    if parser.accept(":", "\\mid", "|", "\\colon", "\\vert"):
        if node.head == "list" or (
            node.head in ("number", "symbol") and _is_dictionary(parser, closing)
        ):
            node = _dictionary(parser, node)
        else:
            node = Node("builder", (node, parser.nested(parser.items)))
    elif node.head in ("list", "and", "or"):
        node = Node("set", node.args)
    else:
        node = Node("set", (node,))
    parser.bars, parser.colon_is_ratio = bars, ratio
    parser.expect(*closing)
    return node


def _is_dictionary(parser: Parser, closing: tuple[str, ...]) -> bool:
    """After the first colon: {x: 1, y: 2} has a value and then a comma or the end."""
    mark = parser.mark()
    try:
        value = parser.nested(parser.relation)
        return value.head != "chain" and parser.at(",", *closing)
    finally:
        parser.reset(mark)


def _dictionary(parser: Parser, first: Node) -> Node:
    if first.head == "list":
        raise ParseError("a list stands before a colon")
    pairs = [Node("chain", (("=",), first, parser.nested(parser.relation)))]
    while parser.accept(","):
        key = parser.nested(parser.union)
        parser.expect(":")
        pairs.append(Node("chain", (("=",), key, parser.nested(parser.relation))))
    return Node("set", tuple(pairs))


def bars(parser: Parser, closing: str, name: str) -> Node:
    parser.bars += 1
    node = parser.nested(parser.sum)
    parser.bars -= 1
    parser.expect(closing)
    return call(name, node)


def environment(parser: Parser) -> Node:
    name = raw_argument(parser)
    if name in names.MATRIX_ENVIRONMENTS:
        if name == "array" and parser.at("{"):
            raw_argument(parser)
        rows = _rows(parser)
        if raw_argument(parser) != name:
            raise ParseError(f"\\begin{{{name}}} ends as something else")
        if name == "vmatrix":
            return _determinant(rows)
        if len({len(row) for row in rows}) != 1:
            raise ParseError("the rows of the matrix have different lengths")
        return Node("matrix", rows)
    if name in names.LIST_ENVIRONMENTS:
        node = rows_in_pieces(parser) if "cases" in name else None
        if node is not None:
            if raw_argument(parser) != name:
                raise ParseError(f"\\begin{{{name}}} ends as something else")
            return node
        items = [item for row in _rows(parser) for item in row]
        if raw_argument(parser) != name:
            raise ParseError(f"\\begin{{{name}}} ends as something else")
        return items[0] if len(items) == 1 else Node("and", tuple(items))
    raise ParseError(f"{name[:20]} is no environment we know")


def _determinant(rows: tuple[tuple[Node, ...], ...]) -> Node:
    """The expansion along the first row."""
    if len(rows) > 4 or any(len(row) != len(rows) for row in rows):
        raise ParseError("no determinant of this size is read")
    if len(rows) == 1:
        return rows[0][0]
    terms: list[Node] = []
    for column, entry in enumerate(next(iter(rows), ())):
        minor = tuple(row[:column] + row[column + 1 :] for row in rows[1:])
        sign = number(-1 if column % 2 else 1)
        terms.append(Node("mul", (sign, entry, _determinant(minor))))
    return Node("add", tuple(terms))


def _rows(parser: Parser) -> tuple[tuple[Node, ...], ...]:
    rows: list[tuple[Node, ...]] = []
    row: list[Node] = []
    while True:
        if parser.accept("\\end"):
            break
        if parser.accept("\\\\"):
            if row:
                rows.append(tuple(row))
            row = []
        elif parser.accept("&"):
            continue
        else:
            row.append(parser.nested(parser.relation))
            parser.accept(",", ".")
            if not parser.at("&", "\\\\", "\\end"):
                raise ParseError(f"{parser.token.text!r} stands in a matrix")
    if row:
        rows.append(tuple(row))
    if not rows:
        raise ParseError("an empty matrix")
    return tuple(rows)


MAX_BRANCHES = 8
OTHERWISE = Node("text", ("otherwise",))
_BEFORE_CONDITION = frozenset(("if", "for", "when", "where", "provided", "all", "whenever", "as"))
_ELSE = frozenset(("otherwise", "else", "elsewhere"))
_FILLERS = _BEFORE_CONDITION | {"is", "are", "an", "a", ",", ".", ";"}
_ROW_ENDS = ("\\\\", "\\end")


class Branch(NamedTuple):
    value: Node
    condition: Node


def rows_in_pieces(parser: Parser) -> Node | None:
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
