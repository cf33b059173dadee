"""Primaries of the grammar: what a factor is before its powers, by its first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loong_jax.verifiers.maths.expression import EMPTY, Node, ParseError, call, symbol
from loong_jax.verifiers.maths.reading import brackets, commands, numerals, variables
from loong_jax.verifiers.maths.reading.tokens import Token
from loong_jax.verifiers.maths.units import CURRENCIES

if TYPE_CHECKING:
    from loong_jax.verifiers.maths.reading.parser import Parser


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
        return commands.command(parser, token)
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
