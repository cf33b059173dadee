"""What is written after a factor: powers, factorials, degrees, percent, primes."""

from loong_jax.verifiers.maths.expression import Node, ParseError, call, number, symbol
from loong_jax.verifiers.maths.reading import numerals, variables, words
from loong_jax.verifiers.maths.reading.parser import Parser
from loong_jax.verifiers.maths.reading.tokens import Token

_PARTS = {"\\permil": 1000, "\\textperthousand": 1000, "\\perthousand": 1000, "\\permyriad": 10_000}


def factor(parser: Parser) -> Node:
    """A primary with what is written after it: powers, factorials, degrees, percent."""
    return _with_postfixes(parser, parser.primary())


def _with_postfixes(parser: Parser, node: Node) -> Node:
    while True:
        token = parser.token
        if token.kind in ("word", "text"):
            if token.text in ("percent", "pct", "percentage"):
                parser.take()
                node = Node("percent", (node,))
            elif token.text == "per" and parser.peek().text == "cent":
                parser.take()
                parser.take()
                node = Node("percent", (node,))
            elif token.text in ("permille", "permil") or (
                token.text in ("per", "pro") and parser.peek().text in ("mille", "mil")
            ):
                if parser.take().text in ("per", "pro"):
                    parser.take()
                node = Node("percent", (node, number(1000)))
            elif token.text in ("rad", "radian", "radians"):
                parser.take()
                node = Node("mul", (node, number(1)))
            elif token.text in ("degrees", "degree", "deg"):
                parser.take()
                node = numerals.degrees(parser, node)
            else:
                return node
        elif token.text == "!" and token.kind == "sign":
            parser.take()
            node = call("double_factorial", node) if parser.accept("!") else call("factorial", node)
        elif token.text in ("%", "\\%"):
            parser.take()
            node = Node("percent", (node,))
        elif token.text in _PARTS:
            parser.take()
            node = Node("percent", (node, number(_PARTS[token.text])))
        elif token.text == "\\degree":
            parser.take()
            node = numerals.degrees(parser, node)
        elif token.text in ("^", "**") and token.kind == "sign":
            parser.take()
            node = _power(parser, node)
        elif token.text == "'" and token.kind == "sign" and node.head == "number":
            parts = 60 if not _double_prime(parser) else 3600  # of an angle
            node = Node("degree", (Node("div", (node, number(parts))),))
        elif token.text == "'" and token.kind == "sign" and node.head in ("symbol", "apply"):
            parser.take()
            node = Node(node.head, (node.args[0] + "'", *node.args[1:]))
            if node.head == "symbol" and parser.at("("):
                node = Node("apply", (node.args[0], *variables.in_brackets(parser)))
        elif token.text == "_" and token.kind == "sign" and node.head in ("number", "tuple"):
            node = numerals.based(parser, node)
        else:
            return node


def _double_prime(parser: Parser) -> bool:
    parser.take()
    return parser.accept("'")


def _power(parser: Parser, base: Node) -> Node:
    if parser.at("\\circ"):
        parser.take()
        return numerals.degrees(parser, base)
    if parser.at("\\prime"):
        parser.take()
        return symbol(f"{base.args[0]}'") if base.head == "symbol" else base
    if (
        parser.at("{")
        and parser.peek().text in ("\\circ", "\\prime", "o")
        and (parser.peek(2).text == "}")
    ):
        parser.take()
        is_degree = parser.take().text != "\\prime"
        parser.take()
        return numerals.degrees(parser, base) if is_degree else base
    if base.head in ("tuple", "bracket", "matrix") and _takes_transpose(parser):
        return _transposed(base)
    if parser.at("-", "+"):
        sign = parser.take().text
        exponent = parser.nested(parser.factor)
        exponent = Node("neg", (exponent,)) if sign == "-" else exponent
    elif parser.accept("{"):
        exponent = parser.nested(parser.sum)
        parser.expect("}")
    else:
        _split_letters(parser)
        exponent = parser.nested(parser.factor)
    if base.head == "percent" or exponent.head in ("tuple", "list", "bracket", "chain"):
        raise ParseError("no such power")
    return Node("pow", (base, exponent))


def _split_letters(parser: Parser) -> None:
    """Without braces one letter is raised: n^ne^{-n} is n^n e^{-n}."""
    word = parser.token
    if word.kind != "word" or len(word.text) < 2 or not word.text.isalpha():
        return
    if words.letters_of(word.text) == tuple(word.text):
        parser.replace(Token("word", word.text[0]), Token("word", word.text[1:]))


def _takes_transpose(parser: Parser) -> bool:
    """Whether T or \\top comes next, in braces or not."""
    mark = parser.mark()
    braces = parser.accept("{")
    while parser.accept("\\mathsf", "\\mathrm", "\\intercal"):
        braces |= parser.accept("{")
    if parser.take().text in ("T", "\\top", "\\intercal"):
        while braces and parser.accept("}"):
            pass
        return True
    parser.reset(mark)
    return False


def _transposed(node: Node) -> Node:
    rows = node.args if node.head == "matrix" else (node.args,)
    return Node("matrix", tuple(zip(*rows, strict=True)))
