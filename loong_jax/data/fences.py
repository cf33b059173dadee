"""Fenced blocks of a Markdown text, as models write them: indented, quoted, unfinished."""

import re
from typing import NamedTuple

_FENCE = re.compile(  # possessive: no backtracking
    r"^(?P<indent>[ \t]*+(?:(?:>|(?:[-*+]|\d{1,3}[.)])(?=[ \t]))[ \t]*+)*+)"
    r"(?P<fence>`{3,}+|~{3,}+)(?P<info>[^`\n]*+)$",
    re.MULTILINE,
)
_MAX_DEEPER = 3  # columns that a fence which closes may stand to the right of the one that opens


class Block(NamedTuple):
    """`info` is what stands behind the opening fence; `body` ends with its last line's end."""

    start: int  # of the text, fences included
    end: int
    info: str
    body: str
    is_closed: bool


def blocks(text: str) -> list[Block]:
    """The blocks of a text in order, in linear time.

    A fence with an info string ends the block before it, closed or not. The body of a block loses
    the marks of a quotation and the columns that all of its lines are indented by.
    """
    if "```" not in text and "~~~" not in text:
        return []
    found: list[Block] = []
    opened: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        if opened is None:
            opened = match
        elif match["fence"][0] == opened["fence"][0] and (
            len(match["fence"]) >= len(opened["fence"])
        ):
            if match["info"].strip():
                found.append(_block(text, opened, match.start(), match.start(), False))
                opened = match
            elif len(match["indent"]) <= len(opened["indent"]) + _MAX_DEEPER:
                found.append(_block(text, opened, match.start(), match.end(), True))
                opened = None
    if opened is not None:
        glued = text.find(opened["fence"], opened.end())  # `print(1)```: on the last line of it
        last = glued if glued >= 0 else len(text)
        found.append(_block(text, opened, last, len(text), False))
    return found


def unframed(text: str, *names: str) -> str:
    """The body where a text is one block without a name or with one of these; else the text."""
    found = blocks(text) if text.startswith(("```", "~~~")) else []
    is_frame = [block.end for block in found] == [len(text)]
    return found[0].body if is_frame and found[0].info.lower() in ("", *names) else text


def _block(text: str, opened: re.Match[str], body_end: int, end: int, is_closed: bool) -> Block:
    lines = text[min(opened.end() + 1, body_end) : body_end].splitlines(keepends=True)
    if ">" in opened["indent"]:
        lines = [re.sub(r"^[ \t]*> ?", "", line) for line in lines]
    margins = [len(line) - len(line.lstrip(" \t")) for line in lines if line.strip()]
    margin = min(margins, default=0)
    body = "".join(line[margin:] if line.strip() else line.lstrip(" \t") for line in lines)
    return Block(opened.start(), end, opened["info"].strip(), body, is_closed)
