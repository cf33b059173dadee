"""Markdown around an answer: bold type at the end of a response, and lists of bullet points."""

import re

from loong_jax.verifiers.maths import names, values
from loong_jax.verifiers.maths.expression import CostError, ParseError
from loong_jax.verifiers.maths.reading import readings
from loong_jax.verifiers.maths.units import UNITS

_SAID = names.patterns("markdown")
_AFTER = re.compile(r"[\s.!,;:)*$]*(?:(?:[A-Za-z]+[\s.!,;)*]*){0,4})?\s*\Z")
_TAKES_BACK = re.compile(r"\b(?:not|wrong|incorrect|false|impossible|no|cannot|fails?)\b", re.I)
_BETWEEN = re.compile(r"\s*(?:[,;]|\bor\b|\band\b|[,;]\s*(?:or|and)\b)\s*(?:at\s+|by\s+)?", re.I)
_ITEM_END = re.compile(r"[\s.,;]*(?:\b(?:and|or)\b)?[\s.,;]*\Z")
_FORMULA = re.compile(r"\$\$?(?P<inner>[^$]{1,200})\$\$?|\\[(\[](?P<other>.{1,200}?)\\[)\]]")
_PROSE = re.compile(r"(?<!\\)\b[A-Za-z]{3,}\b")
_NAMED = re.compile(r"[^=\d]*[A-Za-z)](?:_\{?\w+\}?)?\s*=[^=]*")
_CHECKED = re.compile(r"\b(?:check|verif|example|formula|recall|note|since|because)", re.I)
_LISTS = re.compile(r"\b(?:are|answers?|solutions?|roots?|values?|and|or|not)\b|[,;:&-]\Z", re.I)
_WORDS = re.compile(r"(?<!\\)\b[A-Za-z]{2,}\b")
MAX_ITEMS = 24


_QUOTED = re.compile(r"^\s*>\s+", re.MULTILINE)
_CODE = re.compile(r"(?<!`)`([^`\n]{1,200})`(?!`)")
_STRONG = re.compile(r"(?<![\w_])__(?=[^\s_])([^_\n]{1,200})(?<=\S)__(?![\w_])")


def _of_rows(aligned: re.Match[str]) -> str:
    """The last formula of rows that are aligned: what begins with a relation goes on."""
    rows = [row.replace("&", " ").strip(" .\n") for row in aligned["rows"].split(r"\\")]
    rows = [row for row in rows if row]
    last = len(rows) - 1
    while last > 0 and rows[last].startswith("="):
        last -= 1
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
        text = _CODE.sub(r"\1", text)
    return _SAID.HEADING.sub("\nAnswer:", text).strip()


def set_apart(body: str) -> tuple[str, str] | None:
    """What comes before a last line that stands on its own, and that line without bold type.

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
    if _TAKES_BACK.search(before.rpartition("\n")[2]) or _CHECKED.search(before[-60:]):
        return None
    inner = (line if bold is None else bold[1]).strip()
    return None if inner.endswith(":") else (before, inner)


def _is_alone(before: str, line: str) -> bool:
    """Whether a last line is the value of what stands before it: "We multiply 6 by 7.\\n42"."""
    earlier = before.rpartition("\n")[2].strip()
    if len(line) > 60 or "=" in line or _SAID.BARE.fullmatch(line.strip()) is None or not earlier:
        return False
    if any(w not in names.FUNCTIONS and w not in UNITS for w in _WORDS.findall(earlier)):
        return earlier.endswith((".", "!")) or _LISTS.search(earlier) is None
    if "=" in earlier:
        return True
    try:
        one, other = (readings.of(text.strip(" .$"))[0] for text in (earlier, line))
        return one != other and values.equal(one, other) is True
    except (ParseError, CostError):
        return False


def last_bold(body: str) -> str | None:
    """What is in bold type at the end of a text, with what "and" or "or" sets beside it."""
    if "**" not in body:
        return None
    found = list(_SAID.BOLD.finditer(body))
    if not found:
        return None
    after = body[found[-1].end() :]
    if len(after) > 60 or not _AFTER.match(after) or _TAKES_BACK.search(after):
        return None
    run = [found[-1]]
    for match in reversed(found[:-1]):
        if not _BETWEEN.fullmatch(body[match.end() : run[0].start()]):
            break
        run.insert(0, match)
    if _SAID.DENIAL.search(body[max(0, run[0].start() - 30) : run[0].start()]):
        return None
    contents = [match[1].strip().rstrip(".,;") for match in run]
    if any(content.endswith(":") for content in contents):
        return None  # a heading
    if len(contents) == 1:
        unit = re.match(r"\s*(%|\\%|percent\b)", after)
        return contents[0] + (unit[1] if unit else "")
    return " \\text{ and } ".join(contents)


def only_bold(text: str) -> str | None:
    """What is in bold type at the end of a text, where nothing else is: "at $x = 2$: **$5$"."""
    before, mark, bold = text.removesuffix("**").rpartition("**")
    is_value = mark and "**" not in before and before.rstrip().endswith(":") and "not" not in before
    return bold.strip(" .") if is_value and any(c.isdigit() or c == "$" for c in bold) else None


def without_bold(text: str) -> str:
    """The text without the marks of bold type; x**2 keeps its power."""
    return _SAID.BOLD.sub(lambda m: " " + m[1] + " ", text) if "**" in text else text


def whole_list(text: str) -> str | None:
    """The items of a list that is all of a text; see `last_list`."""
    is_one = _SAID.BULLET.match(text.lstrip()[:80]) is not None and "\n" in text.strip()
    if not is_one or not all(_SAID.BULLET.fullmatch(s) for s in text.split("\n") if s.strip(" *")):
        return None
    return last_list(text)


def ends_on_bullet(text: str) -> bool:
    """Whether the last of several lines is the item of a list."""
    _, newline, last = text.rstrip().rpartition("\n")
    return bool(newline) and _SAID.BULLET.fullmatch(last) is not None


def last_list(body: str) -> str | None:
    """The items of a list that ends a text, joined by "and"; None where they are no bare maths."""
    lines = [line for line in body[-2000:].rstrip().split("\n") if line.strip()]
    items: list[str] = []
    for line in reversed(lines):
        match = _SAID.BULLET.fullmatch(line)
        if match is None:
            break
        items.insert(0, _ITEM_END.sub("", match["item"]))
    if not 1 < len(items) <= MAX_ITEMS:
        return None
    bare = [_bare(item) for item in items]
    if any(item is None for item in bare):
        return None
    kept = [item for item in bare if item is not None]
    if any("=" in item for item in kept) and not all(map(_NAMED.fullmatch, kept)):
        return None  # steps of a calculation
    return " \\text{ and } ".join(kept)


def _bare(item: str) -> str | None:
    """The maths of an item; None where it has words or is no single formula."""
    item = without_bold(item).strip()
    match = _FORMULA.fullmatch(item)
    if match is not None:
        return (match["inner"] or match["other"]).strip()
    if "$" in item or "\\(" in item or len(item) > 80 or _PROSE.search(item):
        return None
    return item
