"""Letters of multiple choice, numerals of statements, dates and times of day: (B), ACD, 15:45."""

import datetime
import re

from loong_jax.verifiers.maths import names, wording

_SAID = names.patterns("choices")
_NAMED = re.compile(r"(?i:option|choice|answer)\s*(?i:is)?:?\s*\(?([A-Z])\)?(?![\w])")
_SINGLE = re.compile(r"\(?\s*([A-Z])\s*\)?\.?")
_ANOTHER_LETTER = re.compile(r"\([A-H]\)|\b[A-H][).]\s")
SIGN = _SAID.SIGN
_LONE_LETTER = re.compile(r"(?<![A-Za-z])([B-H]|A(?! [a-z])|(?<=nly )A)(?!['A-Za-z])")
_SMALL = re.compile(r"\(?([a-h])\)\.?|\(([a-h])\) (?!.*\bnot\b)[A-Za-z][^()\d]{0,60}")
_IS_OPTION = re.compile(
    r"(?!If|When|Suppose|Maybe|Perhaps).*\b(?:is|must be) (?:the )?"
    r"(?:option|choice|answer|statement) "
    r"\(?([A-H])\)?\W*"
)
_NUMERAL = re.compile(r"I|II|III|IV|V|VI")


def choice(text: str) -> str | None:
    """The letter of a multiple-choice answer: "B", "(B)", "B) 12 cm", "option B"."""
    text = wording.COMMANDS.sub("", wording.SPACES.sub(" ", text)).replace("**", "")
    text = " ".join(re.sub(r"[{}$]", "", text).split())
    for rule in (_SAID.CONCLUDED, _SAID.FOUND_RIGHT):
        if (found := rule.search(text)) is not None:
            return found[1]
    match = _SAID.CHOICE.match(text)
    if match is None and (small := _SMALL.fullmatch(text)):
        return (small[1] or small[2]).upper()
    match = match or _SAID.WITH_TEXT.match(text) or _NAMED.match(text) or _SAID.CHOSEN.match(text)
    if match is None:
        return _only_letter_in_brackets(text)
    rest = text[match.end() :]
    if _SAID.SECOND_LETTER.search(rest) or _SAID.REFUSED.match(rest):
        return None  # "(D) is incorrect"
    return match[1]


def chosen(sentence: str) -> str | None:
    """B of "So I choose B", the sentence that ends a response."""
    found = _SAID.CHOSEN.match(sentence) or _SAID.CONCLUDED.search(sentence)
    found = found or _IS_OPTION.fullmatch(sentence)
    return None if found is None else found[1]


def mentioned(clause: str) -> str | None:
    """B of "this matches option B": the only option that a clause names, denying nothing."""
    clause = re.sub(r"(?<![A-Za-z(])[A-H]\)", "", clause.removeprefix("A "))
    named = _SAID.OPTION.search(clause)
    letters = set(_LONE_LETTER.findall(clause))
    rest = clause.lower().replace("only", "")
    is_denied = wording.DENIAL.search(rest) or wording.SUPPOSED.search(rest)
    return letters.pop() if named and len(letters) == 1 and not is_denied else None


def _only_letter_in_brackets(text: str) -> str | None:
    """B of "I take (B), as it fits": the only letter named so, with nothing denied."""
    letters = re.findall(r"\(([A-Z])\)", text)
    if len(set(letters)) != 1 or wording.DENIAL.search(text):
        return None
    return letters[0]


_OPTION_LETTERS = re.compile("[A-H]")


def choices(text: str) -> frozenset[str] | None:
    """The letters of a question with several: "ACD", "A, C and D"; None for anything else."""
    if len(_OPTION_LETTERS.findall(text)) < 2:
        return None
    bare = wording.COMMANDS.sub("", wording.SPACES.sub(" ", text))
    for mark in "{}$().*":
        bare = bare.replace(mark, "")
    bare = _SAID.ABOUT_OPTIONS.sub("", bare.strip())
    letters = re.sub(r"\s*(?:[,;&]|\band\b)\s*(?:and\b\s*)?|\s+", "", bare.strip())
    ordered = re.fullmatch("[A-H]{2,8}", letters) is not None and len(set(letters)) == len(letters)
    is_run = bare.strip().isalpha()  # BAD is a word, ABD a run of letters
    if not ordered or (is_run and list(letters) != sorted(letters)):
        return None
    return frozenset(letters)


def statements(text: str) -> frozenset[str] | None:
    """The numerals of "I and III only" or "Statements I, III are true"; None for anything else."""
    said = _SAID.ABOUT_STATEMENTS.sub(
        " ", wording.bare(wording.SPACES.sub(" ", text)).replace("$", " ")
    )
    found = re.split(r"\s*(?:,|;|&|\band\b)\s*(?:and\b\s*)?|\s+", said.strip(" .()"))
    found = [one.strip("().") for one in found if one.strip("().")]
    if not found or not all(_NUMERAL.fullmatch(one) for one in found):
        return None
    return frozenset(found) if len(set(found)) == len(found) else None


def lettered(text: str) -> tuple[str, str] | None:
    """("C", "12") of "(C) 12" and "C. 12"; None where no maths follows, or another letter."""
    match = _SAID.LETTERED.fullmatch(text) if len(text) < wording.MAX_CHARS else None
    if match is None or _ANOTHER_LETTER.search(match["rest"]):
        return None
    return match["bracketed"] or match["plain"], match["rest"]


def is_choice(text: str) -> bool:
    """Whether a gold is one capital letter, as the key of a question."""
    text = wording.COMMANDS.sub("", text).replace("{", "").replace("}", "").replace("$", "").strip()
    return _SINGLE.fullmatch(text) is not None


_MONTHS = {name: number for number, names_ in enumerate(
    ("january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul",
     "august aug", "september sep sept", "october oct", "november nov", "december dec"), 1)
    for name in names_.split()}  # fmt: skip
_ISO = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})")
_SLASHED = re.compile(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})")
_DAY_IN_WORDS = (
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


def last_mention(clause: str) -> str:
    """The last date or time of day that a clause names as its own; else nothing."""
    clause = wording.normal(clause)
    found = list(_MENTION.finditer(clause))
    if not found or _SAID.BESIDE.search(clause[: found[-1].start()]):
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
    if (named := _HOURS.get(wording.normal(text))) is not None:
        return named, True
    match = _HOUR.fullmatch(_IT_IS_ON.sub("", _AROUND_COLON.sub(":", wording.normal(text))))
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
    text = _WEEKDAY.sub("", _IT_IS_ON.sub("", wording.normal(text)))
    if match := _ISO.fullmatch(text):
        year, month, day = (int(part) for part in match.groups())
    elif match := _SLASHED.fullmatch(text):
        month, day, year = (int(part) for part in match.groups())
    else:
        for pattern in _DAY_IN_WORDS:
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
