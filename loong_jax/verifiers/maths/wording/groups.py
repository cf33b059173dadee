"""Finitely generated abelian groups: Z_2 x Z_3 is Z/6Z, and Z/4Z is not Z_2 x Z_2."""

import re
from collections import Counter
from collections.abc import Iterator

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


def is_named(text: str) -> bool:
    """Whether a gold may be such a group: C_4 alone may be anything."""
    return (
        "Z" in text or "\u2124" in text or "yclic group" in text or _JOIN.search(text) is not None
    )


def read(text: str) -> Counter | None:
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
