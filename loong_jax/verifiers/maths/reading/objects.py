"""Python and sympy notation: `Interval.open(0, 1)`, `Matrix([[1, 2]])`, `Rational(1, 3)`.

The names are looked up here and stand for expressions; nothing of that name is ever called.
"""

import functools

from loong_jax.verifiers.maths.expression import (
    EMPTY,
    REALS,
    Node,
    ParseError,
    call,
    number,
    symbol,
)
from loong_jax.verifiers.maths.reading import brackets
from loong_jax.verifiers.maths.reading.parser import Parser

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
    arguments = _arguments(parser)
    if name == "Interval":
        interval = _interval(arguments, attribute)
        return interval
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
        return brackets.of_pairs(arguments)
    raise ParseError(f"{name} is nothing we know")


def _arguments(parser: Parser) -> tuple[Node, ...]:
    parser.expect("(")
    if parser.accept(")"):
        return ()
    node = parser.nested(parser.items)
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
