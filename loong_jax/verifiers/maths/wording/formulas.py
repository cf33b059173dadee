"""Formulas of propositional logic, compared by their truth tables.

A reader of its own: connectives bind as negation, and, exclusive or, or, implication (to the
right), equivalence, and stand between single letters and nothing else, so that a limit or a list
is no formula.
"""

import functools
import itertools
import re
from typing import Any

MAX_CHARS = 200
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
def read(text: str, *, is_gold: bool = False) -> Formula | None:
    """The formula that is all of a text; None else. A gold has a connective's sign."""
    if len(text) > MAX_CHARS or (is_gold and _CONNECTIVE.search(text) is None):
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
