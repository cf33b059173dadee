"""Numbers in another base, named in words or by a subscript: 204 (base 5), 2A_{16}."""

import re

from loong_jax.verifiers.maths.expression import Node
from loong_jax.verifiers.maths.reading import numerals

_BASED = re.compile(
    r"(?:\\(?:text|mathrm)\{)?\(?([0-9A-Fa-f]{1,40})\)?\}?_\{?(1[1-6])\}?"  # 2A_{16}
)
_IN_BASE = re.compile(
    r"(?P<digits>[0-9A-Za-z]{1,40})(?:[\s,$]*\(?\s*(?:in\s+)?|_\{?\s*\\(?:text|mathrm)\{\s*)"
    r"base[\s}-]*(?P<base>\d{1,2}|[a-z]{3,7})[\s)}]*",
    re.IGNORECASE,
)
_BASE_FIRST = re.compile(
    r"(?:in\s+)?base[\s-]*(?P<base>\d{1,2}|[a-z]{3,7})[\s:,]+\$?(?P<digits>[0-9A-Za-z]{1,40})",
    re.IGNORECASE,
)
_WORDED_BASE = re.compile(
    r"(?P<digits>[0-9A-F]{1,40})[\s$]*\(?(?:in\s+)?(?P<base>binary|octal|hexadecimal)\)?",
    re.IGNORECASE,
)
_BASES_IN_WORDS = {"binary": 2, "octal": 8, "hexadecimal": 16}


def based(text: str) -> Node | None:
    """2A_{16}: digits that are letters too; one letter alone is a variable with a subscript."""
    match = _BASED.fullmatch(text)
    if match is None and re.search("base|binary|octal|hexadecimal", text.lower()):
        return _in_named_base(text)
    if match is None or match[1].isdigit() or len(match[1]) < 2:
        return None
    return _in_base(match[1], int(match[2]))


def _in_named_base(text: str) -> Node | None:
    """204 (base 5); base 5: 204."""
    match = _IN_BASE.fullmatch(text) or _BASE_FIRST.fullmatch(text)
    if match is None and (match := _WORDED_BASE.fullmatch(text)) is not None:
        return _in_base(match["digits"], _BASES_IN_WORDS[match["base"].lower()])
    if match is None:
        return None
    base, digits = match["base"].lower(), match["digits"]
    if not any(character.isdigit() for character in digits) and not digits.isupper():
        return None
    return _in_base(digits, int(base) if base.isdigit() else numerals.BASES.get(base, 0))


def _in_base(digits: str, base: int) -> Node | None:
    try:
        return Node("based", (int(digits, base), base)) if base > 1 else None
    except ValueError:
        return None
