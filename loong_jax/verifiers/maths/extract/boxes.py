"""Boxes of a response: the last one, and those that stand in a row with it."""

import re
from typing import NamedTuple

from loong_jax.verifiers.maths.extract import prose
from loong_jax.verifiers.maths.reading import multiplicity

MAX_BOXES = 64
SPRAY = 12  # so many different boxes are no solution's intermediate results
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?=[{\d\w\\])")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # a brace, or an escaped one, which is none
_WORD_JOINS = r"or|and|either|maybe|perhaps|possibly|alternatively|also|even"
JOIN = re.compile(
    rf"(?:\([a-z\d]\)|[\s,;:*$.()\[\]/]|\\[()\[\],;! ]|\\q?quad\b|\b(?:{_WORD_JOINS})\b|"
    rf"\\text\s*\{{\s*(?:{_WORD_JOINS})\s*\}})*",
    re.IGNORECASE,
)
_BOX_JOIN = re.compile(rf"{JOIN.pattern}(?:(?<!\w)[A-Za-z](?:_\{{?\w\}}?)?\s*=\s*)?", re.IGNORECASE)
_MULTIPLE = re.compile(r"\$?\s*" + multiplicity.ASIDE, re.IGNORECASE)
_POWER_AFTER = re.compile(r"\^(?:\d|\{[^{}]{1,20}\})(?<!\\circ\})")  # \boxed{3}^2
_DENIED = re.compile(  # "is definitely not", "I do not think it is"
    r"(?:\b(?:not|cannot|never|neither|nor)|n't)"
    r"(?:\s+(?:be|equal|to|the|it|its|this|that|is|of|possibly|definitely|certainly|actually|really|"
    r"simply|just|think|believe|say|correct|right|final|answer|value))*[\s:$*({]*\Z",
    re.IGNORECASE,
)


class Box(NamedTuple):
    start: int
    end: int
    content: str


def last(text: str) -> list[Box]:
    """The last boxes of a text, in order; one whose brace never closes is none."""
    if "box" not in text:
        return []
    found: list[Box] = []
    starts = [m.start() for m in _BOX.finditer(text, max(0, len(text) - 200_000))]
    for start in starts[-MAX_BOXES:]:
        match = _BOX.match(text, start)
        assert match is not None
        opening = match.end()
        if text[opening] != "{":
            word = re.compile(r"\\?\w+").match(text, opening)
            if word is not None:
                found.append(Box(start, word.end(), word[0]))
            continue
        end = _closing(text, opening)
        if end is not None:
            found.append(Box(start, end + 1, text[opening + 1 : end]))
    return [box for box in found if not any(o.start < box.start < o.end for o in found)]


def is_denied(text: str, box: Box) -> bool:
    """Whether the words right before it say that this is not the answer."""
    return _DENIED.search(text[max(0, box.start - 80) : box.start]) is not None


def _closing(text: str, opening: int) -> int | None:
    depth = 0
    for brace in _BRACE.finditer(text, opening, opening + 20_000):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


def joined(text: str, boxes: list[Box]) -> str:
    """The last box, with those that only "or", "and x =" or punctuation keeps apart from it."""
    different = {" ".join(box.content.split()) for box in boxes}
    run = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        gap = text[box.end : run[0].start]
        if len(different) < SPRAY and not _BOX_JOIN.fullmatch(_MULTIPLE.sub("", gap)):
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


def _with_multiplicity(content: str, gap: str) -> str:
    said = _MULTIPLE.match(gap)
    return content if said is None else f"{content} {said[0].strip(' $')}"
