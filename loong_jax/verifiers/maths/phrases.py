"""Answers that are words: names, choices, yes and no, dates. They are compared as normal forms."""

import datetime
import re
import unicodedata

from loong_jax.verifiers.maths import names

_COMMANDS = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname|boxed)\b\s*"
)
_SPACES = re.compile(r"\\[,;:! ]|~|\\q?quad\b")
_PUNCTUATION = re.compile(r"[^\w\s%+\-/().,:]|_", re.UNICODE)
_ARTICLES = re.compile(
    r"^(?:(?:the|a|an|it|it's|its|is|answer|final|are|therefore|so|thus|hence)\s+)+"
)
_ENDS = " \t\r\n.,;:!?\"'"
_CHOICE = re.compile(
    r"(?:(?:option|choice|answer|statement)\s*(?:is\s*)?:?\s*)?\(?\s*([A-Z])\s*(?:\)|\.(?!\w)|:|,|$|(?=\)))",
)
_SINGLE = re.compile(r"\(?\s*([A-Z])\s*\)?\.?")
_YES = {"yes": "yes", "true": "yes", "correct": "yes", "no": "no", "false": "no", "incorrect": "no",
        "right": "yes"}  # fmt: skip
_MONTHS = {name: number for number, names_ in enumerate(
    ("january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul",
     "august aug", "september sep sept", "october oct", "november nov", "december dec"), 1)
    for name in names_.split()}  # fmt: skip
_ISO = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})")
_SLASHED = re.compile(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})")
_NAMED = (
    re.compile(r"(?P<month>[a-z]+)\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?(?:,? (?P<year>\d{4}))?"),
    re.compile(
        r"(?P<day>\d{1,2})(?:st|nd|rd|th)?(?: of)? (?P<month>[a-z]+)\.?(?:,? (?P<year>\d{4}))?"
    ),
)
_WEEKDAY = re.compile(r"^(?:mon|tues|wednes|thurs|fri|satur|sun)day,?\s+")
MAX_CHARS = 300


def normal(text: str) -> str:
    """Words in lower case with single spaces, without commands, articles and end punctuation."""
    text = unicodedata.normalize("NFKC", text[: 4 * MAX_CHARS])
    text = _SPACES.sub(" ", text)
    text = _COMMANDS.sub("", text).replace("{", " ").replace("}", " ").replace("$", " ")
    text = text.replace("\\(", " ").replace("\\)", " ").replace("**", " ").replace("\\", " ")
    text = _PUNCTUATION.sub(" ", text.casefold().replace("'s", "s"))
    text = " ".join(text.split()).strip(_ENDS)
    text = _ARTICLES.sub("", text)
    if text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        text = text[1:-1].strip(_ENDS)
    return text


def is_nothing(text: str) -> bool:
    return normal(text) in names.NOTHING


def is_everything(text: str) -> bool:
    return text in names.EVERYTHING or normal(text) in names.EVERYTHING


def choice(text: str) -> str | None:
    """The letter of a multiple-choice answer: "B", "(B)", "B) 12 cm", "option B"."""
    text = " ".join(
        _COMMANDS.sub("", _SPACES.sub(" ", text))
        .replace("{", "")
        .replace("}", "")
        .replace("$", "")
        .replace("**", "")
        .split()
    )
    match = _CHOICE.match(text.strip())
    if match is None:
        match = re.match(
            r"(?i:option|choice|answer)\s*(?i:is)?:?\s*\(?([A-Z])\)?(?![\w])", text.strip()
        )
    if match is None:
        return None
    rest = text.strip()[match.end() :]
    if re.search(r"(?:^|[\s(,/])(?:or|and|/|,)?\s*\(?[A-Z]\)?(?=[\s).,:]|$)", rest):
        return None  # a second letter
    return match[1]


def is_choice(text: str) -> bool:
    """Whether a gold is one capital letter, as the key of a question."""
    text = _COMMANDS.sub("", text).replace("{", "").replace("}", "").replace("$", "").strip()
    return _SINGLE.fullmatch(text) is not None


def yes_or_no(text: str) -> str | None:
    """ "yes" or "no" where the text says so first and does not go on to doubt it."""
    words = normal(text).replace(",", " ").replace(".", " ").split()
    if not words or words[0] not in _YES:
        return None
    first = _YES[words[0]]
    if any(_YES.get(word, first) != first for word in words[1:]) or "or" in words[1:3]:
        return None
    return first


def date(text: str) -> tuple[int | None, int, int] | None:
    """(year, month, day) of a date; 3/5/2020 is the fifth of March. The year may be missing."""
    text = _WEEKDAY.sub("", normal(text))
    if match := _ISO.fullmatch(text):
        year, month, day = (int(part) for part in match.groups())
    elif match := _SLASHED.fullmatch(text):
        month, day, year = (int(part) for part in match.groups())
    else:
        for pattern in _NAMED:
            match = pattern.fullmatch(text)
            if match is not None and match["month"] in _MONTHS:
                break
        else:
            return None
        month, day = _MONTHS[match["month"]], int(match["day"])
        year = int(match["year"]) if match["year"] else None
    try:
        datetime.date(year or 2000, month, day)
    except ValueError:
        return None
    return year, month, day


def parts(text: str) -> frozenset[str]:
    """The items of a list in words, in any order."""
    return frozenset(re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", text))


def concludes(sentence: str, wanted: str) -> bool:
    """Whether a sentence, as a normal form, ends on "is <wanted>"."""
    if not sentence.endswith(wanted):
        return False
    before = sentence[: len(sentence) - len(wanted)]
    return re.search(r"(?:\b(?:is|are|be|was)|:|=)\s+(?:(?:a|an|the)\s+)?\Z", before) is not None
