r"""What stands on either side of a value and is no part of it.

Before it a name that the grammar does not read, [OH^-], \text{area}, Var(X), but nothing that
calculates; after it what is said of its letters: "where k \in Z", "(n >= 1)".
"""

import re

from loong_jax.verifiers.maths import names

_CONCENTRATION = (
    r"(?:\\left)?\[\s*(?:\\(?:mathrm|text|ce)\s*\{[^=]{1,30}\}|[A-Z][A-Za-z\d_^{}+-]{0,20})\s*(?:\\right)?\]"
    r"(?:_\{?\\?\w{1,12}(?:\{\w+\})?\}?)?"
)
_SUBSCRIPT = (
    r"(?:_\{[^{}=]{0,20}(?:\{[^{}=]*\}[^{}=]{0,10})*\}|_\\?\w+|\^\{?\\?(?:circ|ominus|\*|\w)\}?|')*"
)
_THERMODYNAMIC = rf"(?:\\Delta|\u0394)\s*(?:\\[A-Za-z]+\s*)?\{{?[A-Z]\}}?{_SUBSCRIPT}"
_NAME = (
    r"(?:[A-Za-z]|\\[A-Za-z]+|\\(?:mathbb|mathrm|mathcal|text|operatorname)\s*\{[A-Za-z]{1,12}\}|"
    r"[A-Z][a-z]{1,3})"
)
_APPLIED = (  # P(A \mid B), E[X], Var(X), f'(2), [K : Q]
    rf"{_NAME}{_SUBSCRIPT}\s*(?:\\[bB]igg?l?|\\left)?\s*(?:\([^=]{{1,60}}\)|\[[^=]{{1,60}}\])"
)
_WORDS = (
    r"(?:\\text(?:bf|it|rm)?\s*\{[^{}=\d]{2,60}\}[\s\\,:;]*[A-Z']{0,5}|"
    r"(?:[A-Za-z][A-Za-z'-]*\s+){0,6}[A-Za-z][A-Za-z'-]+)"
)
_LEFT = re.compile(
    rf"\s*\$?\s*(?:{_CONCENTRATION}|{_THERMODYNAMIC}|{_APPLIED}|{_WORDS}|"
    r"\\(?:dim|deg|sup|inf|max|min|ker|operatorname\{\w{2,8}\})(?:_\{[^{}=]{1,20}\}|_\w)?\s*"
    r"(?:\(?[A-Za-z\\{}' ]{0,16}\)?)|"
    r"\(\s*[a-z]\s*\\circ\s*[a-z]\s*\)\s*\([^()=]{1,10}\)|"
    r"\[[A-Z]{3,6}\]|\[[A-Z](?:\([^()=]{1,20}\))?\s*:\s*\\mathbb\{?Q\}?\]|"
    r"m?\\angle\s*[A-Z]{1,3}|\\overline\{[A-Z]{2}\}|\|\\?[A-Za-z]+\{?[A-Z]*\}?\|)\s*\Z"
)
_SAID = names.patterns("sides")
_EQUALS = re.compile(r"(?<![<>!=:\\])(?:=|\\approx\b|\u2248)(?![=>])")


def value_after(text: str) -> str | None:
    """What follows the one sign of equality after such a name; None for any other text."""
    if len(text) > 300:
        return None
    parts = _EQUALS.split(text)
    if not 2 <= len(parts) <= 3 or not parts[1].strip():
        return None
    if not _LEFT.match(parts[0]) or _SAID.CHANGES.search(parts[0]):
        return None
    return "=".join(parts[1:]).strip()


_SIGNS = {"+": "plus", "-": "minus"}


def with_concentrations(text: str) -> str:
    """[A] and [OH^-] as letters with a subscript, where at least two stand in a formula."""
    if text.count("[") < 2 or len(text) > 300 or ("/" not in text and "\\frac" not in text):
        return text
    if len(_SAID.ONE_CONCENTRATION.findall(text)) != text.count("["):
        return text
    return _SAID.ONE_CONCENTRATION.sub(lambda m: f" c_{{{_letters(m[1])}}} ", text)


def _letters(name: str) -> str:
    return "".join(_SIGNS.get(c, c) for c in name if c.isalnum() or c in _SIGNS)


_NAMES = r"(?:textcolor|colorbox|color|[hv]space|tag|label|[hv]?phantom)\*?"
_GROUP = r"\s*\{(?:[^{}]|\{[^{}]*\})*\}"
_OPTION = r"(?:\s*\[[^\[\]{}]*\])?"
LAYOUT = re.compile(  # `\color{red}{8}` and `8 \tag{1}` are 8
    rf"\\(?:{_NAMES}{_OPTION}{_GROUP}|"
    rf"fcolorbox{_OPTION}{_GROUP}{_GROUP}|bbox{_OPTION}(?=\s*\{{))|(?<=\d)\{{\s*\}}"
)


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
_FORMULA_BEFORE = re.compile(r"(?:[\d)\]}!$'][a-z]?|[-=+*/^]\s*\\?\w|[A-Za-z]\w?\s*=[^=]*)\s*\Z")
_OF_ARGUMENT = re.compile(r"[A-Za-z](?:'*\(|_)[^=]*=|(?<![A-Za-z\\])y\s*=")
_LONE = re.compile(r"(?:\A|[$\s])[a-z]\$?\s*\Z")
_RELATION = re.compile(rf"{_ORDER}|\\in(?![A-Za-z])|\u2208|\bif\b|\bmod\b|\\pmod|\\equiv")
MAX_CLAUSE_CHARS = 90  # of a clause


def at_end(text: str) -> tuple[str, str] | None:
    """The text before a clause on a letter that ends it, and ", n \\in \\mathbb{Z}" of an integer.

    None where there is none, or where the text before does not name the letter. A domain that
    leaves out more than single points and what is below 1 is no such clause: it stays.
    """
    start = max(0, len(text) - MAX_CLAUSE_CHARS)
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
    if _SAID.HINT.search(text, start) is None:
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
