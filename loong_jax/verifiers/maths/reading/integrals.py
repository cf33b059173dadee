"""Sums, products, limits and definite integrals of LaTeX."""

import re
from typing import Any

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import Node, ParseError, constant, number, symbol
from loong_jax.verifiers.maths.reading.parser import Parser
from loong_jax.verifiers.maths.reading.tokens import Token

BIG = {"\\sum": "sum", "\\prod": "product", "\\int": "integral"}
_END = Token("command", "\\differential")  # stands where dx stood; starts nothing
_DIFFERENTIAL = re.compile(r"(.*)d([a-zA-Z])", re.DOTALL)
_OPENING, _CLOSING = ("(", "[", "{", "\\{"), (")", "]", "}", "\\}")


def big(parser: Parser, head: str) -> Node:
    """What follows the sign of a sum, product or integral."""
    low = high = None
    while parser.at("_", "^"):
        if parser.take().text == "^":
            high = parser.argument()
        else:
            low = parser.argument()
    if head == "integral":
        if (low is None) != (high is None):
            raise ParseError("only integrals with bounds and dx are read")
        if low is None or high is None:
            found = _integral(parser, number(0), number(1))
            return Node("apply", ("antiderivative", symbol(found.args[0]), found.args[3]))
        return _integral(parser, low, high)
    if (
        low is None
        or high is None
        or low.head != "chain"
        or low.args[1].head not in ("symbol", "constant")
    ):
        raise ParseError(f"{head} without bounds")
    variable, low = low.args[1].args[0], low.args[2]
    body = _with_index(parser.nested(parser.product), variable)
    return Node(head, (variable, low, high, body))


def limit(parser: Parser) -> Node:
    if not parser.accept("_"):
        raise ParseError("lim without its variable")
    approach = parser.argument()
    if approach.head != "chain" or approach.args[0] != ("->",) or approach.args[1].head != "symbol":
        raise ParseError("lim without its variable")
    body = parser.nested(parser.product)
    return Node("limit", (approach.args[1].args[0], approach.args[2], body))


def _with_index(item: Any, name: str) -> Any:
    """The body of a sum over i, whose i is no imaginary unit."""
    if item == constant(name):
        return symbol(name)
    if isinstance(item, Node):
        return Node(item.head, tuple(_with_index(arg, name) for arg in item.args))
    return item


def _integral(parser: Parser, low: Node, high: Node) -> Node:
    variable, ends_there = _take_differential(parser)
    body = number(1) if ends_there and parser.at(_END.text) else parser.nested(parser.sum)
    if ends_there:
        parser.expect(_END.text)
    return Node("integral", (variable, low, high, body))


def _take_differential(parser: Parser) -> tuple[str, bool]:
    """Finds this integral's dx, takes it out, and returns x and whether the integrand ends there.

    It need not where dx is the numerator of a fraction. Inner integrals come first with theirs.
    """
    start, depth, is_open = parser.mark(), 0, 1
    fractions: list[int] = []  # depths of numerators
    try:
        while parser.token.kind != "end" and depth >= 0:
            token, following = parser.token, parser.peek()
            if token.text in _OPENING and token.kind in ("sign", "command"):
                depth += 1
            elif token.text in _CLOSING and token.kind in ("sign", "command"):
                if fractions and fractions[-1] == depth:
                    fractions.pop()
                depth -= 1
            elif token.text in ("\\frac", "\\dfrac", "\\tfrac") and following.text == "{":
                fractions.append(depth + 1)
            elif token.text == "\\int":
                is_open += 1
            elif found := _differential(token, following):
                is_open -= 1
                if is_open == 0 and (depth == 0 or depth in fractions):
                    before, variable, num_tokens = found
                    _remove(parser, before, num_tokens, ends_there=depth == 0)
                    return variable, depth == 0
            parser.take()
    finally:
        parser.reset(start)
    raise ParseError("only integrals with bounds and dx are read")


def _differential(token: Token, following: Token) -> tuple[str, str, int] | None:
    """What stands before dx in its word, the variable, and how many tokens dx takes."""
    if token.kind not in ("word", "text"):
        return None
    if token.text == "d":
        name = following.text.removeprefix("\\")
        is_name = name in names.GREEK or (len(name) == 1 and name.isalpha())
        return ("", name, 2) if is_name else None
    found = _DIFFERENTIAL.fullmatch(token.text)
    return (found[1], found[2], 1) if found else None


def _remove(parser: Parser, before: str, num_tokens: int, *, ends_there: bool) -> None:
    instead = [Token("word", before)] if before else []
    if ends_there:
        instead.append(_END)
    elif not before and parser.peek(-1).text == "{":
        instead.append(Token("number", "1"))  # \frac{dx}{x}
    for _ in range(num_tokens - 1):
        parser.replace()
    parser.replace(*instead)
