"""Sums, products and factors: a primary by its first token, with what is written after it."""

import re
from collections.abc import Callable
from fractions import Fraction

from loong_jax.verifiers.maths import expression as tree
from loong_jax.verifiers.maths import names, units
from loong_jax.verifiers.maths.expression import Node, ParseError
from loong_jax.verifiers.maths.reading import Parser, Token, brackets, numerals, words
from loong_jax.verifiers.maths.units import CURRENCIES


def sum_(parser: Parser) -> Node:
    terms = [_signed(_sign(parser), parser.product())]
    while True:
        if parser.at("+", "-"):
            terms.append(_signed(_sign(parser), parser.product()))
        elif parser.at("\\pm", "\\mp"):
            parser.take()
            left = terms[0] if len(terms) == 1 else Node("add", tuple(terms))
            terms = [Node("pm", (left, parser.product()))]
        else:
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
        elif (
            node.head == "number" and token.kind == "word" and re.fullmatch(r"C\d{1,3}", token.text)
        ):
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


_SHARES = {  # after a number: of how many parts
    **dict.fromkeys(("percent", "pct", "percentage", "per cent", "%", "\\%"), 100),
    **dict.fromkeys(("permille", "permil", "per mille", "per mil", "pro mille", "pro mil"), 1000),
    **dict.fromkeys(("\\permil", "\\textperthousand", "\\perthousand"), 1000),
    "\\permyriad": 10_000,
}
_ENCLOSED = {"\\lvert": ("\\rvert", "abs"), "\\vert": ("\\vert", "abs"), "\\|": ("\\|", "norm"),
             "\\lVert": ("\\rVert", "norm"), "\\Vert": ("\\Vert", "norm"),
             "|": ("|", "abs")}  # fmt: skip


def factor(parser: Parser) -> Node:
    """A primary with what is written after it: powers, factorials, degrees, percent."""
    node = primary(parser)
    while True:
        token = parser.token
        text = token.text
        pair = f"{text} {parser.peek().text}" if text in ("per", "pro") else ""
        if (parts := _SHARES.get(pair) or _SHARES.get(text)) is not None:
            for _ in pair.split() or (text,):
                parser.take()
            node = Node("percent", (node,) if parts == 100 else (node, tree.number(parts)))
        elif text in ("rad", "radian", "radians"):
            parser.take()
            node = Node("mul", (node, tree.number(1)))
        elif text in ("degrees", "degree", "deg", "\\degree"):
            parser.take()
            node = numerals.degrees(parser, node)
        elif token.kind != "sign":
            return node
        elif text == "!":
            parser.take()
            node = tree.call("double_factorial" if parser.accept("!") else "factorial", node)
        elif text in ("^", "**"):
            parser.take()
            node = _power(parser, node)
        elif text == "'" and node.head == "number":
            parser.take()
            parts = 3600 if parser.accept("'") else 60  # of an angle
            node = Node("degree", (Node("div", (node, tree.number(parts))),))
        elif text == "'" and node.head in ("symbol", "apply"):
            parser.take()
            node = Node(node.head, (node.args[0] + "'", *node.args[1:]))
            if node.head == "symbol" and parser.at("("):
                node = Node("apply", (node.args[0], *brackets.arguments_of(parser)))
        elif text == "_" and node.head in ("number", "tuple"):
            node = numerals.based(parser, node)
        else:
            return node


def _power(parser: Parser, base: Node) -> Node:
    if parser.accept("\\circ"):
        return numerals.degrees(parser, base)
    marks = ("\\circ", "\\prime", "o")
    if parser.at("{") and parser.peek().text in marks and parser.peek(2).text == "}":
        _, mark, _ = parser.take(), parser.take().text, parser.take()
        return base if mark == "\\prime" else numerals.degrees(parser, base)
    if base.head in ("tuple", "bracket", "matrix") and _takes_transpose(parser):
        rows = base.args if base.head == "matrix" else (base.args,)
        return Node("matrix", tuple(zip(*rows, strict=True)))
    if parser.at("-", "+"):
        sign = parser.take().text
        exponent = parser.nested(parser.factor)
        exponent = Node("neg", (exponent,)) if sign == "-" else exponent
    elif parser.accept("{"):
        exponent = parser.nested(parser.sum)
        parser.expect("}")
    else:
        word = parser.token  # without braces one letter is raised: n^ne^{-n} is n^n e^{-n}
        letters = word.text if word.kind == "word" and word.text.isalpha() else ""
        if len(letters) > 1 and words.letters_of(letters) == tuple(letters):
            parser.replace(Token("word", letters[0]), Token("word", letters[1:]))
        exponent = parser.nested(parser.factor)
    if base.head == "percent" or exponent.head in ("tuple", "list", "bracket", "chain"):
        raise ParseError("no such power")
    return Node("pow", (base, exponent))


def _takes_transpose(parser: Parser) -> bool:
    """True if T or \\top comes next, in braces or not; takes it."""
    mark = parser.position
    braces = parser.accept("{")
    while parser.accept("\\mathsf", "\\mathrm", "\\intercal"):
        braces |= parser.accept("{")
    if parser.take().text in ("T", "\\top", "\\intercal"):
        while braces and parser.accept("}"):
            pass
        return True
    parser.position = mark
    return False


def primary(parser: Parser) -> Node:
    kind, text, _ = token = parser.take()
    if kind == "number":
        return numerals.numeral(parser, token)
    if kind == "recurring":
        whole, _, cycle = text[:-1].partition("(")
        return numerals.recurring(whole, cycle)
    if token.is_word:
        return words.from_word(parser, token)
    if (reader := _READERS.get(text)) is not None:
        return reader(parser, text)
    if kind == "command":
        raise ParseError(f"{text} is no command we know")
    if text in ("-", "+"):
        raise ParseError("a sign stands where a factor belongs")
    if text.startswith("..."):
        return tree.symbol("...")
    raise ParseError(f"{text or 'the end'!r} starts no expression")


def argument(parser: Parser) -> Node:
    """The argument of a LaTeX command: a group in braces, or one token."""
    if parser.accept("{"):
        node = parser.nested(parser.items)
        parser.expect("}")
        return node
    kind, first, rest = parser.token.kind, parser.token.text[:1], parser.token.text[1:]
    if rest and (kind == "word" or (kind == "number" and (first + rest).isdigit())):
        is_number = kind == "number" or rest.isdigit()  # \frac n2 is n over 2
        parser.replace(Token(kind, first), Token("number" if is_number else "word", rest))
    return parser.nested(parser.primary)


def _prescript(parser: Parser) -> Node:
    """_5C_2 and ^5C_2 after an empty group."""
    above = argument(parser)
    token = parser.take()
    if token.text not in ("C", "P") or not parser.accept("_"):
        raise ParseError("a subscript without its letter")
    return tree.call(words.CHOICES[token.text], above, argument(parser))


def _braced(parser: Parser, text: str) -> Node:
    """A LaTeX group, or a set or dictionary of Python."""
    if parser.accept("}"):
        return _prescript(parser) if parser.accept("_", "^") else tree.EMPTY
    node = brackets.braced_set(parser, "}")
    if node.head != "set":
        return node
    return node.args[0] if len(node.args) == 1 else Node("list", node.args)


def _root(parser: Parser, text: str) -> Node:
    degree = []
    if parser.accept("["):
        degree.append(parser.nested(parser.sum))
        parser.expect("]")
    inner = parser.argument() if parser.at("{") else parser.nested(parser.primary)
    return tree.call("root" if degree else "sqrt", inner, *degree)


def _angled(parser: Parser, text: str) -> Node:
    node = parser.nested(parser.items)
    parser.expect("\\rangle", ">")
    return Node("tuple", node.args) if node.head in ("list", "and") else node


def _rounded(parser: Parser, text: str) -> Node:
    node = parser.nested(parser.sum)
    parser.expect("\\r" + text[2:])
    return tree.call({"\\lfloor": "floor", "\\lceil": "ceiling"}[text], node)


def _number_set(parser: Parser, text: str) -> Node:
    name = brackets.raw_argument(parser)
    positive = ""
    if parser.at("^", "_") and parser.peek().text in ("+", "*", "{"):
        parser.take()
        positive = brackets.raw_argument(parser)
    if name == "R" and positive in ("+", ">0"):
        return Node("interval", (tree.ZERO, tree.INFINITY, True, True))
    if name == "R" and not positive:
        return tree.REALS
    return tree.symbol(f"set {name}{positive}")


def _letter(parser: Parser, text: str) -> Node:
    is_function = text in ("\\Gamma", "\\zeta") and parser.at("(")
    return (words.function if is_function else words.subscripted)(parser, text[1:])


_READERS: dict[str, Callable[[Parser, str], Node]] = {  # of what begins with a sign or a command
    "(": brackets.parenthesised, "[": brackets.square, "]": brackets.square, "{": _braced,
    **dict.fromkeys(("\\{", "\\lbrace"),
                    lambda parser, _: brackets.braced_set(parser, "\\}", "\\rbrace")),
    **dict.fromkeys(_ENCLOSED, lambda parser, text: brackets.bars(parser, *_ENCLOSED[text])),
    "\\langle": _angled, "\\lfloor": _rounded, "\\lceil": _rounded,
    "_": lambda parser, _: _prescript(parser), "^": lambda parser, _: _prescript(parser),
    "\\begin": brackets.environment, "\\lim": words.limit,
    **dict.fromkeys(CURRENCIES, lambda parser, text: Node(
        "quantity", (parser.nested(parser.product), CURRENCIES[text]))),
    **dict.fromkeys(words.FRACTIONS, lambda parser, _: Node(
        "div", (parser.argument(), parser.argument()))),
    **dict.fromkeys(words.BINOMIALS, lambda parser, _: tree.call(
        "binomial", parser.argument(), parser.argument())),
    **dict.fromkeys(words.BIG, words.big), "\\mathbb": _number_set,
    **dict.fromkeys(("\\emptyset", "\\varnothing"), lambda *_: tree.EMPTY),
    **dict.fromkeys(("\\ldots", "\\dots", "\\cdots", "\\vdots"), lambda *_: tree.symbol("...")),
    **dict.fromkeys(("\\angle", "\\triangle"), lambda parser, text: tree.symbol(
        f"{text[1:]} {brackets.raw_argument(parser)}")),
    **dict.fromkeys(names.ACCENTS, lambda parser, text: tree.symbol(
        f"{text[1:]}({brackets.raw_argument(parser)})")),
    **dict.fromkeys(names.WRAPPERS, lambda parser, _: (
        parser.argument() if parser.at("{") else primary(parser))),
    **dict.fromkeys(map("\\{}".format, names.GREEK), _letter),
    **{f"\\{name}": lambda _, text: tree.constant(names.CONSTANTS[text[1:]])
       for name in names.CONSTANTS},
    **{f"\\{name}": lambda parser, text: words.function(parser, text[1:])
       for name in names.PREFIX_FUNCTIONS & set(names.FUNCTIONS)},
    "\\sqrt": _root,
}  # fmt: skip
STARTERS = {*_READERS, "\\circ", "\\prime", "\\substack"} - {"\\Vert", "\\vdots"}
