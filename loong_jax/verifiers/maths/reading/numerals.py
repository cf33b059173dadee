"""Numbers of the grammar: decimals, recurring ones, mixed fractions, other bases, degrees."""

import itertools
import re
from fractions import Fraction

from loong_jax.verifiers.maths import expression as tree
from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import CostError, Node, ParseError
from loong_jax.verifiers.maths.reading import Parser, Token, brackets

MAX_EXPONENT = 5000  # of 1e5000
BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
          "ten": 10, "twelve": 12, "sixteen": 16}  # fmt: skip
_WORDED = {"binary": "2", "octal": "8", "hexadecimal": "16"}
_LETTERS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_SAID = names.patterns("numerals")


def numeral(parser: Parser, token: Token) -> Node:
    text = token.text.replace(",", "")
    if parser.at("\\overline", "\\bar", "\\dot") and "." in text:
        dotted = parser.take().text == "\\dot"
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
        is_prefix = mantissa == "0" and parser.token.kind == "word" and not parser.token.spaced
        node = parser.attempt(lambda: _prefixed(parser)) if is_prefix else None
        return node or tree.number(int(mantissa))
    digits = len(mantissa.replace(".", "").lstrip("0"))
    if parser.token.text.startswith("...") or parser.at("\\ldots", "\\dots", "\\cdots"):
        parser.take()
        return _repeating(mantissa)
    value = Fraction(text)
    return tree.number(value.numerator if value.denominator == 1 else value, max(digits, 1))


def _prefixed(parser: Parser) -> Node | None:
    """0x2A, whose x2A is two tokens."""
    word = ""
    while parser.token.kind in ("word", "number") and not parser.token.spaced:
        word += parser.take().text.lower()
    base = {"b": "2", "x": "16", "o": "8"}.get(word[0], "")
    return _in_base(word[1:], base) if word[1:].isalnum() and len(word) < 40 else None


def recurring(whole: str, cycle: str) -> Node:
    if not cycle.isdigit() or len(cycle) > 40:
        raise ParseError(f"{cycle[:20]!r} is no row of digits")
    places = len(whole.partition(".")[2])
    repeated = Fraction(int(cycle), 10**places * (10 ** len(cycle) - 1))
    return tree.number(Fraction(whole.rstrip(".") or "0") + repeated)


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
    values = (*map(_LETTERS.__getitem__, match["roman"]), 0)
    return sum(one if one >= after else -one for one, after in itertools.pairwise(values))


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


_MARKS = {"'": "'", '"': "''", "\\prime": "'", "^": "", "{": "", "}": ""}


def degrees(parser: Parser, node: Node) -> Node:
    """22 degrees 30' as 22.5: whole degrees, then minutes and seconds below 60."""
    if parser.token.is_word and parser.token.text in ("C", "F", "Celsius", "Fahrenheit"):
        return Node("labelled", (node, ("degrees" + parser.take().text[0],)))
    if node.head != "number" or not isinstance(node.args[0], int):
        return Node("degree", (node,))
    total = Fraction(node.args[0])
    for part, mark in ((60, "'"), (3600, "''")):
        following = (parser.peek(ahead).text for ahead in range(1, 7))
        marks = map(_MARKS.__getitem__, itertools.takewhile(_MARKS.__contains__, following))
        if parser.token.kind != "number" or "".join(marks) != mark:
            continue
        value = Fraction(parser.take().text.replace(",", ""))
        if value >= 60:
            raise ParseError(f"{value} parts of 60 in an angle")
        total += value / part
        while parser.accept(*_MARKS):
            pass
    return Node("degree", (tree.number(total),))


def based_text(text: str) -> Node | None:
    """2A_{16}, 204 (base 5), base 5: 204; one letter alone is a variable with a subscript."""
    if "_" in text:
        text = re.sub(r"\\(?:mathrm|text)\{([0-9A-F]+)\}", r"\1", text)
    if (match := _SAID.BASED.fullmatch(text)) is not None:
        return None if match[1].isdigit() or len(match[1]) < 2 else _in_base(*match.groups())
    if re.search("(?i)base|binary|octal|hexadecimal", text) is None:
        return None
    if (match := _SAID.IN_BASE.fullmatch(text) or _SAID.BASE_FIRST.fullmatch(text)) is not None:
        is_one = re.search(r"\d", match["digits"]) or match["digits"].isupper()
        return _in_base(match["digits"], match["base"]) if is_one else None
    match = _SAID.WORDED_BASE.fullmatch(text)
    return match and _in_base(match["digits"], _WORDED[match["base"].lower()])


def _in_base(digits: str, name: str) -> Node | None:
    base = int(name) if name.isdigit() else BASES.get(name.lower(), 0)
    try:
        return Node("based", (int(digits, base), base)) if base > 1 else None
    except ValueError:
        return None


_UNITS = str.split(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_ONES = {word: value for value, word in enumerate(_UNITS)}
_DECADES = str.split("twenty thirty forty fifty sixty seventy eighty ninety")
_TENS = {word: 10 * value for value, word in enumerate(_DECADES, 2)}
_PARTS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7,
          "eighth": 8, "ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12}  # fmt: skip
_TEN = rf"(?:{'|'.join(_DECADES)})(?:[\s-](?:{'|'.join(_UNITS[1:10])})\b)?"
_BELOW = rf"(?:{_TEN}|{'|'.join(_UNITS[:1:-1])})"
_AND = rf"(?:[\s-](?:and[\s-])?(?:{_BELOW}|one\b))?"
_HUNDREDS = rf"(?:{_BELOW}|one(?=[\s-](?:hun|thou)))(?:[\s-]hundred{_AND})?"
PATTERN = rf"{_HUNDREDS}(?:[\s-](?:thousand|million)(?:[\s-](?:and[\s-])?{_HUNDREDS})?)?"  # of one
_IN_TEXT = re.compile(
    rf"\b(?<!the )(?<!these )(?<!those )(?<!both )(?<!all )(?<!any )(?<!each )(?<!every )({PATTERN}"
    r"(?:[\s-](?:halves|thirds|quarters|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf)ths))?)\b",
    re.IGNORECASE,
)
_CJK_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"\u3007": 0, "两": 2}
_CJK_TENS = {"十": 10, "百": 100, "千": 1000}
_CJK_GROUPS = {"万": 10**4, "亿": 10**8}


def number_from_words(text: str) -> int | Fraction | None:
    """12 for "twelve" or "十二", 2/3 for "two thirds"; None for anything else."""
    if not text.isascii() and any(c in _CJK_DIGITS or c in _CJK_TENS for c in text):
        below, parted, above = text.partition("分之")  # 百分之二十五 is 25 of 100
        if not parted:
            return _cjk_number(text)
        share = _cjk_number(above), _cjk_number(below)
        return Fraction(share[0]) / share[1] if share[0] is not None and share[1] else None
    parts = [p for p in text.lower().replace("-", " ").split() if p != "and"]
    if len(parts) > 1 and parts[0] in ("minus", "negative"):
        value = number_from_words(" ".join(parts[1:]))
        return None if value is None else -value
    if len(parts) == 3 and parts[1] == "in":  # one in eight
        one, of = number_from_words(parts[0]), number_from_words(parts[2])
        return Fraction(one, of) if isinstance(one, int) and isinstance(of, int) and of else None
    if not parts or len(parts) > 12:
        return None
    if len(parts) in (1, 2) and (piece := parts[-1].removesuffix("s")) in _PARTS:
        count = {"a": 1, "an": 1, **_ONES}.get(parts[0]) if len(parts) == 2 else 1
        return Fraction(count, _PARTS[piece]) if count else None
    total = current = 0
    for part in parts:
        if part in _ONES and not (current % 10 or (current % 100 and _ONES[part] > 9)):
            current += _ONES[part]  # not nine and six
        elif part in _TENS and not current % 100:
            current += _TENS[part]
        elif part == "hundred":
            current = (current or 1) * 100
        elif part in ("thousand", "million", "billion"):
            total, current = total + (current or 1) * names.MULTIPLIERS[part], 0
        else:
            return None
    return total + current


def in_digits(text: str) -> str:
    """The text with digits for the numbers in words that count something in it."""
    return _IN_TEXT.sub(lambda m: str(number_from_words(m[0]) or m[0]), text)


def with_digits(text: str) -> str | None:
    """ "10 meters" for "ten meters": the words of a number at the start as digits."""
    parts = text.split()
    for count in range(min(len(parts) - 1, 8), 0, -1):
        value = number_from_words(" ".join(parts[:count]))
        if value is not None and parts[count - 1].lower() != "and":
            return " ".join([str(value), *parts[count:]])
    return None


def _cjk_number(text: str) -> int | Fraction | None:
    if text.startswith("负"):
        value = _cjk_number(text[1:])
        return None if value is None else -value
    whole, point, decimals = text.partition("点")
    if point:
        digits = "".join(str(_CJK_DIGITS.get(character, "x")) for character in decimals)
        before = _cjk_number(whole)
        return Fraction(f"{before}.{digits}") if digits.isdigit() and before is not None else None
    total, digit, run = 0, None, ""
    for character in text:
        if character in _CJK_DIGITS:
            digit = _CJK_DIGITS[character]
            run += str(digit)
        elif character in _CJK_TENS:
            total += (1 if digit is None else digit) * _CJK_TENS[character]
            digit, run = None, "x"
        elif character in _CJK_GROUPS:
            total, digit, run = (total + (digit or 0)) * _CJK_GROUPS[character], None, "x"
        else:
            return None
    if run.isdigit() and len(run) > 1 and not total:
        return int(run)
    return total + (digit or 0)


_NAMES = {"i": "set Z", "n": "set N", "r": "set Q"}


def read(words: str) -> Node | None:
    """The set that a normal form names (see `wording.normal`); None for anything else."""
    if (named := _SAID.NAMED.fullmatch(words)) is not None:
        return tree.symbol(_NAMES[named["name"][0]])
    if (match := _SAID.REALS.fullmatch(words)) is None:
        return None
    sign = match["sign"].replace("-", "").removeprefix("strictly ")
    if sign == "nonzero":
        return Node("setminus", (tree.REALS, Node("set", (tree.ZERO,))))
    is_open = not sign.startswith("non")
    if sign in ("nonnegative", "positive"):
        return Node("interval", (tree.ZERO, tree.INFINITY, is_open, True))
    return Node("interval", (tree.negate(tree.INFINITY), tree.ZERO, True, is_open))
