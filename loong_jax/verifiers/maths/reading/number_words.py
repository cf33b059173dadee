"""Numbers and sets of numbers as words: twelve, two thirds, 十二."""

import re
from fractions import Fraction

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import INFINITY, Node, negate, number, symbol

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
    if any(character in _CJK_DIGITS or character in _CJK_TENS for character in text):
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
        share = [number_from_words(word) for word in (parts[0], parts[2])]
        both = isinstance(share[0], int) and isinstance(share[1], int) and share[1]
        return Fraction(share[0], share[1]) if both else None  # type: ignore[arg-type]
    if not parts or len(parts) > 12:
        return None
    if len(parts) in (1, 2) and (piece := parts[-1].removesuffix("s")) in _PARTS:
        count = _ONES.get(parts[0]) if len(parts) == 2 else 1
        count = 1 if len(parts) == 2 and parts[0] in ("a", "an") else count
        return Fraction(count, _PARTS[piece]) if count else None
    total, current, seen = 0, 0, False
    for part in parts:
        if part in _ONES:
            if current % 10 or (current % 100 and _ONES[part] > 9):
                return None  # nine and six
            current += _ONES[part]
        elif part in _TENS:
            if current % 100:
                return None
            current += _TENS[part]
        elif part == "hundred":
            current = (current or 1) * 100
        elif part in ("thousand", "million", "billion"):
            total += (current or 1) * names.MULTIPLIERS[part]
            current = 0
        else:
            return None
        seen = True
    return total + current if seen else None


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


_ALL = r"(?:(?:the )?set of )?(?:all |every |any )?(?:the )?"
_REALS = re.compile(
    rf"{_ALL}(?:(?P<sign>strictly positive|strictly negative|positive|negative|non-?negative|"
    r"non-?positive|nonzero|non-zero) )(?:real numbers?|reals?)"
)
_NAMED = re.compile(rf"{_ALL}(?P<name>integers?|natural numbers?|rational numbers?|rationals)")
_NAMES = {"i": "set Z", "n": "set N", "r": "set Q"}


def read(words: str) -> Node | None:
    """The set that a normal form names (see `phrases.normal`); None for anything else."""
    if (named := _NAMED.fullmatch(words)) is not None:
        return symbol(_NAMES[named["name"][0]])
    match = _REALS.fullmatch(words)
    if match is None:
        return None
    sign = match["sign"].replace("-", "")
    low, high = negate(INFINITY), INFINITY
    if sign == "nonzero":
        whole = Node("interval", (low, high, True, True))
        return Node("setminus", (whole, Node("set", (number(0),))))
    is_open = not sign.startswith("non")
    if sign in ("nonnegative", "positive", "strictly positive"):
        return Node("interval", (number(0), high, is_open, True))
    return Node("interval", (low, number(0), True, is_open))
