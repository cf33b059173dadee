"""Python literals read as values: containers, numbers, texts, constants.

Nothing here calls anything: the only names are constants, as Python and JSON write them, and the
wrappers in which NumPy prints its values.
"""

import ast
import functools
import re
from typing import Any, NamedTuple

from loong_jax import syntax
from loong_jax.verifiers.code import compare

MAX_CHARS = 100_000
MAX_DEPTH = 12
_LARGEST = 10**400
_SETS = frozenset({"set", "frozenset"})
_WRAPPERS = _SETS | {"array", "dict", "list", "tuple", "OrderedDict"}
_CONSTANTS = {"true": True, "false": False, "null": None, "nan": "nan", "inf": float("inf")}
_OF_NUMPY = re.compile(r"(?:np|numpy)\.(?:u?int|float|bool|str)\d*_?")


class NotALiteral(ValueError):
    """The text is no literal, or one beyond our limits."""


class Unordered(NamedTuple):
    """A set, as the list of its members: they need not be hashable here."""

    members: list[Any]


def read(text: str) -> Any:
    """The value of a literal: dict, list (a tuple too), Unordered, int, float, str, bool, None."""
    if len(text) > MAX_CHARS:
        raise NotALiteral(f"{len(text)} characters are more than {MAX_CHARS}")
    try:
        node = syntax.parse_expression(text.strip())
    except syntax.UNREADABLE as error:
        raise NotALiteral(str(error)) from None
    return _value(node, 0)


def _value(node: ast.expr, depth: int) -> Any:
    inner = depth + 1
    match node if depth <= MAX_DEPTH else None:
        case ast.Constant(value=bool() | str() | None as value):
            return value
        case ast.Constant(value=int() | float() as value) if abs(value) < _LARGEST:
            return value
        case ast.UnaryOp(op=(ast.USub() | ast.UAdd()) as sign, operand=operand):
            value = _value(operand, inner)
            if type(value) in (int, float):
                return -value if isinstance(sign, ast.USub) else value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, inner) for item in items]
        case ast.Set(elts=items):
            return Unordered([_value(item, inner) for item in items])
        case ast.Dict(keys=keys, values=values) if None not in keys:
            pairs = zip(keys, values, strict=True)
            entries = {_key(_value(k, inner)): _value(v, inner) for k, v in pairs if k is not None}
            if len(entries) == len(keys):
                return entries
        case ast.Call(func=function, args=arguments, keywords=[]):
            name = ast.unparse(function)
            last = name.rpartition(".")[2]
            if last in _SETS and not arguments:
                return Unordered([])
            if len(arguments) == 1 and (last in _WRAPPERS or _OF_NUMPY.fullmatch(name)):
                value = _value(arguments[0], inner)
                return Unordered(value) if last in _SETS and isinstance(value, list) else value
    raise NotALiteral("no literal, or one nested too deep, or an entry given twice")


def _key(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_key(item) for item in value)
    if isinstance(value, Unordered):
        return frozenset(_key(item) for item in value.members)
    if isinstance(value, dict):
        raise NotALiteral("a dict as a key")
    return value


def equal(gold: Any, answer: Any, *, relative: float = 0.0, absolute: float = 0.0) -> bool:
    """True if two values agree: floats within the tolerance, sets in any order.

    A tuple equals the list of its items. The tolerance is for golds with a decimal point; integers
    agree exactly, unless `absolute` is given. True is not 1.
    """
    limits = {"relative": relative, "absolute": absolute}
    if isinstance(gold, bool) or isinstance(answer, bool) or gold is None or answer is None:
        return gold is answer
    if isinstance(gold, int | float) and isinstance(answer, int | float):
        allowed = max(absolute, relative * abs(gold) if isinstance(gold, float) else 0.0)
        return gold == answer or abs(gold - answer) <= allowed
    if isinstance(gold, str) and isinstance(answer, str):
        return " ".join(gold.split()).casefold() == " ".join(answer.split()).casefold()
    if isinstance(gold, dict) and isinstance(answer, dict):
        return gold.keys() == answer.keys() and all(
            equal(gold[key], answer[key], **limits) for key in gold
        )
    if isinstance(gold, Unordered) and isinstance(answer, Unordered | list):
        members = answer.members if isinstance(answer, Unordered) else answer
        return compare.is_permutation(gold.members, members, functools.partial(equal, **limits))
    if isinstance(gold, list) and isinstance(answer, list):
        return len(gold) == len(answer) and all(
            equal(g, a, **limits) for g, a in zip(gold, answer, strict=True)
        )
    return False
