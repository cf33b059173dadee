"""Factors of the grammar: a primary by its first token, and what is written after it."""

from loong_jax.verifiers.maths import expression as tree
from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import Node, ParseError
from loong_jax.verifiers.maths.reading import Parser, Token, brackets, numerals, sums, words
from loong_jax.verifiers.maths.units import CURRENCIES

_SHARES = {  # after a number: of how many parts
    **dict.fromkeys(("percent", "pct", "percentage", "per cent", "%", "\\%"), 100),
    **dict.fromkeys(("permille", "permil", "per mille", "per mil", "pro mille", "pro mil"), 1000),
    **dict.fromkeys(("\\permil", "\\textperthousand", "\\perthousand"), 1000),
    "\\permyriad": 10_000,
}
_CONSTANTS = {
    **dict.fromkeys(("\\emptyset", "\\varnothing"), tree.EMPTY),
    **dict.fromkeys(("\\ldots", "\\dots", "\\cdots", "\\vdots"), tree.symbol("...")),
}
_ENCLOSED = {"\\lfloor": ("\\rfloor", "floor"), "\\lceil": ("\\rceil", "ceiling"),
             "\\lvert": ("\\rvert", "abs"), "\\vert": ("\\vert", "abs"), "\\|": ("\\|", "norm"),
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
    token = parser.take()
    if token.kind == "number":
        return numerals.numeral(parser, token)
    if token.kind == "recurring":
        whole, _, cycle = token.text[:-1].partition("(")
        return numerals.recurring(whole, cycle)
    if token.kind in ("word", "text"):
        return words.from_word(parser, token)
    if token.kind == "command":
        return command(parser, token)
    if token.text == "(":
        return brackets.parenthesised(parser)
    if token.text in ("[", "]"):
        return brackets.square(parser, token.text)
    if token.text == "{" and parser.accept("}"):
        return _prescript(parser) if parser.accept("_", "^") else tree.EMPTY
    if token.text == "{":  # a LaTeX group, or a set or dictionary of Python
        node = brackets.braced_set(parser, "}")
        if node.head != "set":
            return node
        return node.args[0] if len(node.args) == 1 else Node("list", node.args)
    if token.text == "|":
        return brackets.bars(parser, *_ENCLOSED["|"])
    if token.text in CURRENCIES:
        return Node("quantity", (parser.nested(parser.product), CURRENCIES[token.text]))
    if token.text in ("-", "+"):
        raise ParseError("a sign stands where a factor belongs")
    if token.text in ("_", "^"):
        return _prescript(parser)
    if token.text.startswith("..."):
        return tree.symbol("...")
    raise ParseError(f"{token.text or 'the end'!r} starts no expression")


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
    return parser.nested(lambda: primary(parser))


def _prescript(parser: Parser) -> Node:
    """_5C_2 and ^5C_2 after an empty group."""
    above = argument(parser)
    token = parser.take()
    if token.text not in ("C", "P") or not parser.accept("_"):
        raise ParseError("a subscript without its letter")
    return tree.call("binomial" if token.text == "C" else "permutations", above, argument(parser))


def command(parser: Parser, token: Token) -> Node:
    text, name = token.text, token.text[1:]
    if text in (*words.FRACTIONS, *words.BINOMIALS):
        pair = parser.argument(), parser.argument()
        return Node("div", pair) if text in words.FRACTIONS else tree.call("binomial", *pair)
    if text == "\\sqrt":
        degree = None
        if parser.accept("["):
            degree = parser.nested(parser.sum)
            parser.expect("]")
        is_group = parser.at("{")
        inner = parser.argument() if is_group else parser.nested(lambda: primary(parser))
        return tree.call("sqrt", inner) if degree is None else tree.call("root", inner, degree)
    is_function = name in names.FUNCTIONS and text in words.PLAIN_FUNCTIONS
    if is_function or (name in ("Gamma", "zeta") and parser.at("(")):
        return words.function(parser, name)
    if name in names.CONSTANTS:
        return tree.constant(names.CONSTANTS[name])
    if name in names.GREEK:
        return words.subscripted(parser, name)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text == "\\mathbb":
        return _number_set(parser)
    if text in names.WRAPPERS:
        return parser.argument() if parser.at("{") else primary(parser)
    if text in names.ACCENTS:
        return tree.symbol(f"{name}({brackets.raw_argument(parser)})")
    if text in ("\\{", "\\lbrace"):
        return brackets.braced_set(parser, "\\}", "\\rbrace")
    if text == "\\langle":
        node = parser.nested(parser.items)
        parser.expect("\\rangle", ">")
        return Node("tuple", node.args) if node.head in ("list", "and") else node
    if text in ("\\lfloor", "\\lceil"):
        node = parser.nested(parser.sum)
        parser.expect(_ENCLOSED[text][0])
        return tree.call(_ENCLOSED[text][1], node)
    if text in _ENCLOSED:
        return brackets.bars(parser, *_ENCLOSED[text])
    if text == "\\begin":
        return brackets.environment(parser)
    if text in words.BIG:
        return sums.big(parser, words.BIG[text])
    if text == "\\lim":
        return sums.limit(parser)
    if text in ("\\$", "\\pounds", "\\euro"):
        return Node("quantity", (parser.nested(parser.product), CURRENCIES[text]))
    if text in ("\\angle", "\\triangle"):
        return tree.symbol(f"{name} {brackets.raw_argument(parser)}")
    raise ParseError(f"{text} is no command we know")


def _number_set(parser: Parser) -> Node:
    name = brackets.raw_argument(parser)
    positive = ""
    if parser.at("^", "_") and parser.peek().text in ("+", "*", "{"):
        parser.take()
        positive = brackets.raw_argument(parser)
    if name == "R" and positive in ("+", ">0"):
        return Node("interval", (tree.number(0), tree.INFINITY, True, True))
    if name == "R" and not positive:
        return tree.REALS
    return tree.symbol(f"set {name}{positive}")
