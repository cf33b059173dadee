"""Sums and products of the grammar, with signs, units and factors without a sign between them."""

import re
from fractions import Fraction

from loong_jax.verifiers.maths import names, units
from loong_jax.verifiers.maths.expression import (
    ONE,
    Node,
    ParseError,
    constant,
    negate,
    number,
    rewritten,
    symbol,
)
from loong_jax.verifiers.maths.reading import Parser, Token, words


def sum_(parser: Parser) -> Node:
    terms = []
    sign = _sign(parser)
    first = parser.product()
    terms.append(_signed(sign, first))
    while True:
        if parser.at("+", "-"):
            sign = _sign(parser)
            terms.append(_signed(sign, parser.product()))
        elif parser.at("\\pm", "\\mp"):
            parser.take()
            left = terms[0] if len(terms) == 1 else Node("add", tuple(terms))
            terms = [Node("pm", (left, parser.product()))]
        elif parser.token == Token("sign", "+/-") or (parser.at("+") and parser.peek().text == "/"):
            raise ParseError("+/ is no operator")
        else:
            break
    return terms[0] if len(terms) == 1 else Node("add", tuple(terms))


def _sign(parser: Parser) -> str:
    sign = ""
    count = 0
    while parser.at("+", "-", "\\pm", "\\mp"):
        text = parser.take().text
        count += 1
        if count > 4:
            raise ParseError("a row of signs")
        if text in ("\\pm", "\\mp"):
            sign = "pm"
        elif text == "+" and parser.at("/") and parser.peek().text == "-":
            parser.take()
            parser.take()
            sign = "pm"
        elif text == "-" and sign != "pm":
            sign = "" if sign == "-" else "-"
    return sign


def product(parser: Parser) -> Node:
    node = parser.factor()
    while True:
        token = parser.token
        if token.kind in ("sign", "command") and token.text in names.PRODUCTS:
            parser.take()
            node = _times(node, _signed(_sign(parser), parser.factor()))
        elif token.kind in ("sign", "command") and token.text in names.QUOTIENTS:
            floors = parser.take().text == "//"
            node = Node("div", (node, _signed(_sign(parser), parser.factor())))
            node = Node("call", ("floor", node)) if floors else node
        elif _is_choose(node, token):
            parser.take()
            node = Node("call", ("binomial", node, Node("number", (int(token.text[1:]), 0))))
        elif (unit := units.take_unit(parser, node)) is not None:
            node = _with_smaller_unit(parser, Node("quantity", (node, unit)))
        elif token.kind in ("word", "text") and token.text in names.MULTIPLIERS:
            parser.take()
            node = _times(node, Node("number", (names.MULTIPLIERS[token.text], 0)))
        elif _juxtaposed(parser, node):
            node = _adjoin(parser, node)
        else:
            return node


def _with_smaller_unit(parser: Parser, node: Node) -> Node:
    """Adds what follows in a smaller unit of the same kind: 8 hours 30 minutes."""
    if parser.token.kind != "number":
        return node
    right = parser.nested(parser.product)
    if right.head != "quantity":
        raise ParseError("a number follows a unit")
    (value, unit), (more, smaller) = node.args, right.args
    if unit.dimensions != smaller.dimensions or unit.factor <= smaller.factor:
        raise ParseError("a number follows a unit")
    part = Node("mul", (more, Node("number", (smaller.factor / unit.factor, 0))))
    return Node("quantity", (Node("add", (value, part)), unit))


def _juxtaposed(parser: Parser, left: Node) -> bool:
    """True if a factor follows without a sign between. Two numbers in a row are no product."""
    token = parser.token
    if token.kind in ("number", "recurring"):
        if left.head == "number":
            return _is_mixed(parser)
        return left.head in ("call", "tuple") or _ends_on_ellipsis(left)
    if token.kind == "sign" and token.text in ("-", "+", "$", "["):
        return False
    if token.kind == "word" and token.text == "U":
        return False
    if left.head in ("chain", "and", "or"):
        return False
    if token.text == "(" and parser.peek().text == "mod":
        return False
    if token.text == "mod" and token.kind == "word" and parser.peek().kind == "number":
        return False
    return words.starts_operand(parser, token)


def _adjoin(parser: Parser, left: Node) -> Node:
    if left.head == "number" and isinstance(left.args[0], int) and not left.args[1]:
        if parser.token.kind == "number":
            if not _is_mixed(parser):
                raise ParseError("two numbers in a row")
            numerator = parser.take()
            parser.take()
            denominator = parser.take()
            part = Fraction(int(numerator.text), int(denominator.text))
            return Node("add", (left, Node("number", (part, 0))))
        if parser.at(*words.FRACTIONS):
            right = parser.factor()
            if _is_proper(right):  # 3\frac{1}{2}
                return Node("add", (left, right))
            if right.head in ("percent", "degree") and _is_proper(right.args[0]):
                return Node(right.head, (Node("add", (left, right.args[0])),))
            return _times(left, right)
    elif (
        parser.token.kind in ("number", "recurring")
        and left.head not in ("call", "tuple")
        and not _ends_on_ellipsis(left)
    ):
        raise ParseError("a number follows a factor")
    return _times(left, parser.factor())


def _ends_on_ellipsis(node: Node) -> bool:
    return node.head == "mul" and node.args[-1] == Node("symbol", ("...",))


def _is_choose(left: Node, token: Token) -> bool:
    """10C3"""
    return (
        left.head == "number"
        and token.kind == "word"
        and token.text[0] == "C"
        and token.text[1:].isdigit()
        and len(token.text) < 5
    )


def _is_mixed(parser: Parser) -> bool:
    """True if "1/2" comes next, as in "3 1/2"."""
    tokens = [parser.peek(ahead) for ahead in range(-1, 4)]
    before, numerator, slash, denominator, after = tokens
    return (
        before.kind == "number"
        and numerator.spaced
        and numerator.text.isdigit()
        and slash.text == "/"
        and denominator.text.isdigit()
        and len(denominator.text) < 10
        and 0 < int(numerator.text) < int(denominator.text)
        and after.text not in ("/", "^", "**", "!")
    )


def _is_proper(node: Node) -> bool:
    if node.head != "div":
        return False
    numerator, denominator = node.args
    if numerator.head != "number" or denominator.head != "number":
        return False
    return isinstance(numerator.args[0], int) and 0 < numerator.args[0] < denominator.args[0]


def _signed(sign: str, node: Node) -> Node:
    if sign == "pm":
        return Node("pm", (node,))
    if sign != "-":
        return node
    if node.head == "quantity":
        return Node("quantity", (negate(node.args[0]), node.args[1]))
    if node.head == "degree":
        return Node("degree", (negate(node.args[0]),))
    if node.head == "based":
        return Node("based", (-node.args[0], node.args[1]))
    return negate(node)


def _times(left: Node, right: Node) -> Node:
    if left.head == "quantity" and right.head != "quantity":
        return Node("quantity", (_times(left.args[0], right), left.args[1]))
    if left == ONE:
        return right
    if left.head == "mul":
        return Node("mul", (*left.args, right))
    return Node("mul", (left, right))


_END = Token("command", "\\differential")  # stands where dx stood; starts nothing
_DIFFERENTIAL = re.compile(r"(.*)d([a-zA-Z])", re.DOTALL)
_OPENING, _CLOSING = ("(", "[", "{", "\\{"), (")", "]", "}", "\\}")


def big(parser: Parser, head: str) -> Node:
    """Parses the rest of a sum, product or integral after its sign."""
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
    index = constant(variable)  # the i of a sum over i is no imaginary unit
    body = rewritten(
        parser.nested(parser.product), lambda node: symbol(variable) if node == index else None
    )
    return Node(head, (variable, low, high, body))


def limit(parser: Parser) -> Node:
    if not parser.accept("_"):
        raise ParseError("lim without its variable")
    approach = parser.argument()
    if approach.head != "chain" or approach.args[0] != ("->",) or approach.args[1].head != "symbol":
        raise ParseError("lim without its variable")
    body = parser.nested(parser.product)
    return Node("limit", (approach.args[1].args[0], approach.args[2], body))


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
    start, depth, is_open = parser.position, 0, 1
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
        parser.position = start
    raise ParseError("only integrals with bounds and dx are read")


def _differential(token: Token, following: Token) -> tuple[str, str, int] | None:
    """(letters before dx in its word, variable, number of tokens of dx)."""
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
