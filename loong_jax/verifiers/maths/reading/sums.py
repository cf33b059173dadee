"""Sums and products of the grammar, with signs, units and factors without a sign between them."""

import re
from fractions import Fraction

from loong_jax.verifiers.maths import expression as tree
from loong_jax.verifiers.maths import names, units
from loong_jax.verifiers.maths.expression import Node, ParseError
from loong_jax.verifiers.maths.reading import Parser, Token, words


def sum_(parser: Parser) -> Node:
    terms = [_signed(_sign(parser), parser.product())]
    while True:
        if parser.at("+", "-"):
            terms.append(_signed(_sign(parser), parser.product()))
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
    sign, count = "", 0
    while parser.at("+", "-", "\\pm", "\\mp"):
        text, count = parser.take().text, count + 1
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
        token, is_sign = parser.token, parser.token.kind in ("sign", "command")
        if is_sign and token.text in names.PRODUCTS:
            parser.take()
            node = _times(node, _signed(_sign(parser), parser.factor()))
        elif is_sign and token.text in names.QUOTIENTS:
            floors = parser.take().text == "//"
            node = Node("div", (node, _signed(_sign(parser), parser.factor())))
            node = tree.call("floor", node) if floors else node
        elif node.head == "number" and token.kind == "word" and _CHOOSE.fullmatch(token.text):
            node = tree.call("binomial", node, tree.number(int(parser.take().text[1:])))
        elif (unit := units.take_unit(parser, node)) is not None:
            node = _with_smaller_unit(parser, Node("quantity", (node, unit)))
        elif token.text in names.MULTIPLIERS and token.is_word:
            node = _times(node, tree.number(names.MULTIPLIERS[parser.take().text]))
        elif (adjoined := _adjoined(parser, node)) is not None:
            node = adjoined
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
    part = Node("mul", (more, tree.number(smaller.factor / unit.factor)))
    return Node("quantity", (Node("add", (value, part)), unit))


def _adjoined(parser: Parser, left: Node) -> Node | None:
    """A product with the factor that follows without a sign, or a mixed number; None for others."""
    token = parser.token
    if token.kind == "end" or (token.kind == "sign" and token.text not in ("(", "{", "|")):
        return None
    is_whole = left.head == "number" and isinstance(left.args[0], int) and not left.args[1]
    if token.kind in ("number", "recurring"):  # two of them in a row are no product
        if left.head == "number" and _is_mixed(parser):
            if not is_whole:
                raise ParseError("a number follows a factor")
            above, _, below = parser.take(), parser.take(), parser.take()
            return Node("add", (left, tree.number(Fraction(int(above.text), int(below.text)))))
        is_ellipsis = left.head == "mul" and left.args[-1] == tree.symbol("...")
        may_be_first = left.head in ("call", "tuple") or is_ellipsis
        return _times(left, parser.factor()) if may_be_first else None
    is_union = token.kind == "word" and token.text == "U"
    is_modulus = (token.text == "(" and parser.peek().text == "mod") or (
        token.text == "mod" and token.kind == "word" and parser.peek().kind == "number"
    )
    if is_union or is_modulus or left.head in ("chain", "and", "or"):
        return None
    if not words.starts_operand(parser, token):
        return None
    is_fraction = is_whole and parser.at(*words.FRACTIONS)
    right = parser.factor()
    if is_fraction and _is_proper(right):  # 3\frac{1}{2}
        return Node("add", (left, right))
    if is_fraction and right.head in ("percent", "degree") and _is_proper(right.args[0]):
        return Node(right.head, (Node("add", (left, right.args[0])),))
    return _times(left, right)


def _is_mixed(parser: Parser) -> bool:
    """True if "1/2" comes next, as in "3 1/2"."""
    before, numerator, slash, denominator, after = map(parser.peek, range(-1, 4))
    if before.kind != "number" or not numerator.spaced or slash.text != "/":
        return False
    above, below = numerator.text, denominator.text
    is_fraction = above.isdigit() and below.isdigit() and len(below) < 10
    return is_fraction and 0 < int(above) < int(below) and after.text not in ("/", "^", "**", "!")


def _is_proper(node: Node) -> bool:
    if node.head != "div" or any(side.head != "number" for side in node.args):
        return False
    above, below = (side.args[0] for side in node.args)
    return isinstance(above, int) and 0 < above < below


def _signed(sign: str, node: Node) -> Node:
    if sign == "pm":
        return Node("pm", (node,))
    if sign != "-":
        return node
    if node.head == "degree":
        return Node("degree", (tree.negate(node.args[0]),))
    if node.head == "based":
        return Node("based", (-node.args[0], node.args[1]))
    return tree.negate(node)


def _times(left: Node, right: Node) -> Node:
    if left.head == "quantity" and right.head != "quantity":
        return Node("quantity", (_times(left.args[0], right), left.args[1]))
    if left == tree.ONE:
        return right
    if left.head == "mul":
        return Node("mul", (*left.args, right))
    return Node("mul", (left, right))


_END = Token("command", "\\differential")  # stands where dx stood; starts nothing
_CHOOSE = re.compile(r"C\d{1,3}")  # of 10C3
_DIFFERENTIAL = re.compile(r"(.*)d([a-zA-Z])", re.DOTALL)


def big(parser: Parser, head: str) -> Node:
    """Parses the rest of a sum, product or integral after its sign."""
    bounds: dict[str, Node] = {}
    while parser.at("_", "^"):
        side = parser.take().text
        bounds[side] = parser.argument()
    if head == "integral":
        if len(bounds) == 1:
            raise ParseError("only integrals with bounds and dx are read")
        variable, body = _integrand(parser)
        if not bounds:
            return Node("apply", ("antiderivative", tree.symbol(variable), body))
        return Node(head, (variable, bounds["_"], bounds["^"], body))
    low = bounds.get("_", tree.ONE)
    if len(bounds) < 2 or low.head != "chain" or low.args[1].head not in ("symbol", "constant"):
        raise ParseError(f"{head} without bounds")
    variable, low = low.args[1].args[0], low.args[2]
    index = tree.constant(variable)  # the i of a sum over i is no imaginary unit
    body = tree.rewritten(
        parser.nested(parser.product), lambda node: tree.symbol(variable) if node == index else None
    )
    return Node(head, (variable, low, bounds["^"], body))


def limit(parser: Parser) -> Node:
    if not parser.accept("_"):
        raise ParseError("lim without its variable")
    approach = parser.argument()
    if approach.head != "chain" or approach.args[0] != ("->",) or approach.args[1].head != "symbol":
        raise ParseError("lim without its variable")
    body = parser.nested(parser.product)
    return Node("limit", (approach.args[1].args[0], approach.args[2], body))


def _integrand(parser: Parser) -> tuple[str, Node]:
    variable, ends_there = _take_differential(parser)
    body = tree.number(1) if ends_there and parser.at(_END.text) else parser.nested(parser.sum)
    if ends_there:
        parser.expect(_END.text)
    return variable, body


def _take_differential(parser: Parser) -> tuple[str, bool]:
    """Finds this integral's dx, takes it out, and returns x and whether the integrand ends there.

    It need not where dx is the numerator of a fraction. Inner integrals come first with theirs.
    """
    start, depth, is_open = parser.position, 0, 1
    fractions: list[int] = []  # depths of numerators
    try:
        while parser.token.kind != "end" and depth >= 0:
            token, following = parser.token, parser.peek()
            is_sign = token.kind in ("sign", "command")
            if is_sign and token.text in ("(", "[", "{", "\\{"):
                depth += 1
            elif is_sign and token.text in (")", "]", "}", "\\}"):
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
                    instead = [Token("word", before)] if before else []
                    if depth == 0:
                        instead.append(_END)
                    elif not before and parser.peek(-1).text == "{":
                        instead.append(Token("number", "1"))  # \frac{dx}{x}
                    for _ in range(num_tokens - 1):
                        parser.replace()
                    parser.replace(*instead)
                    return variable, depth == 0
            parser.take()
    finally:
        parser.position = start
    raise ParseError("only integrals with bounds and dx are read")


def _differential(token: Token, following: Token) -> tuple[str, str, int] | None:
    """(letters before dx in its word, variable, number of tokens of dx)."""
    if not token.is_word:
        return None
    if token.text == "d":
        name = following.text.removeprefix("\\")
        is_name = name in names.GREEK or (len(name) == 1 and name.isalpha())
        return ("", name, 2) if is_name else None
    found = _DIFFERENTIAL.fullmatch(token.text)
    return (found[1], found[2], 1) if found else None
