"""Boxes of a response: the last one, and those that stand in a row with it."""

import re

from loong_jax.data.response import Box
from loong_jax.verifiers.maths.extract import prose
from loong_jax.verifiers.maths.reading import left_sides

SPRAY = 12  # so many different boxes are no solution's intermediate results
_WORD_JOINS = r"or|and|either|maybe|perhaps|possibly|alternatively|also|even"
JOIN = re.compile(
    rf"(?:\([a-z\d]\)|[\s,;:*$.()\[\]/]|\\[()\[\],;! ]|\\q?quad\b|\b(?:{_WORD_JOINS})\b|"
    rf"\\text\s*\{{\s*(?:{_WORD_JOINS})\s*\}})*",
    re.IGNORECASE,
)
_BOX_JOIN = re.compile(rf"{JOIN.pattern}(?:(?<!\w)[A-Za-z](?:_\{{?\w\}}?)?\s*=\s*)?", re.IGNORECASE)
_MULTIPLE = re.compile(r"\$?\s*" + left_sides.ASIDE, re.IGNORECASE)
_POWER_AFTER = re.compile(r"\^(?:\d|\{[^{}]{1,20}\})(?<!\\circ\})")  # \boxed{3}^2
_DENIED = re.compile(  # "is definitely not", "I do not think it is"
    r"(?:\b(?:not|cannot|never|neither|nor)|n't)"
    r"(?:\s+(?:be|equal|to|the|it|its|this|that|is|of|possibly|definitely|certainly|actually|really|"
    r"simply|just|think|believe|say|correct|right|final|answer|value))*[\s:$*({]*\Z",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"[\s$*)]*(?:is|was|would be|can(?=not))\s*(?:(?:not|n't)\s+(?:be\s+)?(?:possible|correct|right|the\b|it\b|"
    r"valid|allowed)|wrong|incorrect|impossible|excluded)"
)


def is_denied(text: str, box: Box) -> bool:
    """Whether the words right before or after it say that this is not the answer."""
    before, after = text[max(0, box.start - 80) : box.start], text[box.end : box.end + 40]
    return _DENIED.search(before) is not None or _DENIED_AFTER.match(after) is not None


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
