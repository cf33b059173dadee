"""What sentences say around an answer: units after a number, second thoughts, "the mean is ..."."""

import functools
import re
from collections.abc import Iterator

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.reading import number_words
from loong_jax.verifiers.maths.units import POWER_WORDS, UNITS

MAX_STATED = 200  # characters of what "is" states
_SENTENCES = re.compile(r"(?<=[.!?])(?<!i\.e\.)(?<!e\.g\.)\s+|\n+")
_SAID = names.patterns("prose")
_COUNTED = re.compile(
    r"\bthere (?:is|are|will be|must be)\s+(?:exactly\s+|only\s+|a total of\s+)?"
    rf"(\$[^$]+\$|\d[\d,]*(?:\.\d+)?|{number_words.PATTERN})\s+[a-z]\w+(.*)",
    re.IGNORECASE,
)
_OF_LETTER = re.compile(r"(?<=numbers)\s+\$?[a-z]\$?\Z")
_SEQUENCE = re.compile(r"(?:-?\d[\d.]*(?:,\s*(?:and\s+)?|\s+and\s+)){4,}(-?\d[\d.]*)[.\s]*\Z")
_DECIMAL_COMMA = re.compile(r"-?\d+,\d{1,2}")
_LARGER = re.compile(r"(?<![\d.,/])(\d+)\s+([A-Za-z]+)\s+(?:and\s+)?\Z")
_OWN_UNIT = re.compile(r"\\text\{ ([A-Za-z]+)\}\Z")
_GOES_ON = re.compile(r"[=,;]|\b(?:and|so|thus|hence|giving|total|is|are|plus)\b", re.IGNORECASE)
_DENIED = re.compile(r"(?:\b(?:not|cannot|never|neither|nor)|n't)\s+\Z", re.IGNORECASE)
_WHOSE = re.compile(r"\bwhose\s+\w+\s+\Z", re.IGNORECASE)
_DENIES = re.compile(r"(?:not|never|no longer|neither)\b", re.IGNORECASE)
_HAS_MATHS = re.compile(r"[\d\u2080-\u2089\u00b2\u00b3\\({\[π√∞]|\binfinity\b")
_NO_UNITS_IN_PROSE = frozenset(("in", "as", "at", "pm", "a", "am"))
_CLAUSE_END = re.compile(r"(?<!\d),\s|,\s+(?:so|and)\b")  # "it must be odd, so 3 are left"
_BRACKETED = re.compile(r"\([^()]*\)")


def _amount_in_words(said: str) -> str | None:
    """ "12 square metres" for "twelve square metres"; None where no known unit ends it."""
    digits = number_words.with_digits(said.strip(" *"))
    if digits is None:
        return None
    unit = _SAID.UNIT.fullmatch(digits.partition(" ")[2])
    return digits if unit is not None and unit["word"] in UNITS else None


@functools.lru_cache(maxsize=64)  # one verdict asks for it again and again
def last_sentence(text: str) -> str:
    """The last sentence of a text; the point of 0.5 ends none."""
    found = sentences(text)
    return found[-1].strip().rstrip(".!") if found else ""


def sentences(text: str) -> list[str]:
    return [part for part in _SENTENCES.split(text.strip()) if part.strip()]


def stated(text: str) -> Iterator[str]:
    """What the last sentence says something is: "(2, 3)" of "The vertex is at (2, 3)."."""
    sentence = _SAID.AS_ANSWER.sub("", last_sentence(text)[-2 * MAX_STATED :])
    if "odds" in sentence:  # 3:5 is no probability of 3/5
        return
    if (everywhere := _SAID.HOLDS.search(sentence)) is not None:
        yield _OF_LETTER.sub("", sentence[everywhere.end() :])
        return
    if (kept := _SAID.ONLY.search(sentence)) is not None:
        yield kept[1]
        return
    verbs = list(_SAID.STATES.finditer(sentence))
    if not verbs:
        said = _SAID.ANNOUNCED.fullmatch(sentence)
        if said is not None and _HAS_MATHS.search(said[1]) and not _SAID.DOUBT.search(said[0]):
            yield _SAID.CONCLUSION.split(said[1])[-1]
        return
    said, before = sentence[verbs[-1].end() :], sentence[: verbs[-1].start()]
    before = _BRACKETED.sub(" ", before)
    if _SAID.DOUBT.search(before) or _DENIED.search(before) or _WHOSE.search(before):
        return  # "it could be 11 or it could be 12", "it cannot be 11"
    for counted in list(_COUNTED.finditer(sentence))[-1:]:  # there are 24 orders of 4 things
        if not _GOES_ON.search(counted[2]) and not _SAID.DOUBT.search(counted[2]):
            said = counted[1]
    said = _SAID.CONCLUSION.split(said)[-1]
    if (amount := _amount_in_words(said)) is not None:
        said = amount
    is_maths = (
        _HAS_MATHS.search(said) or number_words.number_from_words(said.strip(" *")) is not None
    )
    if is_maths and not _DENIES.match(said) and len(said) <= MAX_STATED:
        yield said


def two_stated(sentence: str) -> str | None:
    """6 and 9 of "the smaller one is 6 and the larger one is 9", for who asks for both."""
    found = _SAID.TWO_STATED.search(sentence)
    values = [] if found is None else [value for value in found.groups() if value]
    return " \\text{ and } ".join(values) or None


def labelled_parts(text: str) -> list[str] | None:
    """What (1) and (2) hold, where a text has these two parts."""
    found = _SAID.PARTS.fullmatch(text) if "(1)" in text or "(a)" in text else None
    if found is None or "(3)" in text or "(c)" in text:
        return None
    return [part.strip(" *;,.\n") for part in found.group("one", "two")]


def with_larger_unit(amount: str, before: str) -> str:
    """1 minute 30 seconds, where an amount of a larger unit stands before 30 seconds."""
    larger, own = _LARGER.search(before[-40:]), _OWN_UNIT.search(amount)
    if larger is None or own is None or larger[2] not in UNITS or own[1] not in UNITS:
        return amount
    one, other = UNITS[larger[2]], UNITS[own[1]]
    is_larger = one.dimensions == other.dimensions and one.factor > other.factor
    return f"{larger[1]} \\text{{ {larger[2]}}} {amount}" if is_larger else amount


def end_of_sequence(sentence: str) -> str | None:
    """144 of "Adding the last two each time gives 1, 1, 2, ..., 89, 144", for who asks for it."""
    row = _SEQUENCE.search(sentence)
    before = "" if row is None else sentence[: row.start()]
    is_growing = (
        _SAID.GROWS.search(before) and not _SAID.SET_OF.search(before) and "=" not in before
    )
    return row[1] if row is not None and is_growing else None


def with_unit_after(content: str, text: str, end: int) -> str:
    """A number or formula, and the unit written where it ends in a text, at `end`."""
    unit = unit_after(text, end)
    if unit and _DECIMAL_COMMA.fullmatch(content):
        content = content.replace(",", ".")  # 2,4 km
    if not unit or "," in content:
        return content
    if "+" in content or "-" in content[1:]:
        return content if "=" in content else f"({content}){unit}"  # the unit is that of the sum
    return content + unit


def unit_after(text: str, end: int) -> str:
    match = _SAID.UNIT.match(text[end : end + 60])
    if match is None:
        return ""
    word = match["word"]
    if match["power"]:
        known = word in UNITS and match["power"].strip(" .") in POWER_WORDS
    else:
        # prose has "5 in all" and "5 as well" where it has no inch and no attosecond
        known = (word in UNITS or (len(word) > 3 and word.lower() in UNITS)) and (
            word not in _NO_UNITS_IN_PROSE or not match["after"].strip()
        )
    if not known:
        return ""
    return " \\text{ " + match[1].replace("µ", "μ") + "}"


def after_last_equals(text: str) -> str | None:
    """What a last sentence without marks of maths says something equals: "∫ x² dx = x³/3 + C"."""
    sentence = last_sentence(text)[-MAX_STATED:]
    left, equals, said = sentence.rpartition("=")
    plain = (
        equals and not any(mark in said for mark in "$,;\\<>") and left.strip()[-1:] not in "<>!"
    )
    return said.strip() if plain and _HAS_MATHS.search(said) else None


def takes_all_back(text: str) -> bool:
    """Whether a text takes its answer back and puts nothing in its place."""
    return _SAID.DISOWNED.search(text) is not None and second_thought(text) is None


def second_thought(text: str) -> str | None:
    """What a text that takes something back puts in its place, to the end of that sentence."""
    found = list(_SAID.SECOND_THOUGHTS.finditer(text))
    if not found:
        disowned = _SAID.DISOWNED.search(text)
        return None if disowned is None else next(stated(text[disowned.end() :]), None)
    said = last_sentence(_SENTENCES.split(text[found[-1].end() :].strip())[0])
    return said if _HAS_MATHS.search(_CLAUSE_END.split(said)[0]) else None


def looks_like_code(text: str) -> bool:
    """Whether a line is a program's text, whose numbers are nobody's answer."""
    return _SAID.CODE.search(text) is not None
