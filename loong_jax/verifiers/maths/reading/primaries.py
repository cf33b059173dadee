"""Primaries of the grammar: what a factor is before its powers, by its first token."""

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import (
    EMPTY,
    INFINITY,
    REALS,
    Node,
    ParseError,
    call,
    constant,
    number,
    symbol,
)
from loong_jax.verifiers.maths.reading import brackets, integrals, numerals, variables, words
from loong_jax.verifiers.maths.reading.parser import Parser
from loong_jax.verifiers.maths.reading.tokens import Token
from loong_jax.verifiers.maths.units import CURRENCIES


def primary(parser: Parser) -> Node:
    token = parser.take()
    if token.kind == "number":
        return numerals.numeral(parser, token)
    if token.kind == "recurring":
        whole, _, cycle = token.text[:-1].partition("(")
        return numerals.recurring(whole, cycle)
    if token.kind in ("word", "text"):
        return variables.from_word(parser, token)
    if token.kind == "command":
        return command(parser, token)
    if token.text == "(":
        return brackets.parenthesised(parser)
    if token.text in ("[", "]"):
        return brackets.square(parser, token.text)
    if token.text == "{":
        return _braces(parser)
    if token.text == "|":
        return brackets.bars(parser, "|", "abs")
    if token.text in CURRENCIES:
        return Node("quantity", (parser.nested(parser.product), CURRENCIES[token.text]))
    if token.text in ("-", "+"):
        raise ParseError("a sign stands where a factor belongs")
    if token.text in ("_", "^"):
        return _prescript(parser)
    if token.text.startswith("..."):
        return symbol("...")
    raise ParseError(f"{token.text or 'the end'!r} starts no expression")


def argument(parser: Parser) -> Node:
    """The argument of a LaTeX command: a group in braces, or one token."""
    if parser.accept("{"):
        node = parser.nested(parser.items)
        parser.expect("}")
        return node
    token = parser.token
    if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
        parser.replace(Token("number", token.text[0]), Token("number", token.text[1:]))
    elif token.kind == "word" and len(token.text) > 1:
        rest = token.text[1:]  # \frac n2 is n over 2
        kind = "number" if rest.isdigit() else "word"
        parser.replace(Token("word", token.text[0]), Token(kind, rest))
    return parser.nested(lambda: primary(parser))


def _prescript(parser: Parser) -> Node:
    """_5C_2 and ^5C_2 after an empty group."""
    above = argument(parser)
    token = parser.take()
    if token.text not in ("C", "P") or not parser.accept("_"):
        raise ParseError("a subscript without its letter")
    return call("binomial" if token.text == "C" else "permutations", above, argument(parser))


def _braces(parser: Parser) -> Node:
    """A LaTeX group, or a set or dictionary of Python."""
    if parser.accept("}"):
        if parser.at("_", "^"):
            parser.take()
            return _prescript(parser)
        return EMPTY
    node = brackets.braced_set(parser, ("}",))
    items = node.args
    if node.head == "set":
        return items[0] if len(items) == 1 else Node("list", items)
    return node


def command(parser: Parser, token: Token) -> Node:
    text = token.text
    name = text[1:]
    if text in words.FRACTIONS:
        above, below = parser.argument(), parser.argument()
        return Node("div", (above, below))
    if text in words.BINOMIALS:
        above, below = parser.argument(), parser.argument()
        return call("binomial", above, below)
    if text == "\\sqrt":
        degree = None
        if parser.accept("["):
            degree = parser.nested(parser.sum)
            parser.expect("]")
        is_group = parser.at("{")
        inner = parser.argument() if is_group else parser.nested(parser.primary)
        return call("sqrt", inner) if degree is None else call("root", inner, degree)
    if name in names.FUNCTIONS and text in words.PLAIN_FUNCTIONS:
        return variables.function(parser, name)
    if name in names.CONSTANTS:
        return constant(names.CONSTANTS[name])
    if name in ("Gamma", "zeta") and parser.at("("):
        return variables.function(parser, name)
    if name in names.GREEK:
        return variables.subscripted(parser, name)
    if text in ("\\emptyset", "\\varnothing"):
        return EMPTY
    if text == "\\mathbb":
        return _number_set(parser)
    if text in names.WRAPPERS:
        if parser.at("{"):
            return parser.argument()
        return parser.primary()
    if text in names.ACCENTS:
        return symbol(f"{name}({brackets.raw_argument(parser)})")
    if text in ("\\ldots", "\\dots", "\\cdots", "\\vdots"):
        return symbol("...")
    if text in ("\\{", "\\lbrace"):
        return brackets.braced_set(parser, ("\\}", "\\rbrace"))
    if text in ("\\langle",):
        node = parser.nested(parser.items)
        parser.expect("\\rangle", ">")
        return Node("tuple", node.args) if node.head in ("list", "and") else node
    if text in ("\\lfloor", "\\lceil"):
        node = parser.nested(parser.sum)
        parser.expect("\\rfloor" if text == "\\lfloor" else "\\rceil")
        return call("floor" if text == "\\lfloor" else "ceiling", node)
    if text in ("\\lvert", "\\vert", "\\|", "\\lVert", "\\Vert"):
        closing = {"\\lvert": "\\rvert", "\\lVert": "\\rVert"}.get(text, text)
        return brackets.bars(
            parser, closing, "norm" if text in ("\\|", "\\lVert", "\\Vert") else "abs"
        )
    if text == "\\begin":
        return brackets.environment(parser)
    if text in integrals.BIG:
        return integrals.big(parser, integrals.BIG[text])
    if text == "\\lim":
        return integrals.limit(parser)
    if text in ("\\$", "\\pounds", "\\euro"):
        return Node("quantity", (parser.nested(parser.product), CURRENCIES[text]))
    if text in ("\\angle", "\\triangle"):
        return symbol(f"{name} {brackets.raw_argument(parser)}")
    raise ParseError(f"{text} is no command we know")


def _number_set(parser: Parser) -> Node:
    name = brackets.raw_argument(parser)
    positive = ""
    if parser.at("^", "_") and parser.peek().text in ("+", "*", "{"):
        parser.take()
        positive = brackets.raw_argument(parser)
    if name == "R" and positive in ("+", ">0"):
        return Node("interval", (number(0), INFINITY, True, True))
    if name == "R" and not positive:
        return REALS
    return symbol(f"set {name}{positive}")
