"""Brackets of the grammar: tuples, intervals, sets, bars, matrices, pieces; Python notation.

`Interval.open(0, 1)`, `Matrix([[1, 2]])`: names are looked up, nothing of that name is called.
"""

import functools
import itertools
from typing import NamedTuple

from loong_jax.verifiers.maths import expression as tree
from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import Node, ParseError
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


def parenthesised(parser: Parser, text: str) -> Node:
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
    items = node.args if node.head in tree.BARE_LISTS else (node,)
    if opening == "]" or closing != "]":
        if len(items) != 2:
            raise ParseError("an interval has two ends")
        return Node("interval", (*items, opening == "]", closing in ")["))
    if len(items) == 1 and node.head == "matrix":
        return node
    return Node("bracket", items)


def braced_set(parser: Parser, *closing: str) -> Node:
    if parser.accept(*closing):
        return tree.EMPTY
    saved = parser.bars, parser.colon_is_ratio
    parser.bars, parser.colon_is_ratio = 1, False
    node = parser.nested(parser.items)
    if parser.accept(":", "\\mid", "|", "\\colon", "\\vert"):
        if node.head == "list":
            raise ParseError("a list stands before a colon")
        is_key = node.head in ("number", "symbol")
        pairs = _dictionary(parser, node, closing) if is_key else None
        node = pairs or Node("builder", (node, parser.nested(parser.items)))
    else:
        node = Node("set", node.args if node.head in tree.BARE_LISTS else (node,))
    parser.bars, parser.colon_is_ratio = saved
    parser.expect(*closing)
    return node


def _dictionary(parser: Parser, key: Node, closing: tuple[str, ...]) -> Node | None:
    """{x: 1, y: 2} after its first colon; None if not a value, then a comma or the end, follows."""
    mark = parser.position
    value = parser.nested(parser.relation)
    if value.head == "chain" or not parser.at(",", *closing):
        parser.position = mark
        return None
    pairs = [Node("chain", (("=",), key, value))]
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
    return tree.call(name, node)


def environment(parser: Parser, text: str) -> Node:
    name = raw_argument(parser)
    if name not in names.MATRIX_ENVIRONMENTS | names.LIST_ENVIRONMENTS:
        raise ParseError(f"{name[:20]} is no environment we know")
    if name == "array" and parser.at("{"):
        raw_argument(parser)
    pieces = parser.attempt(lambda: _pieces(parser)) if "cases" in name else None
    rows = ((pieces,),) if pieces else _rows(parser)
    if raw_argument(parser) != name:
        raise ParseError(f"\\begin{{{name}}} ends as something else")
    if name in names.MATRIX_ENVIRONMENTS:
        return _determinant(rows) if name == "vmatrix" else _matrix(rows)
    items = tuple(itertools.chain(*rows))
    return items[0] if len(items) == 1 else Node("and", items)


def _matrix(rows: tuple[tuple[Node, ...], ...]) -> Node:
    if not rows or not rows[0] or len({len(row) for row in rows}) != 1:
        raise ParseError("the rows of the matrix have different lengths")
    return Node("matrix", rows)


def _determinant(rows: tuple[tuple[Node, ...], ...]) -> Node:
    """The expansion along the first row."""
    size = len(rows)
    if size > 4 or any(len(row) != size for row in rows):
        raise ParseError("no determinant of this size is read")
    first, *others = rows
    if not others:
        return first[0]
    minors = (tuple(row[:i] + row[i + 1 :] for row in others) for i in range(len(first)))
    terms = (
        Node("mul", (tree.number((-1) ** i), entry, _determinant(minor)))
        for i, (entry, minor) in enumerate(zip(first, minors, strict=True))
    )
    return Node("add", tuple(terms))


def _rows(parser: Parser) -> tuple[tuple[Node, ...], ...]:
    rows: list[tuple[Node, ...]] = []
    row: list[Node] = []
    while not parser.accept("\\end"):
        if parser.accept("\\\\"):
            rows.append(tuple(row))
            row = []
        elif not parser.accept("&"):
            row.append(parser.nested(parser.relation))
            parser.accept(",", ".")
            if not parser.at("&", "\\\\", "\\end"):
                raise ParseError(f"{parser.token.text!r} stands in a matrix")
    found = tuple(row for row in (*rows, tuple(row)) if row)
    if not found:
        raise ParseError("an empty matrix")
    return found


MAX_BRANCHES = 8
OTHERWISE = Node("text", ("otherwise",))
_BEFORE_CONDITION = frozenset(("if", "for", "when", "where", "provided", "all", "whenever", "as"))
_FILLERS = _BEFORE_CONDITION | {"is", "are", "an", "a", ",", ".", ";"}
_ROW_ENDS = ("\\\\", "\\end")


class Branch(NamedTuple):
    value: Node
    condition: Node


def _pieces(parser: Parser) -> Node | None:
    """The rows of a cases environment as branches, up to its end; None where they are no such."""
    branches = [_branch(parser)]
    while parser.accept("\\\\"):
        if not parser.at("\\end"):
            branches.append(_branch(parser))
    is_one = parser.accept("\\end") and 1 < len(branches) <= MAX_BRANCHES
    return Node("piecewise", tuple(branches)) if is_one else None


def _branch(parser: Parser) -> tuple[Node, Node]:
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
    return value, condition


def _condition(parser: Parser) -> Node:
    """A relation, several of them, or words such as "n is even"."""
    while parser.token.word in _BEFORE_CONDITION:
        parser.take()
    if parser.token.word in ("otherwise", "else", "elsewhere"):
        parser.take()
        return OTHERWISE
    if (formal := parser.attempt(lambda: _relations(parser))) is not None:
        return formal
    said: list[str] = []
    while not parser.at(*_ROW_ENDS) and parser.token.kind != "end":
        said.append(parser.take().text.lower())
    said = [word for word in said if word not in _FILLERS]
    if not any(len(word) > 2 and word.isalpha() for word in said):
        raise ParseError("no condition stands beside a value")
    return Node("text", (" ".join(said),))


def _relations(parser: Parser) -> Node | None:
    parts, joins = [parser.nested(parser.relation)], set()
    while parser.token.word in ("and", "or"):
        joins.add(parser.take().text)
        parts.append(parser.nested(parser.relation))
    while parser.accept(",", ".", ";"):
        pass
    if not parser.at(*_ROW_ENDS) or len(joins) > 1 or any(p.head != "chain" for p in parts):
        return None
    return Node(joins.pop(), tuple(parts)) if joins else parts[0]


_RELATIONS = {"Eq": "=", "Ne": "!=", "Lt": "<", "Le": "<=", "Gt": ">", "Ge": ">=",
              "StrictLessThan": "<", "LessThan": "<=", "GreaterThan": ">=",
              "StrictGreaterThan": ">", "Equality": "=", "Unequality": "!="}  # fmt: skip
_OPEN = {"open": (True, True), "Lopen": (True, False), "Ropen": (False, True)}
_SETS = {"Union": "union", "Intersection": "intersection", "Complement": "setminus"}
_CONSTANT_SETS = {"EmptySet": tree.EMPTY, "Reals": tree.REALS}
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
    if name == "S":
        if attribute not in _CONSTANT_SETS:
            raise ParseError(f"S.{attribute} is no set we know")
        return _CONSTANT_SETS[attribute]
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
        rows = _unpacked(arguments[:1])
        is_nested = all(row.head in ("bracket", "tuple") for row in rows)
        return _matrix(tuple(row.args if is_nested else (row,) for row in rows))
    if name in _COLLECTIONS:
        return Node(_COLLECTIONS[name], _unpacked(arguments))
    if name == "Piecewise":
        if any(pair.head != "tuple" or len(pair.args) != 2 for pair in arguments):
            raise ParseError("a branch is a value and a condition")
        if not 1 <= len(arguments) <= MAX_BRANCHES:
            raise ParseError(f"more than {MAX_BRANCHES} branches")
        rest = tree.symbol("True"), tree.symbol("true")
        pairs = ((value, OTHERWISE if when in rest else when) for _, (value, when) in arguments)
        return Node("piecewise", tuple(pairs))
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
    if attribute in _OPEN and len(arguments) == 2:
        return Node("interval", (*arguments, *_OPEN[attribute]))
    if attribute is not None:
        raise ParseError(f"Interval.{attribute} is nothing we know")
    if not 2 <= len(arguments) <= 4:
        raise ParseError("an interval has two ends")
    flags = ((node.args[2] if node.head == "chain" else node) for node in arguments[2:])
    left_out = *(flag == tree.symbol("True") for flag in flags), False, False
    return Node("interval", (*arguments[:2], *left_out[:2]))


def simple_call(name: str, arguments: tuple[Node, ...]) -> Node:
    """A call with its sugar removed, so that equal things look equal."""
    match name, arguments:
        case "same", (first, *_):
            return first
        case "ratio_of", (above, *below):
            return Node("div", (above, below[0] if len(below) == 1 else tree.number(1)))
        case "power", (_, _):
            return Node("pow", arguments)
        case (("times" | "plus"), _):
            return Node("mul" if name == "times" else "add", arguments)
        case "exp", (power,):
            return Node("pow", (tree.constant("e"), power))
        case (("log10" | "log2"), (power,)):
            return tree.call("log", power, tree.number(int(name[3:])))
        case "cbrt", (power,):
            return tree.call("root", power, tree.number(3))
    return tree.call(name, *arguments)
