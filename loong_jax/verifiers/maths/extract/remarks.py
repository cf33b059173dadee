"""Remarks: what a response says of its answer behind it, be it a reason, an aside or a check.

"The number is 36, since 3 + 6 = 9 (and not 63). Check: ..." states 36, whose last number is another
one. A remark concludes nothing: what has a "so" or an equation of its own is none.
"""

import re

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.reading import number_words

MAX_CHARS = 400  # of a sentence that is looked at
_WORD = rf"(?:{number_words.PATTERN}|one|half)\b"
_NUMBER = rf"(?:\d[\d.,/:]*(?<![.,/:])\s?(?:\\?%|\^\\circ|°)?|{_WORD})"
_VALUE = rf"(?:\$\$?[^$]+\$\$?|\\\([^()]+\\\)|[-$€£]?{_NUMBER}|\b[xyzn]\s?=\s?-?\d[\d.,]*|[)\]}}])"
_ENDS_ON_VALUE = re.compile(
    rf"{_VALUE}(?:\s\*{{0,2}}[A-Za-z\d/^{{}}²³·]+|\s?[\u4e00-\u9fff]{{1,4}}){{0,5}}"
    r"\*{0,2}\s*\Z"
)
_SAID = names.patterns("remarks")
_TURNS = r"so|thus|hence|therefore|but|wait|actually|answer|result|instead"
_TURN = re.compile(
    rf"\b(?:{_TURNS})\b|=>|\\implies|\\Rightarrow|所以|因此|故|从而|于是", re.IGNORECASE
)
_CONCLUDES = re.compile(
    rf"{_TURN.pattern}|\b(?:then|now|giving|leaving|leaves|makes?|gives?|means?|total|altogether|"
    r"yields?|implies|if|or|fails?|we (?:get|have|find|obtain))\b|得",
    re.IGNORECASE,
)
_OPENS = re.compile(r"\b(?:and|but|so)\W*\Z", re.IGNORECASE)
_AMENDS = re.compile(rf"{_TURN.pattern}|\b(?:wrong|mistake|not|fails?)\b|不", re.IGNORECASE)
_BREAK = re.compile(r"(?<=[.!?])\s+(?=\S)|\n+(?=\S)")


def without_remarks(body: str) -> str:
    """The text up to what it states, where remarks follow that."""
    for _ in range(4):
        breaks = list(_BREAK.finditer(body, max(0, len(body) - 2 * MAX_CHARS)))
        start = breaks[-1].end() if breaks else 0
        last = body[start:]
        if breaks and _SAID.SENTENCE.match(last) and (last[0] == "(" or not _AMENDS.search(last)):
            before = body[: breaks[-1].start()]
            said = before[-MAX_CHARS:].rstrip(" .!*")
            is_aside = last[0] == "(" and re.search(r"\d[^.!?\n]*\Z", said)
            if not is_aside and _ENDS_ON_VALUE.search(said) is None:
                return body
            body = before
            continue
        if len(last) > MAX_CHARS or (cut := _cut(last)) is None:
            return body
        body = body[:start] + last[:cut].rstrip()
    return body


def _cut(sentence: str) -> int | None:
    """Where the remark begins that ends a sentence; None where none does."""
    for tail in _SAID.TAIL.finditer(sentence, 1):
        head, rest = sentence[: tail.start()], sentence[tail.end() :]
        kind = tail.lastgroup
        gives_reason = kind in ("reason", "aside") or tail[0].strip(", ")[:5] in (
            "as",
            "where",
            "which",
        )
        if not (_SAID.HAS_VALUE.search(head) or len(head.split()) < 4):
            continue
        if (_TURN if gives_reason else _CONCLUDES).search(rest) or _OPENS.search(head):
            continue  # "and since x is real, x = 2"
        ends = _ENDS_ON_VALUE.search(head) is not None
        if kind == "clause" and (": " in rest or (re.search(r"\d", rest) and not ends)):
            continue
        if kind != "bare" or (ends and _may_stand(tail[0], head, rest)):
            return tail.start()
    return None


def count_before(sentence: str) -> str | None:
    """ "There are 4 solutions" of "There are 4 solutions: 1, 2, 5 and 10", for who asks for it."""
    head, colon, rest = sentence[-MAX_CHARS:].partition(": ")
    is_count = (
        colon and head[-1:].strip() and _ENDS_ON_VALUE.search(head) and _SAID.COUNTS.search(head)
    )
    if not is_count or _SAID.NO_COUNT.search(head) or "=" in head + rest or len(rest.split()) < 2:
        return None
    return None if _CONCLUDES.search(rest) else head


def _may_stand(word: str, head: str, rest: str) -> bool:
    """Whether "when ..." says where a value is taken: "is 0 when x = 3" may be asked for x."""
    if word.strip() in ("after", "before", "during"):
        return re.search(r"\b(?:is|are|was|will be)\b", rest) is None and len(head.split()) > 2
    return "=" not in rest or not re.search(r"=|\b0\b|zero", head)
