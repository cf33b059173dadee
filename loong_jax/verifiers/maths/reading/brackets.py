"""Brackets of the grammar: tuples, intervals, sets, bars, matrices, pieces; Python notation.

`Interval.open(0, 1)`, `Matrix([[1, 2]])`: names are looked up, nothing of that name is called.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import (
    EMPTY,
    REALS,
    Node,
    ParseError,
    call,
    number,
    symbol,
)
from loong_jax.verifiers.maths.reading import Parser


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
    node = parser.inside()
    closing = parser.expect(")", "]", "[")
    if node.head == "list":
        if closing in "][" and len(node.args) == 2:
            return Node("interval", (*node.args, True, closing == "["))
        return Node("tuple", node.args)
    if closing != ")":
        raise ParseError("brackets do not match")
    return node


def square(parser: Parser, opening: str) -> Node:
    node = parser.inside()
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
        _end(parser, name)
        if name == "vmatrix":
            return _determinant(rows)
        if len({len(row) for row in rows}) != 1:
            raise ParseError("the rows of the matrix have different lengths")
        return Node("matrix", rows)
    if name in names.LIST_ENVIRONMENTS:
        node = rows_in_pieces(parser) if "cases" in name else None
        if node is not None:
            _end(parser, name)
            return node
        items = [item for row in _rows(parser) for item in row]
        _end(parser, name)
        return items[0] if len(items) == 1 else Node("and", tuple(items))
    raise ParseError(f"{name[:20]} is no environment we know")


def _end(parser: Parser, name: str) -> None:
    if raw_argument(parser) != name:
        raise ParseError(f"\\begin{{{name}}} ends as something else")


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


_RELATIONS = {"Eq": "=", "Ne": "!=", "Lt": "<", "Le": "<=", "Gt": ">", "Ge": ">=",
              "StrictLessThan": "<", "LessThan": "<=", "GreaterThan": ">=",
              "StrictGreaterThan": ">", "Equality": "=", "Unequality": "!="}  # fmt: skip
_OPEN = {"open": (True, True), "Lopen": (True, False), "Ropen": (False, True)}
_SETS = {"Union": "union", "Intersection": "intersection", "Complement": "setminus"}
_CONSTANT_SETS = {"EmptySet": EMPTY, "Reals": REALS}
_COLLECTIONS = {
    "list": "bracket", **dict.fromkeys(("FiniteSet", "set", "frozenset", "Set"), "set"),
    **dict.fromkeys(("Tuple", "Point", "Point2D", "Point3D", "tuple"), "tuple"),
}  # fmt: skip
_MATRICES = ("Matrix", "ImmutableMatrix", "MutableDenseMatrix", "array")

OBJECTS = frozenset(("Interval", "S", "Symbol", "Poly", "Piecewise", "And", "Or", *_RELATIONS,
                     *_SETS, *_CONSTANT_SETS, *_COLLECTIONS, *_MATRICES))  # fmt: skip


def build(parser: Parser, name: str) -> Node:
    if name in _CONSTANT_SETS:
        if parser.accept("("):
            parser.expect(")")
        return _CONSTANT_SETS[name]
    attribute = parser.take().text if parser.accept(".") else None
    if name == "S" and attribute in _CONSTANT_SETS:
        return _CONSTANT_SETS[attribute]
    if name == "S":
        raise ParseError(f"S.{attribute} is no set we know")
    arguments = arguments_of(parser)
    if name == "Interval":
        return _interval(arguments, attribute)
    if attribute is not None:
        raise ParseError(f"{name}.{attribute} is nothing we know")
    if name in _SETS and arguments:
        return functools.reduce(lambda one, other: Node(_SETS[name], (one, other)), arguments)
    if name in _RELATIONS and len(arguments) == 2:
        return Node("chain", ((_RELATIONS[name],), *arguments))
    if name in ("And", "Or"):
        return arguments[0] if len(arguments) == 1 else Node(name.lower(), arguments)
    if name in _MATRICES:
        return _matrix(arguments)
    if name in _COLLECTIONS:
        return Node(_COLLECTIONS[name], _unpacked(arguments))
    if name == "Piecewise":
        return of_pairs(arguments)
    raise ParseError(f"{name} is nothing we know")


def arguments_of(parser: Parser) -> tuple[Node, ...]:
    parser.expect("(")
    if parser.accept(")"):
        return ()
    node = parser.inside()
    parser.expect(")")
    return node.args if node.head == "list" else (node,)


def _unpacked(arguments: tuple[Node, ...]) -> tuple[Node, ...]:
    if len(arguments) == 1 and arguments[0].head in ("bracket", "tuple", "list", "set"):
        return arguments[0].args
    return arguments


def _interval(arguments: tuple[Node, ...], attribute: str | None) -> Node:
    if attribute is not None:
        if attribute not in _OPEN or len(arguments) != 2:
            raise ParseError(f"Interval.{attribute} is nothing we know")
        return Node("interval", (*arguments, *_OPEN[attribute]))
    if not 2 <= len(arguments) <= 4:
        raise ParseError("an interval has two ends")
    flags = [_flag(argument) for argument in arguments[2:]] + [False, False]
    return Node("interval", (*arguments[:2], flags[0], flags[1]))


def _flag(node: Node) -> bool:
    if node.head != "chain":
        return node == symbol("True")
    return node.args[2] == symbol("True")


def _matrix(arguments: tuple[Node, ...]) -> Node:
    rows = _unpacked(arguments[:1])
    is_nested = all(row.head in ("bracket", "tuple") for row in rows)
    matrix = tuple(row.args if is_nested else (row,) for row in rows)
    if not matrix or not matrix[0] or len({len(row) for row in matrix}) != 1:
        raise ParseError("the rows of the matrix have different lengths")
    return Node("matrix", matrix)


def simple_call(name: str, arguments: tuple[Node, ...]) -> Node:
    """A call with its sugar removed, so that equal things look equal."""
    if name == "same":
        return arguments[0]
    if name == "ratio_of":
        below = arguments[1] if len(arguments) == 2 else number(1)
        return Node("div", (arguments[0], below))
    if name == "power" and len(arguments) == 2:
        return Node("pow", arguments)
    if name in ("times", "plus"):
        return Node("mul" if name == "times" else "add", arguments)
    if name == "exp" and len(arguments) == 1:
        return Node("pow", (Node("constant", ("e",)), arguments[0]))
    if name in ("log10", "log2") and len(arguments) == 1:
        return call("log", arguments[0], number(10 if name == "log10" else 2))
    if name == "cbrt" and len(arguments) == 1:
        return call("root", arguments[0], number(3))
    return call(name, *arguments)
