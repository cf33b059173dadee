"""Roots and eigenvalues with their multiplicities: "2 (with multiplicity two) and 5"."""

import re

_COUNTS = {"two": 2, "2": 2, "three": 3, "3": 3, "four": 4, "4": 4, "one": 1, "1": 1}
ASIDE = (
    r"\(?\s*(?:\\text\{\s*)?\(?(?:(?:with|of)\s+)?(?:an?\s+)?(?:algebraic\s+)?(?:"
    r"multiplicity\s+(?:of\s+)?\}?\s*\$?(?P<count>two|three|four|one|[1-4])\$?|"
    r"(?P<double>double(?:\s+(?:root|eigenvalue|zero))?|twice|repeated(?:\s+twice)?|"
    r"counted twice))\s*\)?\s*\}?\s*\)?"
)
_ITEM = re.compile(
    r"(?P<before>\A|.*?(?:[,;]|\band\b(?:\s*\})?|\\\}))(?P<item>(?:(?!,|;|\band\b).){1,60}?)"
    r"[\s$,]*" + ASIDE + r"(?=\s*(?:\Z|[,;.$]|\\text|\band\b))",
    re.DOTALL,
)
MAX_CHARS = 300


def spelled_out(text: str) -> str:
    """The text with what has a multiplicity written so many times: "2, 2 and 5"."""
    if len(text) > MAX_CHARS or not re.search("multiplicity|double|twice|repeated", text):
        return text
    for _ in range(4):
        match = _ITEM.match(text)
        if match is None:
            return text
        count = 2 if match["double"] else _COUNTS[match["count"]]
        item = match["item"].strip().rstrip("(").strip()
        value = item.rpartition("=")[2].strip()
        if not value or not re.search(r"\d|\\|[a-z]", value):
            return text
        repeated = ", ".join([item, *[value] * (count - 1)])
        text = f"{match['before']} {repeated}{text[match.end() :]}"
    return text
