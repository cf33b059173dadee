"""Sentences around an answer: units after a number, second thoughts, "the mean is ..."."""

import functools
import re
from collections.abc import Iterator

from loong_jax.verifiers.maths import names, wording
from loong_jax.verifiers.maths.reading import numerals
from loong_jax.verifiers.maths.units import POWER_WORDS, UNITS

MAX_STATED = 200  # characters of what "is" states
_SENTENCES = re.compile(  # begins with white space, so that the search is fast
    r"\s(?:(?<=[.!?].)(?<!i\.e\..)(?<!e\.g\..)\s*|(?<=\n)\n*)", re.DOTALL
)
SAID = names.patterns("prose", NUMERAL=numerals.PATTERN)
_NO_UNITS_IN_PROSE = frozenset(("in", "as", "at", "pm", "a", "am"))
_BRACKETED = re.compile(r"\([^()]*\)")


@functools.lru_cache(maxsize=64)  # one verdict asks for it again and again
def last_sentence(text: str) -> str:
    """The last sentence of a text; the point of 0.5 ends none."""
    found = sentences(text)
    return found[-1].strip().rstrip(".!") if found else ""


def sentences(text: str) -> list[str]:
    return [part for part in _SENTENCES.split(text.strip()) if part.strip()]


def stated(text: str) -> Iterator[str]:
    """The values that the last sentence states: "(2, 3)" of "The vertex is at (2, 3)."."""
    sentence = SAID.AS_ANSWER.sub("", last_sentence(text)[-2 * MAX_STATED :])
    if "odds" in sentence:  # 3:5 is no probability of 3/5
        return
    if (everywhere := SAID.HOLDS.search(sentence)) is not None:
        yield re.sub(r"(?<=numbers)\s+\$?[a-z]\$?\Z", "", sentence[everywhere.end() :])
        return
    if (kept := SAID.ONLY.search(sentence)) is not None:
        yield kept[1]
        return
    *_, verb = (None, *SAID.STATES.finditer(sentence))
    if verb is None:
        said = SAID.ANNOUNCED.fullmatch(sentence)
        if said is not None and SAID.HAS_MATHS.search(said[1]) and not SAID.DOUBT.search(said[0]):
            yield SAID.CONCLUSION.split(said[1])[-1]
        return
    said, before = sentence[verb.end() :], _BRACKETED.sub(" ", sentence[: verb.start()])
    if SAID.DOUBT.search(before) or SAID.DENIED.search(before) or SAID.WHOSE.search(before):
        return  # "it could be 11 or it could be 12", "it cannot be 11"
    for counted in list(SAID.COUNTED.finditer(sentence))[-1:]:  # there are 24 orders of 4 things
        if not SAID.GOES_ON.search(counted[2]) and not SAID.DOUBT.search(counted[2]):
            said = counted[1]
    said = SAID.CONCLUSION.split(said)[-1]
    if len(said) > MAX_STATED or _DENIES.match(said):
        return
    if SAID.HAS_MATHS.search(said) or numerals.number_from_words(said.strip(" *")) is not None:
        yield said


def two_stated(sentence: str) -> str | None:
    """6 and 9 of "the smaller one is 6 and the larger one is 9", for who asks for both."""
    if (found := SAID.TWO_STATED.search(sentence)) is not None:
        return " \\text{ and } ".join(value for value in found.groups() if value)
    bare = _BRACKETED.sub("", sentence[-MAX_STATED:])
    numbers = list(_AMOUNTS.finditer(bare))
    if len(numbers) != 2 or _FORMAL.search(bare) or SAID.DOUBT.search(bare):
        return None
    gap = bare[numbers[0].end() : numbers[1].start()]
    if not SAID.JOINS.search(gap) or SAID.BOUND_BY.search(bare[: numbers[1].start()]):
        return None
    return " \\text{ and } ".join(m[0] + unit_after(bare, m.end()) for m in numbers)


_FORMAL = re.compile(  # left to the grammar
    r"\bbetween\b|[=<>^{}|±√∞≤≥≠-]|(?<!\\)\$|\\(?!\$)|\A\W*\d"
)
_AMOUNTS = re.compile(r"(?<![\w.,^])(?:\\?[$€£])?\d[\d,]*(?:\.\d+)?(?![\d.]*\d|\s?[-+*/^=])")
_PART = re.compile(r"(?:\A|[\n;,.:*])\s*\**\(([1-8a-h])\)\**")


def labelled_parts(text: str) -> list[str] | None:
    """The parts (1) and (2), or more, of a text; None for a text without them."""
    if "(1)" not in text and "(a)" not in text:
        return None
    row = "abcdefgh" if "(1)" not in text else "12345678"
    found = [m for m in _PART.finditer(text) if m[1] in row]
    first = max((i for i, m in enumerate(found) if m[1] == row[0]), default=0)
    found = found[first:]
    is_last = len(found) > 1 and "\n\n" not in text[found[-1].end() :].strip()
    if not is_last or [m[1] for m in found] != list(row[: len(found)]):
        return None
    ends = [*(m.start() for m in found[1:]), len(text)]
    return [text[m.end() : end].strip(" *;,.\n") for m, end in zip(found, ends, strict=True)]


def with_larger_unit(amount: str, before: str) -> str:
    """1 minute 30 seconds, where an amount of a larger unit stands before 30 seconds."""
    larger = re.search(r"(?<![\d.,/])(\d+)\s+([A-Za-z]+)\s+(?:and\s+)?\Z", before[-40:])
    own = re.search(r"\\text\{ ([A-Za-z]+)\}\Z", amount)
    one, other = larger and UNITS.get(larger[2]), own and UNITS.get(own[1])
    if not larger or not one or not other or one.dimensions != other.dimensions:
        return amount
    return f"{larger[1]} \\text{{ {larger[2]}}} {amount}" if one.factor > other.factor else amount


def end_of_sequence(sentence: str) -> str | None:
    """144 of "Adding the last two each time gives 1, 1, 2, ..., 89, 144", for who asks for it."""
    row = SAID.SEQUENCE.search(sentence)
    before = "" if row is None else sentence[: row.start()]
    is_growing = SAID.GROWS.search(before) and not SAID.SET_OF.search(before) and "=" not in before
    return row[1] if row is not None and is_growing else None


def with_unit_after(content: str, text: str, end: int) -> str:
    """A number or formula, and the unit written where it ends in a text, at `end`."""
    unit = unit_after(text, end)
    if unit and re.fullmatch(r"-?\d+,\d{1,2}", content):
        content = content.replace(",", ".")  # 2,4 km
    if not unit or "," in content:
        return content
    if "+" in content or "-" in content[1:]:
        _, equals, last = content.rpartition("=")
        if not equals:
            return f"({content}){unit}"  # the unit is that of the sum
        return content if re.search(r"[-+]", last.strip()[1:]) else last.strip() + unit
    return content + unit


def unit_after(text: str, end: int) -> str:
    if (match := SAID.UNIT.match(text[end : end + 60])) is None:
        return ""
    word, power = match["word"], match["power"]
    is_known = word in UNITS or (not power and len(word) > 3 and word.lower() in UNITS)
    if power:
        is_unit = power.strip(" .") in POWER_WORDS
    else:  # prose has "5 in all" and "5 as well" where it has no inch and no attosecond
        is_unit = word not in _NO_UNITS_IN_PROSE or not match["after"].strip()
    return " \\text{ " + match[1].replace("µ", "μ") + "}" if is_known and is_unit else ""


def after_last_equals(text: str) -> str | None:
    """The text after the last "=" of a last sentence without marks of maths: "x² dx = x³/3 + C"."""
    sentence = last_sentence(text)[-MAX_STATED:]
    left, equals, said = sentence.rpartition("=")
    is_plain = equals and not any(mark in said for mark in "$,;\\<>")
    is_equation = is_plain and left.strip()[-1:] not in "<>!" and SAID.HAS_MATHS.search(said)
    return said.strip() if is_equation else None


_MAY_TAKE_BACK = re.compile(  # some of it is in all of that
    "(?i)no|wait|oops|sorry|scratch|correct|mis(?:take|read)|actually|wrong|hmm|reflection|thought"
)


def second_thought(text: str) -> str | None:
    """The replacement in a text that takes something back, to the end of that sentence."""
    if not _MAY_TAKE_BACK.search(text):
        return None
    *_, found = (None, *SAID.SECOND_THOUGHTS.finditer(text))
    if found is None:
        disowned = SAID.DISOWNED.search(text)
        return None if disowned is None else next(stated(text[disowned.end() :]), None)
    said = last_sentence(_SENTENCES.split(text[found.end() :].strip())[0])
    said = re.sub(r",?\s+(?:and\s+)?not\s.*", "", said)
    return said if SAID.HAS_MATHS.search(SAID.CLAUSE_END.split(said)[0]) else None


MAX_CHARS = 400  # of a sentence that is looked at
_BREAK = re.compile(r"\s(?:(?<=[.!?].)\s*|(?<=\n)\n*)(?=\S)", re.DOTALL)
_LINE_NUMBER = re.compile(r"(?:\A|\n)\W*\d{1,2}\Z")


@functools.lru_cache(maxsize=16)  # one verdict asks for it again and again
def without_remarks(body: str) -> str:
    """The text up to what it states, where remarks follow that."""
    for _ in range(4):
        breaks = list(_BREAK.finditer(body, max(0, len(body) - 2 * MAX_CHARS)))
        start = breaks[-1].end() if breaks else 0
        last = body[start:]
        is_short = len(last) <= MAX_CHARS
        is_remark = is_short and SAID.SENTENCE.match(last)
        if is_remark and last[0] != "(" and not SAID.OTHER_CASE.match(last):
            is_remark = not SAID.AMENDS.search(last)
        if breaks and (is_remark or _states_nothing(last) or _is_settled(body, breaks)):
            before = body[: breaks[-1].start()]
            said = before[-MAX_CHARS:].rstrip(" .!*")
            is_aside = last[0] == "(" and re.search(r"\d[^.!?\n]*\Z", said)
            if _LINE_NUMBER.search(said) or not (is_aside or _ends_on_value(said)):
                return body
            body = before
        elif is_short and (cut := _cut(last)) is not None:
            body = body[:start] + last[:cut].rstrip()
        else:
            return body
    return body


_BOLD = re.compile(r"\*\*([^*\n]{1,60})\*\*")
_WORD_BEFORE = re.compile(r"\w\W{1,20}\Z")  # else the value is the subject of its sentence
_DENIES = re.compile(r"(?i)\b(?:not|cannot|can't|never|no longer|isn't)\b|不")


def bold_inside(sentence: str) -> str | None:
    """The value in bold type inside a sentence that says more of it: "pays **$64** for 16 glasses".

    Of a sentence that concludes also a name at its beginning: "So **Tom** is the oldest of 3".
    """
    found = list(_BOLD.finditer(sentence)) if "**" in sentence else []
    if len(found) != 1:
        return None
    before, after = sentence[: found[0].start()], sentence[found[0].end() :]
    said = found[0][1].strip(" .,;:")
    if SAID.AMOUNT_ALONE.fullmatch(said) is None:
        concludes = SAID.CONCLUDING.fullmatch(before.rstrip(" ,"))
        is_name = concludes and not any(character.isdigit() for character in said)
        return said if is_name and not re.search(r"\bnot\b|不", after) else None
    is_first = _WORD_BEFORE.search(SAID.CONCLUDING.sub("", before)) is None
    is_mention = _DENIES.search(before) or SAID.MENTIONS.search(before)
    if is_first or is_mention or SAID.STATES_AFTER.search(after):
        return None
    return with_unit_after(said, sentence, found[0].end()) if said[-1:].isdigit() else said


def _ends_on_value(said: str) -> bool:
    """True if a text ends on a value, but for what its last sentence adds to it."""
    if SAID.ENDS_ON_VALUE.search(said) is not None or wording.is_known(said[said.rfind(" ") + 1 :]):
        return True
    last = _BREAK.split(said)[-1]
    return (cut := _cut(last)) is not None and bool(SAID.ENDS_ON_VALUE.search(last[:cut]))


def _is_settled(body: str, breaks: list[re.Match[str]]) -> bool:
    """True if the sentence before the last concludes with a value in bold type."""
    last, end = body[breaks[-1].end() :], breaks[-1].start()
    start = breaks[-2].end() if len(breaks) > 1 else 0
    is_plain = len(last) <= MAX_CHARS and "**" not in last and not SAID.AMENDS.search(last)
    return is_plain and not last.endswith(":") and bool(SAID.IN_BOLD.match(body[start:end]))


def last_inequality(body: str) -> str | None:
    """x > 4 of the lines 2x - 3 > 5, 2x > 8, x > 4, of which each follows from the one before."""
    first, *others = [line for line in body.split("\n") if line.strip()] or [""]
    if not others or SAID.ISOLATED.fullmatch(first) or not SAID.ISOLATED.fullmatch(others[-1]):
        return None
    is_derived = all(re.search(r"[<>≤≥]|\\[gl]e", line) for line in (first, *others))
    is_formal = is_derived and not re.search(r"(?<!\\)\b[A-Za-z]{3,}\b", body)
    return others[-1].strip() if is_formal else None


def _states_nothing(sentence: str) -> bool:
    """True if a sentence neither states a value nor takes one back or goes on to another.

    What stands in brackets, in a reason, behind "for" or "than" is not what a sentence states.
    """
    if len(sentence) > MAX_CHARS or SAID.AMENDS.search(sentence):
        return False
    if SAID.GOES_FURTHER.search(sentence):
        return False
    return SAID.STATES_VALUE.search(SAID.BESIDE.sub(" ", sentence)) is None


def _cut(sentence: str) -> int | None:
    """The start of the remark that ends a sentence; None where none does."""
    for tail in SAID.TAIL.finditer(sentence, 1):
        head, rest = sentence[: tail.start()], sentence[tail.end() :]
        kind, opens = tail.lastgroup, tail[0].strip(", ")
        gives_reason = kind in ("reason", "aside") or opens[:5] in ("as", "where", "which")
        if not (SAID.HAS_VALUE.search(head) or len(head.split()) < 4):
            continue
        if (SAID.TURN if gives_reason else SAID.CONCLUDES).search(rest) or SAID.OPENS.search(head):
            continue  # "and since x is real, x = 2"
        ends = SAID.ENDS_ON_VALUE.search(head) is not None
        is_cut = kind != "bare" or ends
        if kind == "clause":
            is_cut = ": " not in rest and (ends or not re.search(r"\d", rest))
        elif kind == "bare" and "," in rest and SAID.REASON_FIRST.match(head):
            continue  # "since 2 is left when divided by 4, it is 7"
        elif kind == "bare" and opens in ("after", "before", "during"):
            is_cut = (
                ends
                and len(head.split()) > 2
                and not re.search(r"\b(?:is|are|was|will be)\b", rest)
            )
        elif kind == "bare" and "=" in rest:  # "is 0 when x = 3" may be asked for x
            is_cut = ends and not re.search(r"=|\b0\b|zero", head)
        if is_cut:
            return tail.start()
    return None


def count_before(sentence: str) -> str | None:
    """ "There are 4 solutions" of "There are 4 solutions: 1, 2, 5 and 10", for who asks for it."""
    head, colon, rest = sentence[-MAX_CHARS:].partition(": ")
    is_count = colon and head[-1:].strip() and SAID.ENDS_ON_VALUE.search(head)
    is_count = is_count and SAID.COUNTS.search(head)
    if not is_count or SAID.NO_COUNT.search(head) or "=" in head + rest or len(rest.split()) < 2:
        return None
    return None if SAID.CONCLUDES.search(rest) else head
