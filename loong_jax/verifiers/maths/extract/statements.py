"""A response as one text in English, without thinking, tags, marks of HTML and JSON; its boxes."""

import functools
import re
from typing import NamedTuple

from loong_jax.data import response
from loong_jax.data.response import Box
from loong_jax.verifiers.maths import languages, names
from loong_jax.verifiers.maths.extract import prose
from loong_jax.verifiers.maths.reading import parser, sides

_GAP = re.compile(r"\s{8,}")
SAID = names.patterns("statements")
_IN_CASE = re.compile(r"若|如果|\bif\b|\botherwise\b", re.IGNORECASE)
_BREAK = re.compile(r"<(?:br|hr)\s*/?>")
_ESCAPED = re.compile(r'\\(["/\\]|n(?![A-Za-z]))')
_SPECIAL = re.compile(r"<\|(?:im_|end|eot|start|begin)[^>]{0,30}>|<(?:eos|pad|bos)>|</s>")
SPRAY = 12  # so many different boxes are no solution's intermediate results
_MULTIPLE = re.compile(r"\$?\s*" + sides.SAID.ASIDE.pattern, re.IGNORECASE)
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
    if "<" in text:
        match = _SPECIAL.search(text)
        if match is not None and match.start() > 0:
            text = text[: match.start()]
    if "</" in text or "<br" in text or "<hr" in text:
        text = _BREAK.sub("\n", text)
        for _ in range(3):  # one inside another
            text = SAID.MARKED.sub(_unmarked, text)
    text = languages.translated(text)
    if any(sign in text for sign in "\\{~_,"):
        text = parser.with_groups(text)
    return _GAP.sub(_short_gap, text).strip()


def _of_json(text: str) -> str | None:
    """The answer of an object in JSON that ends a text, as it was meant before it was escaped."""
    found = list(
        SAID.JSON.finditer(text, max(0, text.rfind("{\n"), text.rfind('{"'), text.rfind("{ ")))
    )
    if not found or text[found[-1].end() :].count("{"):
        return None
    said = max(found, key=lambda one: (bool(one["final"]), bool(one["plain"]), one.start()))
    if said["text"] is None:
        return said["bare"]
    return _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], said["text"])


def _unmarked(match: re.Match[str]) -> str:
    sign = {"sup": "^", "sub": "_"}.get(match["tag"])
    return match["inner"] if sign is None else f"{sign}{{{match['inner']}}}"


def _short_gap(gap: re.Match[str]) -> str:
    """A gap that says as much: rules that look for white space twice are slow in long ones."""
    return {0: " ", 1: "\n"}.get(gap[0].count("\n"), "\n\n")


def _tagged(text: str, opening: str, closing: str) -> str:
    """What the last tags hold; with only white space before them, all in a row are one list."""
    contents: list[str] = []
    while len(contents) < SPRAY:
        before, found, after = text.rpartition(opening)
        if not found:
            break
        content, closed, gap = after.partition(closing)
        if contents and (not closed or gap.strip()):
            break
        contents.insert(0, content.strip())
        text = before
    return " \\text{ and } ".join(dict.fromkeys(contents))


# ---- boxes


def is_denied(text: str, box: Box) -> bool:
    """Whether the words right before or after it say that this is not the answer."""
    before, after = text[max(0, box.start - 80) : box.start], text[box.end : box.end + 40]
    return SAID.DENIED.search(before) is not None or SAID.DENIED_AFTER.match(after) is not None


def joined(text: str, boxes: list[Box]) -> str:
    """The last box, with those that only "or", "and x =" or punctuation keeps apart from it."""
    different = {" ".join(box.content.split()) for box in boxes}
    run = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        gap = text[box.end : run[0].start]
        is_joined = SAID.BOX_JOIN.fullmatch(_MULTIPLE.sub("", gap)) or _are_cases(text, box, run[0])
        if len(different) < SPRAY and not is_joined:
            break
        run.insert(0, box)
    after = text[run[-1].end : run[-1].end + 40]
    unit = re.match(r"\s*\$?\s*(percent\b|pct\b|\\?%)", after)
    if len(run) == 1:
        if (power := _POWER_AFTER.match(after)) is not None:
            return f"({run[0].content}){power[0]}"
        if unit:
            return f"{run[0].content} {unit[1]}"
        return prose.with_unit_after(run[0].content, text, run[0].end)
    starts = [*(box.start for box in run[1:]), run[-1].end + 40]
    contents = list(
        dict.fromkeys(
            _with_multiplicity(box.content.strip(), text[box.end : start])
            for box, start in zip(run, starts, strict=True)
        )
    )
    return " \\text{ and } ".join(contents)


def _are_cases(text: str, one: Box, other: Box) -> bool:
    """Whether a sentence has a box for either case: "9 if it may repeat; if not, 6"."""
    before, gap = text[max(0, one.start - 80) : one.start], text[one.end : other.start]
    before, gap = (part.replace("\nAnswer:", " ") for part in (before, gap))
    before = re.split(r"[.!?\n]", before)[-1]
    is_one = len(gap) < 80 and not re.search(r"[.!?]\s|\n", gap)
    return is_one and all(_IN_CASE.search(part) is not None for part in (before, gap))


def _with_multiplicity(content: str, gap: str) -> str:
    said = _MULTIPLE.match(gap)
    return content if said is None else f"{content} {said[0].strip(' $')}"
