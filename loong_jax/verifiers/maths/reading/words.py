"""Words and commands in formulas: variables, functions, sums and integrals, and just words."""

import re

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import (
    ONE,
    Node,
    ParseError,
    call,
    constant,
    number,
    rewritten,
    symbol,
)
from loong_jax.verifiers.maths.reading import Parser, Token, brackets
from loong_jax.verifiers.maths.units import UNITS

_SHORT_WORDS = frozenset(
    str.split("is of in to or an at by if we be it so no do me go us as on am up he my ok vs sq")
)
_PRODUCTS = frozenset(str.split("abc abcd abcde xyz bac acb cab"))
_VOWELS = frozenset("aeiou")


def letters_of(word: str) -> tuple[str, ...] | None:
    """Names of the variables a plain word is the product of; None if it is just a word."""
    letters = word.rstrip("0123456789")
    if len(letters) == 1:
        return (word,)
    if letters != word:
        return (word,) if len(letters) <= 2 and letters not in _SHORT_WORDS else None
    if word in names.GREEK or word in ("pH", "pOH", "pK") or (word.isupper() and len(word) <= 4):
        return (word,)
    is_short = len(word) == 2 or (len(word) <= 4 and not _VOWELS & set(word.lower()))
    is_product = word in _PRODUCTS or (is_short and word.lower() not in _SHORT_WORDS)
    return tuple(word) if is_product else None


def is_leading(token: Token, following: Token) -> bool:
    """True if this word stands before the expression and is no part of it."""
    word = token.word
    if word not in names.LEADING_WORDS and word != "either":
        return False
    is_article = word == "a" and (following.kind == "number" or following.text == "total")
    return is_article or token.kind == "text" or len(word) > 1


BIG = {"\\sum": "sum", "\\prod": "product", "\\int": "integral"}
FRACTIONS = ("\\frac", "\\dfrac", "\\tfrac", "\\cfrac", "\\sfrac", "\\nicefrac")
BINOMIALS = ("\\binom", "\\dbinom", "\\tbinom")
PLAIN_FUNCTIONS = frozenset("\\" + name for name in names.PREFIX_FUNCTIONS)


def starts_operand(parser: Parser, token: Token) -> bool:
    text = token.text
    match token.kind:
        case "sign":
            return text in ("(", "[", "{", "-", "+", "$") or (text == "|" and not parser.bars)
        case "command":
            return text in parser.starters
        case "text":
            return len(text) == 1 or text in names.PREFIX_FUNCTIONS
        case "word" if text in names.JOIN_WORDS:
            return text == "y"
        case "word":
            is_name = text in names.FUNCTIONS or text in names.CONSTANTS or text in brackets.OBJECTS
            return is_name or letters_of(text) is not None
    return token.kind != "end"


def from_word(parser: Parser, token: Token) -> Node:
    word = token.text
    if word in brackets.OBJECTS and (parser.at("(", ".") or word in ("EmptySet", "Reals")):
        return brackets.build(parser, word)
    if word in ("np", "numpy", "math", "sympy", "sp", "torch", "jnp") and parser.at("."):
        parser.take()
        token = parser.take()
        if not token.is_word:
            raise ParseError(f"{token.text!r} is no name")
        return from_word(parser, token)
    if word in ("True", "False") and parser.at(",", ")"):
        return symbol(word)  # a flag of sympy's
    if word in names.CONSTANTS:
        return constant(names.CONSTANTS[word])
    bare = word.rstrip("0123456789")
    if word not in names.FUNCTIONS and bare != word and bare in names.PREFIX_FUNCTIONS:
        parser.replace(Token("number", word[len(bare) :]), parser.token)  # sin2x
        return function(parser, bare)
    opening = ("(",) if word == "zeta" else ("(", "^", "_", "{")
    if word in names.PREFIX_FUNCTIONS or (word in names.FUNCTIONS and parser.at(*opening)):
        return function(parser, word)
    is_text = token.kind == "text" and len(word) > 1
    is_power_of_e = len(word) == 2 and word[1] == "e" and word[0].isalpha() and parser.at("^")
    letters = tuple(word) if is_power_of_e else letters_of(word)  # Be^x, though "be" is a word
    if is_text or letters is None:
        is_name = parser.at("=", "_") and word.isalpha()  # Area = 5
        if is_name or (is_text and parser.at("=", "\\approx", ":", "(", "_", "^")):
            return subscripted(parser, word)
        raise ParseError(f"{word!r} is a word")
    if len(letters) > 1:
        parser.replace(Token("word", letters[-1]), parser.token)
        return Node("mul", (*map(_letter, letters[:-1]), parser.factor()))
    return subscripted(parser, "".join(letters))


def _letter(name: str) -> Node:
    return constant(name) if name in ("e", "i") else symbol(name)


_POLYNOMIALS = frozenset("PQRTpqruvwy")  # P(x) = ..., where no product is meant
CHOICES = {"C": "binomial", "P": "permutations", "A": "permutations"}  # C_5^2 and P(5, 2)


def subscripted(parser: Parser, name: str) -> Node:
    """A variable with what may follow its name: a subscript, or the argument of f, g or h."""
    if parser.accept("_"):
        below = brackets.raw_argument(parser)
        is_number = below.isdigit() and len(below) < 4 and int(below) > 1
        is_count = is_number or below in ("n", "m", "N", "k")
        if name in CHOICES and is_count and parser.accept("^"):
            lower = number(int(below)) if below.isdigit() else symbol(below)
            return call(CHOICES[name], lower, parser.argument())
        if name == "log":
            raise ParseError("log without argument")
        name = f"{name}_{below}"
    elif name in ("e", "i"):
        return constant(name)
    mark, is_called = parser.position, parser.at("(") and not parser.token.spaced
    if name[0] in "fgh" and (len(name) == 1 or name[1] in "_'"):
        if is_called:
            return Node("apply", (name, *brackets.arguments_of(parser)))
        if parser.at("^") and parser.peek().text == "{" and parser.peek(2).text == "-":
            parser.take()
            if brackets.raw_argument(parser) == "-1" and parser.at("("):
                return Node("apply", (name + "^-1", *brackets.arguments_of(parser)))
            parser.position = mark
    elif is_called and (name in _POLYNOMIALS or name in ("C", "P")):
        arguments = brackets.arguments_of(parser)
        if name in _POLYNOMIALS and parser.at("=") and [a.head for a in arguments] == ["symbol"]:
            return Node("apply", (name, *arguments))
        if name in ("C", "P") and len(arguments) == 2:
            return call(CHOICES[name], *arguments)
        parser.position = mark
    return symbol(name)


def function(parser: Parser, spelled: str) -> Node:
    name = names.FUNCTIONS[spelled]
    power = base = None
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
        arguments = brackets.arguments_of(parser) if parser.at("(") else (parser.argument(),)
        if parser.at("^", "**") and power is not None:
            raise ParseError("two powers of one function")
    elif name != "sqrt" and parser.accept("["):
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
    node = brackets.simple_call(name, arguments)
    return node if power is None else Node("pow", (node, power))


def _run(parser: Parser) -> Node:
    """The argument of sin in "sin 2x cos x": factors up to a sign or another function."""
    negative = parser.accept("-")
    node = parser.nested(parser.factor)
    while True:
        token = parser.token
        is_function = token.text in PLAIN_FUNCTIONS or token.text in names.PREFIX_FUNCTIONS
        is_join = len(token.text) > 1 and (token.text in names.JOIN_WORDS or token.text in UNITS)
        is_factor = token.kind == "word" and letters_of(token.text) and not is_join
        is_command = token.kind == "command" and token.text in parser.starters
        if is_function or not (is_factor or is_command):
            break
        node = Node("mul", (node, parser.nested(parser.factor)))
    return Node("neg", (node,)) if negative else node


_END = Token("command", "\\differential")  # stands where dx stood; starts nothing


def big(parser: Parser, text: str) -> Node:
    """Parses the rest of a sum, product or integral after its sign."""
    head, bounds = BIG[text], {}
    while parser.at("_", "^"):
        side = parser.take().text
        bounds[side] = parser.argument()
    if head == "integral":
        if len(bounds) == 1:
            raise ParseError("only integrals with bounds and dx are read")
        variable, ends_there = _take_differential(parser)
        body = number(1) if ends_there and parser.at(_END.text) else parser.nested(parser.sum)
        if ends_there:
            parser.expect(_END.text)
        if not bounds:
            return Node("apply", ("antiderivative", symbol(variable), body))
        return Node(head, (variable, bounds["_"], bounds["^"], body))
    low = bounds.get("_", ONE)
    if len(bounds) < 2 or low.head != "chain" or low.args[1].head not in ("symbol", "constant"):
        raise ParseError(f"{head} without bounds")
    variable, low = low.args[1].args[0], low.args[2]
    index = constant(variable)  # the i of a sum over i is no imaginary unit
    body = rewritten(
        parser.nested(parser.product), lambda node: symbol(variable) if node == index else None
    )
    return Node(head, (variable, low, bounds["^"], body))


def limit(parser: Parser, text: str) -> Node:
    if not parser.accept("_"):
        raise ParseError("lim without its variable")
    approach = parser.argument()
    if approach.head != "chain" or approach.args[0] != ("->",) or approach.args[1].head != "symbol":
        raise ParseError("lim without its variable")
    body = parser.nested(parser.product)
    return Node("limit", (approach.args[1].args[0], approach.args[2], body))


def _take_differential(parser: Parser) -> tuple[str, bool]:
    """Finds this integral's dx, takes it out, and returns x and whether the integrand ends there.

    It need not where dx is the numerator of a fraction. Inner integrals come first with theirs.
    """
    depth, is_open, ahead = 0, 1, -1
    fractions: list[int] = []  # depths of numerators
    while (token := parser.peek(ahead := ahead + 1)).kind != "end" and depth >= 0:
        following, is_sign = parser.peek(ahead + 1), token.kind in ("sign", "command")
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
                elif not before and parser.peek(ahead - 1).text == "{":
                    instead.append(Token("number", "1"))  # \frac{dx}{x}
                parser.replace(*instead, ahead=ahead, instead_of=num_tokens)
                return variable, depth == 0
    raise ParseError("only integrals with bounds and dx are read")


def _differential(token: Token, following: Token) -> tuple[str, str, int] | None:
    """(letters before dx in its word, variable, number of tokens of dx)."""
    if not token.is_word:
        return None
    if token.text == "d":
        name = following.text.removeprefix("\\")
        is_name = name in names.GREEK or (len(name) == 1 and name.isalpha())
        return ("", name, 2) if is_name else None
    found = re.fullmatch("(?s)(.*)d([a-zA-Z])", token.text)
    return (found[1], found[2], 1) if found else None
