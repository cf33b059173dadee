"""Numbers of the grammar: decimals, recurring ones, mixed fractions, other bases, degrees."""

import re
from fractions import Fraction

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import CostError, Node, ParseError, number
from loong_jax.verifiers.maths.reading import brackets
from loong_jax.verifiers.maths.reading.parser import Parser
from loong_jax.verifiers.maths.reading.tokens import Token

MAX_EXPONENT = 5000  # of 1e5000
BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
          "ten": 10, "twelve": 12, "sixteen": 16}  # fmt: skip
_LETTERS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_SAID = names.patterns("numerals")


def numeral(parser: Parser, token: Token) -> Node:
    text = token.text.replace(",", "")
    if parser.at("\\overline", "\\bar", "\\dot") and "." in text:
        dotted = parser.at("\\dot")
        parser.take()
        cycle = brackets.raw_argument(parser)
        if dotted and parser.token.kind == "number" and parser.peek().text == "\\dot":
            cycle += parser.take().text
        if dotted and parser.accept("\\dot"):
            cycle += brackets.raw_argument(parser)
        return recurring(text, cycle)
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        raise CostError(f"the exponent {exponent[:9]} is above {MAX_EXPONENT}")
    if "." not in mantissa and not exponent:
        if mantissa == "0" and parser.token.kind == "word" and not parser.token.spaced:
            return _prefixed(parser)
        return number(int(mantissa))
    digits = len(mantissa.replace(".", "").lstrip("0"))
    if parser.token.text.startswith("...") or parser.at("\\ldots", "\\dots", "\\cdots"):
        parser.take()
        return _repeating(mantissa)
    value = Fraction(text)
    if value.denominator == 1:
        return number(value.numerator, max(digits, 1))
    return number(value, max(digits, 1))


def _prefixed(parser: Parser) -> Node:
    mark = parser.mark()
    word = parser.take().text.lower()
    while parser.token.kind in ("word", "number") and not parser.token.spaced:  # x2A is two tokens
        word += parser.take().text.lower()
    base = {"b": 2, "x": 16, "o": 8}.get(word[0])
    if base is not None and word[1:].isalnum() and len(word) < 40:
        try:
            return Node("based", (int(word[1:], base), base))
        except ValueError:
            pass
    parser.reset(mark)
    return number(0)


def recurring(whole: str, cycle: str) -> Node:
    if not cycle.isdigit() or len(cycle) > 40:
        raise ParseError(f"{cycle[:20]!r} is no row of digits")
    places = len(whole.partition(".")[2])
    repeated = Fraction(int(cycle), 10**places * (10 ** len(cycle) - 1))
    return number(Fraction(whole.rstrip(".") or "0") + repeated)


def _repeating(text: str) -> Node:
    """0.1666... : the shortest cycle that the digits end on at least twice, thrice if single."""
    decimals = text.partition(".")[2]
    for length in range(1, len(decimals) // 2 + 1):
        cycle = decimals[-length:]
        if decimals.endswith(cycle * (3 if length == 1 else 2)):
            return recurring(text[: len(text) - length], cycle)
    raise ParseError(f"{text[:20]}... goes on in a way we cannot tell")


def roman(text: str) -> int | None:
    """14 for XIV: a canonical Roman numeral of two letters or more, which is all of the text."""
    match = _SAID.ROMAN.fullmatch(text)
    if match is None or len(match["roman"]) < 2:
        return None
    total, before = 0, 0
    for letter in reversed(match["roman"]):
        value = _LETTERS[letter]
        total += value if value >= before else -value
        before = max(before, value)
    return total


def based(parser: Parser, node: Node) -> Node:
    parser.expect("_")
    text = brackets.raw_argument(parser).strip("()")
    base = int(text) if text.isdigit() and len(text) < 3 else BASES.get(text.lower())
    value = node.args[0] if node.head == "number" else None
    if base is None or not 2 <= base <= 36 or not isinstance(value, int):
        raise ParseError(f"{text[:20]!r} is no base")
    try:
        return Node("based", (int(str(value), base), base))
    except ValueError as error:
        raise ParseError(str(error)[:80]) from None


def degrees(parser: Parser, node: Node) -> Node:
    token = parser.token
    if token.kind in ("word", "text") and token.text in ("C", "F", "Celsius", "Fahrenheit"):
        parser.take()
        return Node("labelled", (node, ("degrees" + token.text[0],)))
    return Node("degree", (_with_minutes(parser, node),))


def _with_minutes(parser: Parser, node: Node) -> Node:
    """22 degrees 30' as 22.5: whole degrees, then minutes and seconds below 60."""
    if node.head != "number" or not isinstance(node.args[0], int):
        return node
    total = Fraction(node.args[0])
    for part, mark in ((60, "'"), (3600, "''")):
        if parser.token.kind != "number" or _marks(parser) != mark:
            continue
        value = Fraction(parser.take().text.replace(",", ""))
        if value >= 60:
            raise ParseError(f"{value} parts of 60 in an angle")
        total += value / part
        while parser.at("'", '"', "^", "{", "}", "\\prime"):
            parser.take()
    return number(total)


def _marks(parser: Parser) -> str:
    """The marks of minutes or seconds after the next number: ', '', or ^{\\prime}."""
    marks = ""
    for ahead in range(1, 7):
        text = parser.peek(ahead).text
        if text not in ("'", '"', "^", "{", "}", "\\prime") or parser.peek(ahead).kind == "end":
            break
        marks += {"'": "'", '"': "''", "\\prime": "'"}.get(text, "")
    return marks


_BASES_IN_WORDS = {"binary": 2, "octal": 8, "hexadecimal": 16}


def based_text(text: str) -> Node | None:
    """2A_{16}: digits that are letters too; one letter alone is a variable with a subscript."""
    if "_" in text:
        text = re.sub(r"\\(?:mathrm|text)\{([0-9A-F]+)\}", r"\1", text)
    match = _SAID.BASED.fullmatch(text)
    if match is None and re.search("base|binary|octal|hexadecimal", text.lower()):
        return _in_named_base(text)
    if match is None or match[1].isdigit() or len(match[1]) < 2:
        return None
    return _in_base(match[1], int(match[2]))


def _in_named_base(text: str) -> Node | None:
    """204 (base 5); base 5: 204."""
    match = _SAID.IN_BASE.fullmatch(text) or _SAID.BASE_FIRST.fullmatch(text)
    if match is None and (match := _SAID.WORDED_BASE.fullmatch(text)) is not None:
        return _in_base(match["digits"], _BASES_IN_WORDS[match["base"].lower()])
    if match is None:
        return None
    base, digits = match["base"].lower(), match["digits"]
    if not any(character.isdigit() for character in digits) and not digits.isupper():
        return None
    return _in_base(digits, int(base) if base.isdigit() else BASES.get(base, 0))


def _in_base(digits: str, base: int) -> Node | None:
    try:
        return Node("based", (int(digits, base), base)) if base > 1 else None
    except ValueError:
        return None
