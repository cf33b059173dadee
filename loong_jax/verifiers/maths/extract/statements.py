"""A response without its thinking, its answer tags and what follows its end."""

import re

from loong_jax.data import response
from loong_jax.verifiers.maths.extract import boxes

_GAP = re.compile(r"\s{8,}")
_HIDDEN = re.compile(  # comments, and what is struck out; ~~ in a formula is room
    r"<!--.{0,2000}?-->|(?<![\w~\\${])~~(?=[^\s~])[^~$\n]{1,200}(?<=\S)~~(?![\w~])|"
    r"<(?P<tag>del|strike)>[^<]{0,500}</(?P=tag)>",
    re.DOTALL,
)
_SPECIAL = re.compile(r"<\|(?:im_|end|eot|start|begin)[^>]{0,30}>|<(?:eos|pad|bos)>|</s>")


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
    if "~~" in text or "<" in text:
        text = _HIDDEN.sub(" ", text)
    if "<" in text:
        match = _SPECIAL.search(text)
        if match is not None and match.start() > 0:
            text = text[: match.start()]
    return _GAP.sub(_short_gap, text).strip().replace("\u2212", "-")


def _short_gap(gap: re.Match[str]) -> str:
    """A gap that says as much: rules that look for white space twice are slow in long ones."""
    return {0: " ", 1: "\n"}.get(gap[0].count("\n"), "\n\n")


def _tagged(text: str, opening: str, closing: str) -> str:
    """What the last tags hold; with only white space before them, all in a row are one list."""
    contents: list[str] = []
    while len(contents) < boxes.SPRAY:
        before, found, after = text.rpartition(opening)
        if not found:
            break
        content, closed, gap = after.partition(closing)
        if contents and (not closed or gap.strip()):
            break
        contents.insert(0, content.strip())
        text = before
    return " \\text{ and } ".join(dict.fromkeys(contents))
