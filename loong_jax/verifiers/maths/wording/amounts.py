"""Amounts by their names: 鸡23只,兔12只; the maximum 5 and the minimum -3; quotient and remainder."""

import re

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import CostError, Node, ParseError
from loong_jax.verifiers.maths.reading import readings
from loong_jax.verifiers.maths.units import UNITS

_MARKS = re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}|[$*]|\\[,;:! ]")
_DIVIDED = re.compile(
    r"(?:.*=\s*|.*\bis\s+)?(\d+)\s*(?:\.{3,}|…+|⋯+|(?:\\[lc]?dots\s*)+|[Rr]\.?|"
    r"(?:with |and )?(?:an? )?remainder(?: of)?)\s*(\d+)[\s.]*"
)
_AMOUNT = re.compile(
    r"(?P<name>[^\d,;.$=\\-]{0,24}?)\s*(?:is|are|was|has|=|:|[有为是])?\s*"
    r"(?P<value>-?(?:\d[\d.]*(?:/\d+)?|\\d?frac\{\d+\}\{\d+\}))\s*"
)
_WORD = re.compile(r"[a-z]*")
_KINDS = names.TABLES["amounts"]["KINDS"]
_REST = re.compile(r"(?:[\s,;.]|\band\b|[和且])*")
_NO_NAME = re.compile(r"[大小]于|至[少多]|不|超过|非|或|以[上下内]|[除约倍]|\b(?:at|or|not|than)\b")
_EDGES = re.compile(r"\A(?:and|the|an?)\b\s*|\s*(?:is|are|has|共?[有为是])\s*\Z")


def read(text: str, *, is_gold: bool = False) -> dict[str, Node]:
    """Values by name; of a gold nothing where it says anything else."""
    text = _MARKS.sub(r"\1", text).strip()
    if len(text) > 200:
        return {}
    if (divided := _DIVIDED.fullmatch(text)) is not None:
        text = f"quotient {divided[1]}, remainder {divided[2]}"
    for kind, pattern in _KINDS.items():
        text = re.sub(pattern, f" {kind} ", text)
    found: dict[str, Node] = {}
    rest = _AMOUNT.sub(" ", text)
    for match in _AMOUNT.finditer(text):
        name = _EDGES.sub("", _EDGES.sub("", match["name"].strip())).strip().lower()
        word = _WORD.match(text, match.end())
        unit = word[0] if word is not None and (word[0] in UNITS or word[0] == "items") else ""
        rest = rest.replace(f" {unit}", "", 1)
        try:
            found[name] = readings.of(
                f"{match['value']} \\text{{{unit}}}" if unit else match["value"]
            )[0]
        except (ParseError, CostError):
            return {}
    is_whole = _REST.fullmatch(rest) and "" not in found and not _NO_NAME.search(text)
    return found if found and (is_whole or not is_gold) else {}


def pairs(wanted: dict[str, Node], given: dict[str, Node]) -> list[tuple[Node, Node]] | None:
    """The values of each name of a gold; None where one of them is not named, or twice."""
    found = []
    for name, value in wanted.items():
        own = [v for other, v in given.items() if other and (name in other or other in name)]
        if len(own) != 1:
            return None
        found.append((value, own[0]))
    return found
