r"""Text on either side of a value that is no part of it.

Before it a name that the grammar does not read, [OH^-], \text{area}, Var(X), but nothing that
calculates; after it what is said of its letters: "where k \in Z", "(n >= 1)".
"""

import re

from loong_jax.verifiers.maths import names

SAID = names.patterns("sides")
_EQUALS = re.compile(r"(?<![<>!=:\\])(?:=|\\approx\b|\u2248)(?![=>])")


def value_after(text: str) -> str | None:
    """The text after the one sign of equality that follows such a name; None for any other text."""
    if len(text) > 300 or not any(sign in text for sign in ("=", "\u2248", "\\approx")):
        return None
    parts = _EQUALS.split(text)
    if not 2 <= len(parts) <= 3 or not parts[1].strip():
        return None
    if not SAID.LEFT.match(parts[0]) or SAID.CHANGES.search(parts[0]):
        return None
    return text[len(parts[0]) :].lstrip("=\u2248").removeprefix("\\approx").strip()


def with_concentrations(text: str) -> str:
    """[A] and [OH^-] as letters with a subscript, where at least two stand in a formula."""
    if text.count("[") < 2 or len(text) > 300 or ("/" not in text and "\\frac" not in text):
        return text
    if len(SAID.ONE_CONCENTRATION.findall(text)) != text.count("["):
        return text

    def lettered(match: re.Match[str]) -> str:
        name = match[1].replace("+", "plus").replace("-", "minus")
        return f" c_{{{''.join(filter(str.isalnum, name))}}} "

    return SAID.ONE_CONCENTRATION.sub(lettered, text)


_COUNTS = {"two": 2, "2": 2, "three": 3, "3": 3, "four": 4, "4": 4, "one": 1, "1": 1}
_REPEATED = ("multiplicity", "double", "twice", "repeated")
MAX_CHARS = 300


def spelled_out(text: str) -> str:
    """The text with what has a multiplicity written so many times: "2, 2 and 5"."""
    if len(text) > MAX_CHARS or not any(word in text for word in _REPEATED):
        return text
    for _ in range(4):
        match = SAID.ITEM.match(text)
        if match is None:
            return text
        count = 2 if match["double"] else _COUNTS[match["count"]]
        item = match["item"].strip().rstrip("(").strip()
        value = item.rpartition("=")[2].strip()
        repeated = ", ".join([item, *[value] * (count - 1)])
        text = f"{match['before']} {repeated}{text[match.end() :]}"
    return text


_FORMULA_BEFORE = re.compile(r"(?:[\d)\]}!$'][a-z]?|[-=+*/^]\s*\\?\w|[A-Za-z]\w?\s*=[^=]*)\s*\Z")
_OF_ARGUMENT = re.compile(r"[A-Za-z](?:'*\(|_)[^=]*=|(?<![A-Za-z\\])y\s*=")
_LONE = re.compile(r"(?:\A|[$\s])[a-z]\$?\s*\Z")
MAX_CLAUSE_CHARS = 90  # of a clause


def at_end(text: str) -> tuple[str, str] | None:
    """The text before a clause on a letter that ends it, and ", n \\in \\mathbb{Z}" of an integer.

    None where there is none, or where the text before does not name the letter. A domain that
    leaves out more than single points and what is below 1 is no such clause: it stays.
    """
    start = max(0, len(text) - MAX_CLAUSE_CHARS)
    end = text[start:]
    if not any(hint in end for hint in ("integer", "\\in", "\u2208", "\u00b1", "pm")):
        return _without_domain(text, start)
    match = SAID.CLAUSE.search(text, start)
    if match is None or not text[: match.start()].strip():
        return _without_domain(text, start)
    groups = ("after", "bare", "before", "element", "listed")
    letter, before = next(match[name] for name in groups if match[name]), text[: match.start()]
    if re.search(rf"(?<![A-Za-z\\]){letter}(?![a-z])", before[-200:]) is None:
        return None
    is_natural = match["set"] is not None and re.search("N|\u2115", match["set"])
    where = "\\mathbb{N}" if is_natural else "\\mathbb{Z}"
    return _closed(before), f", {letter} \\in {where}"


def _closed(before: str) -> str:
    """With the mark of a formula that the clause was inside of, or took."""
    return before + next((mark for mark in ("$$", "$") if before.count(mark) % 2), "")


def _without_domain(text: str, start: int) -> tuple[str, str] | None:
    if SAID.HINT.search(text, start) is None:
        return None
    for match in SAID.DOMAIN.finditer(text, start):
        before, order = text[: match.start()], match["order"]
        if match["all"] is not None and not re.search(
            r"\b(?:all|any|every|each|real)\b|forall", match[0]
        ):
            continue
        sentence = re.split(r"[.!?]\s|\n", before[-300:])[-1]
        letter = rf"(?<![A-Za-z\\]){match['letter']}(?![a-z])"
        is_formula = _FORMULA_BEFORE.search(sentence) and not _LONE.search(sentence)
        if not is_formula or SAID.RELATION.search(sentence):
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
        return _closed(before).rstrip(" ,;(\\"), ""
    return None
