"""Calls of known functions: sin 2x, log_2(8), max(1, 2), sin^2 x."""

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import Node, ParseError, number
from loong_jax.verifiers.maths.reading import objects, words
from loong_jax.verifiers.maths.reading.parser import Parser
from loong_jax.verifiers.maths.reading.tokens import Token
from loong_jax.verifiers.maths.units import UNITS


def in_brackets(parser: Parser) -> tuple[Node, ...]:
    parser.expect("(")
    if parser.accept(")"):
        return ()
    saved, parser.bars = parser.bars, 0
    node = parser.nested(parser.items)
    parser.bars = saved
    parser.expect(")")
    return node.args if node.head == "list" else (node,)


def function(parser: Parser, spelled: str) -> Node:
    name = names.FUNCTIONS[spelled]
    power: Node | None = None
    base: Node | None = None
    while parser.at("^", "_", "**"):
        if parser.take().text == "_":
            base = parser.argument()
        else:
            power = parser.argument()
    if power == Node("neg", (number(1),)) or power == number(-1):
        if name not in names.INVERSES:
            raise ParseError(f"{spelled}^-1 may be an inverse or a reciprocal")
        name, power = names.INVERSES[name], None
    if parser.at("(") or (parser.at("{") and name != "set"):
        arguments = in_brackets(parser) if parser.at("(") else (parser.argument(),)
        if parser.at("^", "**") and power is not None:
            raise ParseError("two powers of one function")
    elif parser.at("[") and name not in ("sqrt",):
        parser.take()
        arguments = (parser.nested(parser.sum),)
        parser.expect("]")
    else:
        arguments = (_run(parser),)
    if not arguments:
        raise ParseError(f"{spelled}() without argument")
    if base is not None:
        if name not in ("log", "max", "min"):
            raise ParseError(f"{spelled} with a subscript")
        arguments = (*arguments, base) if name == "log" else arguments
    if name in ("gcd", "lcm", "max", "min", "mod") and len(arguments) == 1:
        inner = arguments[0]
        arguments = inner.args if inner.head in ("list", "tuple", "bracket", "set") else arguments
    node = objects.simple_call(name, arguments)
    return node if power is None else Node("pow", (node, power))


def _run(parser: Parser) -> Node:
    """The argument of sin in "sin 2x cos x": factors up to a sign or another function."""
    negative = parser.accept("-")
    node = parser.nested(parser.factor)
    while True:
        token = parser.token
        if token.text in words.PLAIN_FUNCTIONS or token.text in names.PREFIX_FUNCTIONS:
            break
        if token.kind == "word" and words.letters_of(token.text) and not _is_join(token):
            pass
        elif not (token.kind == "command" and words.starts_command(token.text)):
            break
        node = Node("mul", (node, parser.nested(parser.factor)))
    return Node("neg", (node,)) if negative else node


def _is_join(token: Token) -> bool:
    return len(token.text) > 1 and (token.text in names.JOIN_WORDS or token.text in UNITS)
