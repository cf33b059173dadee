"""Expressions: what the parser builds and everything else reads. Plain immutable trees.

A tree holds names and exact numbers and nothing that could be called: building one evaluates
nothing, so its cost is bounded by the length of the text.

| head | args |
| --- | --- |
| number | exact value (int or Fraction), significant digits if written as a decimal, else 0 |
| symbol, constant, text | its name; constants are pi, e, i, inf |
| add, mul, div, pow, neg, pm | operands; `pm` is plus-minus, unary or binary |
| call | name of a known function, then arguments |
| apply | name of an unknown function such as f, then arguments |
| percent | operand, then the number of parts if they are not 100: 7 and 1000 for 7‰ |
| degree | operand |
| based | value (int), base (int): 1101_2 |
| quantity | operand, unit (see units.py) |
| labelled | operand, words that followed it: "12 ways" |
| chain | operators (tuple of str), then one operand more: a = b < c |
| list, and, or | items without brackets around them, by what joined them |
| tuple, bracket, set | items in (), in [], in braces |
| interval | low, high, whether low is left out, whether high is |
| union, intersection, setminus, builder | operands |
| matrix | rows, each a tuple |
| piecewise | pairs of a value and its condition; the condition may be a text |
| modular | operand (a value, or a chain x == 3), modulus |
| ratio | 2:3:4 as operands |
| sum, product, integral, limit | variable, low, high, body (limit: variable, point, body) |
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any


@dataclasses.dataclass
class Node:
    """Never changed once it is made, so that what is asked of it again is kept."""

    head: str
    args: tuple[Any, ...]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.head, self.args))

    def __hash__(self) -> int:
        return self._hash

    def walk(self) -> Iterator["Node"]:
        """Every node of the tree, the root first."""
        stack: list[Any] = [self]
        while stack:
            item = stack.pop()
            if isinstance(item, Node):
                yield item
                stack.extend(item.args)
            elif isinstance(item, tuple):
                stack.extend(item)

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.head, self.args))

    @functools.cached_property
    def symbols(self) -> frozenset[str]:
        """Names of its symbols."""
        return frozenset(item.args[0] for item in self.walk() if item.head == "symbol")

    @functools.cached_property
    def heads(self) -> frozenset[str]:
        return frozenset(item.head for item in self.walk())

    @property
    def is_constant(self) -> bool:
        """True if the node stands for one number: no symbols, no collections, no relations."""
        return self.heads <= _NUMERIC

    @property
    def unlabelled(self) -> "Node":
        return self.args[0].unlabelled if self.head == "labelled" else self


class ParseError(ValueError):
    """The text is no expression we know."""


class CostError(Exception):
    """Parsing or evaluating would cost more than the limit; nothing was decided."""


BARE_LISTS = ("list", "and", "or")
COLLECTIONS = (*BARE_LISTS, "tuple", "bracket", "set")


def number(value: int | Fraction, digits: int = 0) -> Node:
    return Node("number", (value, digits))


def symbol(name: str) -> Node:
    return Node("symbol", (name,))


def constant(name: str) -> Node:
    return Node("constant", (name,))


def call(name: str, *arguments: Node) -> Node:
    return Node("call", (name, *arguments))


ZERO, ONE = number(0), number(1)
INFINITY = constant("inf")
REALS = Node("interval", (Node("neg", (INFINITY,)), INFINITY, True, True))
EMPTY = Node("set", ())
UNNAMED = symbol("?")  # the subject of "at least 5"


def depth(node: Node) -> int:
    """Nodes on the longest way from the root to a leaf."""
    deepest = 0
    stack: list[tuple[Any, int]] = [(node, 1)]
    while stack:
        item, level = stack.pop()
        if isinstance(item, Node):
            deepest = max(deepest, level)
            stack.extend((arg, level + 1) for arg in item.args)
        elif isinstance(item, tuple):
            stack.extend((part, level) for part in item)
    return deepest


def rewritten(item: Any, rule: Callable[[Node], Node | None]) -> Any:
    """Replaces nodes by a rule, the outer ones first; a node stays where the rule gives none."""
    if isinstance(item, Node):
        return rule(item) or Node(item.head, rewritten(item.args, rule))
    if type(item) is tuple:  # a unit is a tuple of another type, and stays
        return tuple(rewritten(part, rule) for part in item)
    return item


def with_names(item: Any, names: Mapping[str, str]) -> Any:
    """Renames symbols, all at once: x and y may change places."""
    return rewritten(item, lambda node: symbol(names.get(node.args[0], node.args[0]))
                     if node.head == "symbol" else None)  # fmt: skip


def substitute(node: Any, name: str, value: Node) -> Any:
    wanted = symbol(name)
    return rewritten(node, lambda part: value if part == wanted else None)


def difference(left: Node, right: Node) -> Node:
    return Node("add", (left, Node("neg", (right,))))


_NUMERIC = frozenset(
    str.split("number constant add mul div pow neg call percent degree based sum product integral")
)


def negate(node: Node) -> Node:
    if node.head == "number":
        return Node("number", (-node.args[0], node.args[1]))
    if node.head == "quantity":
        return Node("quantity", (negate(node.args[0]), node.args[1]))
    return Node("neg", (node,))


def render(node: Node, limit: int = 80) -> str:
    """A short plain form, for evidence that people read."""
    text = _render(node, 40)
    return text if len(text) <= limit else text[: limit - 3] + "..."


_INFIX = {"add": " + ", "mul": "*", "div": "/", "pow": "**", "ratio": ":", "union": " U "}
_AROUND = {"tuple": "()", "bracket": "[]", "set": "{}", **dict.fromkeys(BARE_LISTS, ("", ""))}


def _render(item: Any, depth: int) -> str:
    """Huge integers are named by their size: printing one takes time that grows as its square."""
    if type(item) is str:
        return item
    if isinstance(item, tuple):
        return "[" + ", ".join(_render(part, 10) for part in item) + "]"
    if isinstance(item, Fraction) and item.denominator > 1:
        return f"{_render(item.numerator, 1)}/{_render(item.denominator, 1)}"
    if isinstance(item, (int, Fraction)) and item.numerator.bit_length() > 400:
        return f"<integer of {item.numerator.bit_length()} bits>"
    if not isinstance(item, Node) or depth == 0:
        return "..." if isinstance(item, Node) else str(item)
    head, args = item
    if head in ("number", "symbol", "constant", "text"):
        return _render(args[0], depth)
    parts = [_render(arg, depth - 1) for arg in args]
    if head in _INFIX:
        return "(" + _INFIX[head].join(parts) + ")"
    if head in ("call", "apply"):
        return f"{parts[0]}({', '.join(parts[1:])})"
    if head == "neg":
        return f"-{parts[0]}"
    if head in _AROUND:
        return _AROUND[head][0] + ", ".join(parts) + _AROUND[head][1]
    if head == "chain":
        pairs = zip(args[0], parts[2:], strict=True)
        return " ".join([parts[1], *(word for pair in pairs for word in pair)])
    if head == "interval":
        return f"{'(' if args[2] else '['}{parts[0]}, {parts[1]}{')' if args[3] else ']'}"
    return f"{head}({', '.join(parts)})"
