"""Notations that are no arithmetic: propositional logic by its truth tables, abelian groups."""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

MAX_FORMULA_CHARS = 200
MAX_LETTERS = 6
MAX_DEPTH = 30
_ARROW = r"\\(?:long)?rightarrow\b|\\(?:Long)?Rightarrow\b|\\to\b|\\implies\b"
_BOTH_WAYS = r"\\(?:long)?leftrightarrow\b|\\(?:Long)?Leftrightarrow\b|\\iff\b"
_SPELLINGS = (
    ("not", r"\\neg\b|\\lnot\b|\\sim\b|\u00ac|~(?=\s*[A-Za-z(~])"),
    ("iff", rf"{_BOTH_WAYS}|\u2194|\u21d4|<[-=]+>"),
    ("implies", rf"{_ARROW}|\u2192|\u21d2|[-=]>"),
    ("xor", r"\\oplus\b|\u2295"),
    ("and", r"\\land\b|\\wedge\b|\u2227"),
    ("or", r"\\lor\b|\\vee\b|\u2228"),
    ("(", r"\\left\s*[(\[]|[(\[]"),
    (")", r"\\right\s*[)\]]|[)\]]"),
)
_WORDS = r"(?P<said>(?<![A-Za-z])(?:not|and|or|implies|iff|if and only if)(?![A-Za-z]))"
_TOKEN = re.compile(
    r"\s+|\$|\\[ ,;:!]|\\q?quad\b|\\(?:text|mathrm)\{\s*(?=(?:and|or|not|implies|iff)\s*\})|\}|"
    + "|".join(f"(?P<k{index}>{pattern})" for index, (_, pattern) in enumerate(_SPELLINGS))
    + f"|{_WORDS}|(?P<letter>[A-Za-z])(?![A-Za-z])"
)
_CONNECTIVE = re.compile("|".join(pattern for _, pattern in _SPELLINGS[:6]))
_LEVELS = ("iff", "implies", "or", "xor", "and")
Formula = Any  # a letter, or (connective, operand, ...)


class _NoFormula(ValueError):
    pass


@functools.lru_cache(maxsize=4096)
def read_formula(text: str, *, is_gold: bool = False) -> Formula | None:
    """The formula that is all of a text; None else. A gold has a connective's sign."""
    if len(text) > MAX_FORMULA_CHARS or (is_gold and _CONNECTIVE.search(text) is None):
        return None
    try:
        tokens = _tokens(text.strip().rstrip("."))
        formula, rest = _level(tokens, 0, 0)
    except _NoFormula:
        return None
    return formula if rest == len(tokens) and len(_letters(formula)) <= MAX_LETTERS else None


def equivalent(one: Formula, other: Formula) -> bool | None:
    """Whether both have one truth table; None where that has too many letters."""
    letters = sorted(_letters(one) | _letters(other))
    if len(letters) > MAX_LETTERS:
        return None
    rows = itertools.product((False, True), repeat=len(letters))
    return all(
        _holds(one, row) == _holds(other, row)
        for row in (dict(zip(letters, values, strict=True)) for values in rows)
    )


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _NoFormula
        position = match.end()
        kind = match.lastgroup
        if kind == "letter":
            tokens.append(match[0])
        elif kind == "said":
            tokens.append("iff" if match[0] == "if and only if" else match[0])
        elif kind is not None:
            tokens.append(_SPELLINGS[int(kind[1:])][0])
    return tokens


def _level(tokens: list[str], position: int, level: int, depth: int = 0) -> tuple[Formula, int]:
    """Operands joined by the connective of one level, or of a tighter one."""
    if depth > MAX_DEPTH:
        raise _NoFormula
    if level == len(_LEVELS):
        return _operand(tokens, position, depth + 1)
    left, position = _level(tokens, position, level + 1, depth)
    while position < len(tokens) and tokens[position] == _LEVELS[level]:
        is_right = _LEVELS[level] == "implies"
        right, position = _level(
            tokens, position + 1, level if is_right else level + 1, depth + is_right
        )
        left = (_LEVELS[level], left, right)
    return left, position


def _operand(tokens: list[str], position: int, depth: int) -> tuple[Formula, int]:
    if position == len(tokens) or depth > MAX_DEPTH:
        raise _NoFormula
    token = tokens[position]
    if token == "not":
        inner, position = _operand(tokens, position + 1, depth + 1)
        return ("not", inner), position
    if token == "(":
        inner, position = _level(tokens, position + 1, 0, depth + 1)
        if position == len(tokens) or tokens[position] != ")":
            raise _NoFormula
        return inner, position + 1
    if len(token) != 1 or token == ")":
        raise _NoFormula
    return token, position + 1


def _letters(formula: Formula) -> frozenset[str]:
    if isinstance(formula, str):
        return frozenset((formula,))
    return frozenset[str]().union(*map(_letters, formula[1:]))


def _holds(formula: Formula, row: dict[str, bool]) -> bool:
    if isinstance(formula, str):
        return row[formula]
    connective, *operands = formula
    values = [_holds(operand, row) for operand in operands]
    if connective == "not":
        return not values[0]
    left, right = values
    return {
        "and": left and right,
        "or": left or right,
        "xor": left != right,
        "implies": not left or right,
        "iff": left == right,
    }[connective]


_Z = r"(?:\\(?:mathbb|mathbf|Bbb)\s*\{?\s*Z\s*\}?|\u2124|Z)"
_ORDER = r"\{?\s*(\d{1,6})\s*\}?"
_FACTOR = re.compile(
    r"\(?\s*(?:"
    rf"{_Z}\s*_\s*{_ORDER}|"
    rf"{_Z}\s*/\s*\(?{_ORDER}\s*\)?(?:\s*(?:\\cdot\s*)?{_Z})?|"
    rf"(?:C|\\mathrm\{{C\}}|\\mathcal\{{C\}})\s*_\s*{_ORDER}|"
    rf"(?P<free>{_Z})|(?P<klein>[VK]_\{{?4\}}?|\\text\{{Klein four(?:-| )group\}})"
    r")\s*\)?(?:\s*\^\s*\{?\s*(?P<power>\d)\s*\}?)?"
)
_JOIN = re.compile(r"\s*(?:\\times|\\oplus|\u00d7|\u2295|\bx\b)\s*")
_LEFT = re.compile(r"(?:\\(?:left|right|,|;|quad|!)|\$)")
_NAMED = re.compile(
    r"(?:[A-Z](?:/[A-Z])?|\\mathrm\{[A-Za-z]+\}\([^()]*\))\s*(?:\\cong|\\simeq|=|\u2245)\s*"
)
_CYCLIC = re.compile(
    r"(?:the )?cyclic group (?:of order|with) \$?(?P<order>\d{1,6})\$?(?: elements)?", re.IGNORECASE
)
MAX_CHARS = 160


def may_be_group(text: str) -> bool:
    """Whether a gold may be such a group: C_4 alone may be anything."""
    return (
        "Z" in text or "\u2124" in text or "yclic group" in text or _JOIN.search(text) is not None
    )


def read_group(text: str) -> Counter | None:
    """The orders of its cyclic factors of prime power order, 0 for Z; None where it is no group."""
    if len(text) > MAX_CHARS:
        return None
    text = _LEFT.sub("", text).strip(" .")
    cyclic = _CYCLIC.fullmatch(text)
    if cyclic is not None:
        return Counter(_prime_powers(int(cyclic["order"])))
    text = _NAMED.sub("", text, count=1)
    found: Counter = Counter()
    is_finite = False
    for part in _JOIN.split(text):
        match = _FACTOR.fullmatch(part)
        if match is None:
            return None
        power = int(match["power"] or 1)
        if match["free"]:
            found[0] += power
            continue
        is_finite = True
        if match["klein"]:
            found[2] += 2 * power
            continue
        order = next(int(match[group]) for group in (1, 2, 3) if match[group])
        for prime_power in _prime_powers(order):
            found[prime_power] += power
    return found if is_finite else None


def _prime_powers(order: int) -> Iterator[int]:
    """8 and 3 of 24."""
    prime = 2
    while order > 1 and prime * prime <= order:
        whole = 1
        while order % prime == 0:
            order, whole = order // prime, whole * prime
        if whole > 1:
            yield whole
        prime += 1
    if order > 1:
        yield order
