"""What a text says of its letters: "where k \\in Z", "for all real x", "(n >= 1)"."""

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
_ORDER = r"(?:\\(?:geq?|gt|leq?|lt|neq?)(?:slant)?(?![A-Za-z])|[<>]=?|!=|[\u2260\u2264\u2265])"
_DOMAIN = re.compile(  # where a formula holds: it says nothing else than the formula alone
    r"(?P<gap>(?:\\[,;:! ]|\\q?quad|[\s,;~$.*(]|\\(?:text|mbox)\s*\{)+)"
    r"(?P<word>(?:valid|which|that|holds?|true|defined|\s)*"
    r"\b(?:for|where|with|if|when|whenever|on|as long as|provided(?: that)?)\b|\\forall)?"
    r"(?:\\?[\s~,;($}]|\b(?:all|any|every|each|some|real|positive|"
    r"natural|nonnegative|non-negative|integers?|numbers?|reals?|values? of)\b)*"
    r"(?P<letter>[a-z])(?:_\{?\w\}?)?[\s$]*(?:"
    rf"(?P<order>{_ORDER})[\s$]*(?P<bound>(?:\\pm\s*)?-?\d+(?:/\d+|\.\d+)?|\\frac\{{\d+\}}\{{\d+\}})|"
    r"(?:\\in(?![A-Za-z])|\u2208)\s*(?:\\(?:mathbb|Bbb|mathbf)\s*\{?\s*[RNCQ]\s*\}?|[\u211d\u2115\u2102\u211a]|[RNCQ]\b)"
    r"(?:[_^]\{?[\w+*>]+\}?)?|"
    r"(?:is|being|are|denotes|ranges over)\s+"
    r"(?:an?|any|all|every|arbitrary|real|positive|natural|\s)*(?:real|integer|reals|numbers?)|(?P<all>(?<=[a-z])))"
    r"(?:\s+real)?[\s$)}.*]*\Z"
)
_HINT = re.compile(
    r"[<>\u2208\u2260\u2264\u2265]|!=|\\(?:in|[gln]e|[gl]t|forall)|\b(?:all|any|every|real)\b"
)
_FORMULA_BEFORE = re.compile(r"(?:[\d)\]}!$'][a-z]?|[-=+*/^]\s*\\?\w|[A-Za-z]\w?\s*=[^=]*)\s*\Z")
_OF_ARGUMENT = re.compile(r"[A-Za-z](?:'*\(|_)[^=]*=|(?<![A-Za-z\\])y\s*=")
_LONE = re.compile(r"(?:\A|[$\s])[a-z]\$?\s*\Z")
_RELATION = re.compile(rf"{_ORDER}|\\in(?![A-Za-z])|\u2208|\bif\b|\bmod\b|\\pmod|\\equiv")
MAX_CHARS = 90  # of a clause


def at_end(text: str) -> tuple[str, str] | None:
    """The text before a clause on a letter that ends it, and ", n \\in \\mathbb{Z}" of an integer.

    None where there is none, or where the text before does not name the letter. A domain that
    leaves out more than single points and what is below 1 is no such clause: it stays.
    """
    start = max(0, len(text) - MAX_CHARS)
    if "integer" not in text[start:] and not re.search("\\\\in|\u2208|\u00b1|pm", text[start:]):
        return _without_domain(text, start)
    match = _CLAUSE.search(text, start)
    if match is None or not text[: match.start()].strip():
        return _without_domain(text, start)
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


def _without_domain(text: str, start: int) -> tuple[str, str] | None:
    if _HINT.search(text, start) is None:
        return None
    for match in _DOMAIN.finditer(text, start):
        before, order = text[: match.start()], match["order"]
        if match["all"] is not None and not re.search(
            r"\b(?:all|any|every|each|real)\b|forall", match[0]
        ):
            continue
        sentence = re.split(r"[.!?]\s|\n", before[-300:])[-1]
        letter = rf"(?<![A-Za-z\\]){match['letter']}(?![a-z])"
        if (
            not _FORMULA_BEFORE.search(sentence)
            or _LONE.search(sentence)
            or _RELATION.search(sentence)
        ):
            continue
        if re.search(letter, re.sub(r"\\[A-Za-z]+", " ", sentence)) is None:
            continue
        if order is None and "=" in sentence and not _OF_ARGUMENT.search(sentence):
            continue  # x = k pi with k in R is no function of k
        is_set = match["word"] is not None or "(" in match["gap"]
        if order and not re.search("ne|!=|\u2260", order):
            is_wide = re.match(r"\\g|>|\u2265", order) and match["bound"] in ("0", "1")
            if not is_wide or not (
                is_set or re.search(r"\w(?:\(\w\)|_\w)?\s*=|\A[^=]*\Z", sentence) is None
            ):
                continue
        elif not is_set and "," not in match["gap"] and "quad" not in match["gap"]:
            continue
        if before.count("$") % 2:
            before += "$"
        return before.rstrip(" ,;(\\"), ""
    return None
