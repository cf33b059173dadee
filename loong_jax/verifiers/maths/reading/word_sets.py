"""Sets of numbers in words: "all non-negative real numbers", "the integers"."""

import re

from loong_jax.verifiers.maths.expression import INFINITY, Node, negate, number, symbol

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
