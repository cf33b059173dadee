"""Dates and times of day."""

import datetime
import re

from loong_jax.verifiers.maths.wording import phrases

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
_IT_IS_ON = re.compile(r"^(?:(?:it|date|day|that|this|time) (?:is|was|falls) )?(?:on |at )?")
_AROUND_COLON = re.compile(r"(?<=\d)\s*:\s*(?=\d)")
_WEEKDAY = re.compile(r"^(?:mon|tues|wednes|thurs|fri|satur|sun)day,?\s+")
_HOUR = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*(?:([ap])\.?\s?m)?\.?")
_HOURS = {"noon": (12, 0, 0), "midday": (12, 0, 0), "12 noon": (12, 0, 0), "midnight": (0, 0, 0),
          "12 midnight": (0, 0, 0)}  # fmt: skip
_STANDS_FOR_ITSELF = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{4}/\d{2}/\d{2}")


_MENTION = re.compile(
    rf"(?:{'|'.join(_MONTHS)})\.? \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?|"
    rf"\d{{1,2}}(?:st|nd|rd|th)?(?: of)? (?:{'|'.join(_MONTHS)})\b\.?(?:,? \d{{4}})?|"
    r"\d{4}-\d\d?-\d\d?|\d{1,2}:\d\d(?::\d\d)?(?:\s*[ap]\.?\s?m\b)?|\d{1,2}\s*[ap]\.?\s?m\b|\b(?:noon|midnight)\b"
)
_BESIDE = re.compile(
    r"\b(?:after|before|from|since|than|until|between|past|of)\s+(?:the\s+)?\Z|\b(?:not|or|if|could|either)\b"
)


def last_mention(clause: str) -> str:
    """The last date or time of day that a clause names as its own; else nothing."""
    clause = phrases.normal(clause)
    found = list(_MENTION.finditer(clause))
    if not found or _BESIDE.search(clause[: found[-1].start()]):
        return ""
    half = {"in the morning": " am", "in the afternoon": " pm", "in the evening": " pm"}
    after = clause[found[-1].end() :].strip()
    return found[-1][0] + next((half[words] for words in half if after.startswith(words)), "")


def is_date(text: str) -> bool:
    """Whether a gold is a date or a time of day and no sum, quotient or ratio of numbers."""
    bare = text.strip(" $")
    if re.search(r"[^\W\d_]", text):
        return date(text) is not None or clock(text) is not None
    return _STANDS_FOR_ITSELF.fullmatch(bare) is not None and date(bare) is not None


def clock(text: str) -> tuple[tuple[int, int, int], bool] | None:
    """((hour, minute, second) of the day, whether the half of the day is stated) of a time."""
    if (named := _HOURS.get(phrases.normal(text))) is not None:
        return named, True
    match = _HOUR.fullmatch(_IT_IS_ON.sub("", _AROUND_COLON.sub(":", phrases.normal(text))))
    if match is None or (match[2] is None and match[4] is None):
        return None
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    if hour > 23 or minute > 59 or second > 59 or (match[4] and not 1 <= hour <= 12):
        return None
    if match[4]:
        hour = hour % 12 + (12 if match[4] == "p" else 0)
    return (hour, minute, second), bool(match[4]) or not 0 < hour < 13


def date(text: str) -> tuple[int | None, int, int] | None:
    """(year, month, day) of a date; 3/5/2020 is the fifth of March. The year may be missing."""
    text = _WEEKDAY.sub("", _IT_IS_ON.sub("", phrases.normal(text)))
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
