"""A response as one text in English, without thinking, tags, HTML and JSON; boxes, Markdown."""

import functools
import itertools
import re
from typing import NamedTuple

from loong_jax.problems import response
from loong_jax.problems.response import Box
from loong_jax.verifiers.answers import prose
from loong_jax.verifiers.maths import languages, names, reading, values
from loong_jax.verifiers.maths.expression import CostError, ParseError
from loong_jax.verifiers.maths.reading import readings
from loong_jax.verifiers.maths.units import UNITS

_GAP = re.compile(r"\s{8,}")
SAID = names.patterns("statements")
_MARKS = {"sup": "^{{{}}}", "sub": "_{{{}}}"}
_ESCAPED = re.compile(r'\\(["/\\]|n(?![A-Za-z]))')
READ = 10_000  # so many last characters of a long response are put into English,
BESIDE = 1_000  # or from so many before its last box, where that is earlier
SPRAY = 12  # so many different boxes are no solution's intermediate results
_MULTIPLE = re.compile(r"\$?\s*" + reading.SIDES.ASIDE.pattern, re.IGNORECASE)
_POWER_AFTER = re.compile(r"\^(?:\d|\{[^{}]{1,20}\})(?<!\\circ\})")  # \boxed{3}^2


class Span(NamedTuple):
    """A piece of a response that may be its answer."""

    text: str
    # boxed, boxes, letter, label, phrase, whole, bold, listed, stated, formula, number, sentence
    rule: str


@functools.lru_cache(maxsize=4)  # one verdict asks for it again and again
def statement(text: str) -> str:
    """The response without its thinking, its answer tags, what follows its end and long gaps.

    Comments of HTML and what Markdown or HTML strikes out are left out too; thinking that does not
    end states nothing.
    """
    text = response.after_thinking(response.without_end(text)) or ""
    for opening, closing in response.ANSWERS:
        if opening in text:
            text = _tagged(text, opening, closing)
            break
    if text.rstrip("` \n").endswith("}") and (said := _of_json(text)) is not None:
        text = said
    if "~~" in text or "<" in text or "\\s" in text:
        text = SAID.HIDDEN.sub(" ", text)
    if "<" in text and (match := _SAID.SPECIAL.search(text)) and match.start() > 0:
        text = text[: match.start()]
    if "</" in text or "<br" in text or "<hr" in text:
        text = _SAID.BREAK.sub("\n", text)
        for _ in range(3):  # one inside another
            text = SAID.MARKED.sub(lambda m: _MARKS.get(m["tag"], "{}").format(m["inner"]), text)
    box = text.rfind("\\boxed")
    start = max(0, len(text) - READ) if box < 0 else max(0, min(len(text) - READ, box - BESIDE))
    before, text = text[:start], languages.translated(text[start:])
    if any(sign in text for sign in "\\{~_,"):
        text = reading.with_groups(text)
    # A gap says as much when it is short: rules that look for white space twice are slow in it.
    return _GAP.sub(lambda m: "\n" * min(2, m[0].count("\n")) or " ", before + text).strip()


def _of_json(text: str) -> str | None:
    """The answer of an object in JSON that ends a text, as it was meant before it was escaped."""
    start = max(text.rfind(opening) for opening in ("{\n", '{"', "{ "))
    found = list(SAID.JSON.finditer(text, max(0, start)))
    if not found or text[found[-1].end() :].count("{"):
        return None
    said = max(found, key=lambda one: (bool(one["final"]), bool(one["plain"]), one.start()))
    if said["text"] is None:
        return said["bare"]
    return _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], said["text"])


def _tagged(text: str, opening: str, closing: str) -> str:
    """The content of the last tags; tags in a row, with white space between, are one list."""
    contents: list[str] = []
    for after in text.rsplit(opening, SPRAY)[:0:-1]:
        content, closed, gap = after.partition(closing)
        if contents and (not closed or gap.strip()):
            break
        contents.insert(0, content.strip())
    return " \\text{ and } ".join(dict.fromkeys(contents))


def is_denied(text: str, box: Box) -> bool:
    """True if the words right before or after a box say that this is not the answer."""
    before, after = text[max(0, box.start - 80) : box.start], text[box.end : box.end + 40]
    return SAID.DENIED.search(before) is not None or SAID.DENIED_AFTER.match(after) is not None


def joined(text: str, boxes: list[Box]) -> str:
    """The last box, with those that only "or", "and x =" or punctuation keeps apart from it."""
    different = {" ".join(box.content.split()) for box in boxes}
    run = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        gap = text[box.end : run[0].start]
        is_joined = SAID.BOX_JOIN.fullmatch(_MULTIPLE.sub("", gap)) or _are_cases(text, box, gap)
        if len(different) < SPRAY and not is_joined:
            break
        run.insert(0, box)
    content, end = run[-1].content, run[-1].end
    after = text[end : end + 40]
    if len(run) == 1 and (power := _POWER_AFTER.match(after)) is not None:
        return f"({content}){power[0]}"
    if len(run) == 1:
        unit = re.match(r"\s*\$?\s*(percent\b|pct\b|\\?%)", after)
        return f"{content} {unit[1]}" if unit else prose.with_unit_after(content, text, end)
    contents = []
    for box, start in zip(run, (*(box.start for box in run[1:]), end + 40), strict=True):
        said = _MULTIPLE.match(text[box.end : start])
        contents.append(box.content.strip() + (f" {said[0].strip(' $')}" if said else ""))
    return " \\text{ and } ".join(dict.fromkeys(contents))


def _are_cases(text: str, box: Box, gap: str) -> bool:
    """True if a sentence has a box for either case: "9 if it may repeat; if not, 6"."""
    before, gap = (part.replace("\nAnswer:", " ") for part in (text[: box.start][-80:], gap))
    before = re.split(r"[.!?\n]", before)[-1]
    is_one = len(gap) < 80 and not re.search(r"[.!?]\s|\n", gap)
    return is_one and all(_SAID.IN_CASE.search(part) is not None for part in (before, gap))


_SAID = names.patterns("markdown")
_AFTER = re.compile(r"[\s.!,;:)*$]*(?:(?:[A-Za-z]+[\s.!,;)*]*){0,4})?\s*\Z")
_FORMULA = re.compile(r"\$\$?(?P<inner>[^$]{1,200})\$\$?|\\[(\[](?P<other>.{1,200}?)\\[)\]]")
PROSE = re.compile(r"(?<!\\)\b[A-Za-z]{3,}\b")
_NAMED = re.compile(r"[^=\d]*[A-Za-z)](?:_\{?\w+\}?)?\s*=[^=]*")
_WORDS = re.compile(r"(?<!\\)\b[A-Za-z]{2,}\b")
MAX_ITEMS = 24
_QUOTED = re.compile(r"^\s*>\s+", re.MULTILINE)
_STRONG = re.compile(r"(?<![\w_])__(?=[^\s_])([^_\n]{1,200})(?<=\S)__(?![\w_])")


def _of_rows(aligned: re.Match[str]) -> str:
    """The last formula of rows that are aligned: what begins with a relation goes on."""
    rows = [row.replace("&", " ").strip(" .\n") for row in aligned["rows"].split(r"\\")]
    rows = [row for row in rows if row]
    last = max((i for i, row in enumerate(rows) if row[0] != "="), default=0)
    return "$" + " ".join(rows[last:]) + "$"


def undecorated(text: str) -> str:
    """The text without quotation marks, code marks and signs of an end; headings as "Answer:"."""
    text = text.rstrip()
    if text.endswith(("*", "*.", "*!")):
        text = _SAID.SLANTED_END.sub(r"**\2**", text)
    elif "\\end{" in text[-40:]:
        text = _SAID.ALIGNED_END.sub(_of_rows, text)
    if _SAID.DECORATION.search(text) is None:
        return text
    text = _QUOTED.sub("", _SAID.SIGNS.sub(" ", text))
    text = _SAID.SLANTED.sub(r"\1\2", _STRONG.sub(r"**\1**", text))
    if "__" not in text and "(" not in text.partition("`")[0][-1:]:
        text = re.sub(r"(?<!`)`([^`\n]{1,200})`(?!`)", r"\1", text)
    return _SAID.HEADING.sub("\nAnswer:", text).strip()


def set_apart(body: str) -> tuple[str, str] | None:
    """(text before, last line without bold type), where the last line stands on its own.

    It does where it is bold from end to end, or follows a line that ends with a colon. None where
    there is no such line, or where what comes before takes it back.
    """
    before, _, line = body.rstrip().rpartition("\n")
    before = before.rstrip()
    if len(line) > 200:
        return None
    bold = _SAID.BOLD.fullmatch(line.strip(" .$"))
    if bold is None and ("**" in line or not (before.endswith(":") or _is_alone(before, line))):
        return None
    if _SAID.TAKES_BACK.search(before.rpartition("\n")[2]) or _SAID.CHECKED.search(before[-60:]):
        return None
    inner = (line if bold is None else bold[1]).strip()
    return None if inner.endswith(":") else (before, inner)


def _is_alone(before: str, line: str) -> bool:
    """True if a last line is the value of what stands before it: "We multiply 6 by 7.\\n42"."""
    earlier = before.rpartition("\n")[2].strip()
    if len(line) > 60 or "=" in line or _SAID.BARE.fullmatch(line.strip()) is None or not earlier:
        return False
    if any(w not in names.FUNCTIONS and w not in UNITS for w in _WORDS.findall(earlier)):
        return earlier.endswith((".", "!")) or _SAID.LISTS.search(earlier) is None
    if "=" in earlier:
        return True
    try:
        one, other = (readings.of(text.strip(" .$"))[0] for text in (earlier, line))
        return one != other and values.equal(one, other) is True
    except (ParseError, CostError):
        return False


def last_bold(body: str) -> str | None:
    """The text in bold type at the end, with other bold texts that "and" or "or" sets beside it."""
    found = list(_SAID.BOLD.finditer(body)) if "**" in body else []
    after = body[found[-1].end() :] if found else ""
    if not found or len(after) > 60 or not _AFTER.match(after) or _SAID.TAKES_BACK.search(after):
        return None
    run = [found[-1]]
    for match in reversed(found[:-1]):
        if not _SAID.BETWEEN.fullmatch(body[match.end() : run[0].start()]):
            break
        run.insert(0, match)
    contents = [match[1].strip().rstrip(".,;") for match in run]
    is_heading = any(content.endswith(":") for content in contents)
    is_none = is_heading or _SAID.DENIAL.search(body[: run[0].start()][-30:])
    return None if is_none else " \\text{ and } ".join(contents)


def without_bold(text: str) -> str:
    """The text without the marks of bold type; x**2 keeps its power."""
    return _SAID.BOLD.sub(lambda m: " " + m[1] + " ", text) if "**" in text else text


def whole_list(text: str) -> str | None:
    """The items of a list that is all of a text; see `last_list`."""
    is_one = _SAID.BULLET.match(text.lstrip()[:80]) is not None and "\n" in text.strip()
    lines = (line for line in text.split("\n") if line.strip(" *"))
    is_one = is_one and all(map(_SAID.BULLET.fullmatch, lines))
    return last_list(text) if is_one else None


def ends_on_bullet(text: str) -> bool:
    """True if the last of several lines is the item of a list."""
    _, newline, last = text.rstrip().rpartition("\n")
    return bool(newline) and _SAID.BULLET.fullmatch(last) is not None


def last_list(body: str) -> str | None:
    """The items of a list that ends a text, joined by "and"; None where they are no bare maths."""
    lines = (line for line in reversed(body[-2000:].rstrip().split("\n")) if line.strip())
    bullets = itertools.takewhile(bool, map(_SAID.BULLET.fullmatch, lines))
    items = [_bare(_SAID.ITEM_END.sub("", bullet["item"])) for bullet in bullets if bullet]
    kept = [item for item in reversed(items) if item is not None]
    if not 1 < len(items) <= MAX_ITEMS or len(kept) < len(items):
        return None
    if any("=" in item for item in kept) and not all(map(_NAMED.fullmatch, kept)):
        return None  # steps of a calculation
    return " \\text{ and } ".join(kept)


def _bare(item: str) -> str | None:
    """The maths of an item; None where it has words or is no single formula."""
    item = without_bold(item).strip()
    if (match := _FORMULA.fullmatch(item)) is not None:
        return (match["inner"] or match["other"]).strip()
    is_none = "$" in item or "\\(" in item or len(item) > 80 or PROSE.search(item)
    return None if is_none else item
