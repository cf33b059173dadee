"""What a text says of a parameter: "with $n$ an integer", "where k \\in Z"."""

import re

_Z = r"(?:\\(?:mathbb|Bbb|mathbf)\s*\{?\s*[ZN]\s*\}?|\u2124|\u2115|Z\b)"
_ANY = r"(?:an|any|all|every|each|some|the|arbitrary)"
_CLAUSE = re.compile(
    r"(?<![\s,;~$])(?:\\[;,:! ]|\\q?quad|[\s,;~$*.])*(?:\\text\{\s*)?\(?\s*\$?\s*"
    r"(?:(?:where|for|with|and|here|as|when)\b\s*\}?\s*)?(?:"
    rf"(?:{_ANY}\s+)+integers?\s+(?:values?\s+of\s+)?\$?(?P<after>[a-z])\$?|"
    rf"integers?\s+\$?(?P<bare>[a-z])\$?|"
    rf"\$?(?P<before>[a-z])\$?\s*\}}?\s*(?:\\text\{{\s*)?(?:(?:is|being|denotes|ranges over|"
    rf"runs over|runs through)\s+)?(?:{_ANY}\s+)*integers?|"
    rf"(?P<element>[a-z])\s*(?:\\in|\u2208)\s*(?P<set>{_Z})|"
    r"(?P<listed>[a-z])\s*=\s*0\s*,\s*(?:\\pm|\u00b1)\s*1\s*,\s*(?:\\pm|\u00b1)\s*2\s*,\s*"
    r"(?:(?:\\pm|\u00b1)\s*3\s*,\s*)?(?:\\[lc]?dots|\.\.\.|\u2026)"
    r")\s*\$?\s*(?:\}\s*)?\)?[\s.$*]*\Z"
)
MAX_CHARS = 90  # of a clause


def at_end(text: str) -> tuple[str, str] | None:
    """The text before a clause on an integer parameter that ends it, and ", n \\in \\mathbb{Z}".

    None where there is none, or where the text before does not name the parameter.
    """
    start = max(0, len(text) - MAX_CHARS)
    if "integer" not in text[start:] and not re.search("\\\\in|\u2208|\u00b1|pm", text[start:]):
        return None
    match = _CLAUSE.search(text, start)
    if match is None or not text[: match.start()].strip():
        return None
    letter = next(match[name] for name in ("after", "bare", "before", "element", "listed")
                  if match[name])  # fmt: skip
    before = text[: match.start()]
    if re.search(rf"(?<![A-Za-z\\]){letter}(?![a-z])", before[-200:]) is None:
        return None
    is_natural = match["set"] is not None and re.search("N|\u2115", match["set"])
    where = "\\mathbb{N}" if is_natural else "\\mathbb{Z}"
    for mark in ("$$", "$"):  # the clause was inside a formula, or took what ends it
        if before.count(mark) % 2 == 1:
            before += mark
            break
    return before, f", {letter} \\in {where}"
