"""A response as one text in English: without thinking, tags, marks of HTML and JSON around it."""

import functools
import re
from typing import NamedTuple

from loong_jax.data import response
from loong_jax.verifiers.maths import languages
from loong_jax.verifiers.maths.extract import boxes
from loong_jax.verifiers.maths.reading import tokens

_GAP = re.compile(r"\s{8,}")
_HIDDEN = re.compile(  # comments, and what is struck out; ~~ in a formula is room
    r"<!--.{0,2000}?-->|(?<![\w~\\${])~~(?=[^\s~])[^~$\n]{1,200}(?<=\S)~~(?![\w~])|"
    r"<(?P<tag>del|strike|s)>[^<]{0,500}</(?P=tag)>|\\(?:sout|st)\s*\{[^{}]{0,500}\}",
    re.DOTALL,
)
_MARKED = re.compile(  # <b>5</b>; x<sup>2</sup> is a power
    r"<(?P<tag>b|i|u|em|strong|span|p|div|font|mark|code|kbd|big|small|center|li|ul|ol|sup|sub|h[1-6]|"
    r"final_answer|solution|result|boxed)(?:\s[^<>]{0,100})?>(?P<inner>[^<]{0,2000})</(?P=tag)>"
)
_BREAK = re.compile(r"<(?:br|hr)\s*/?>")
_JSON = re.compile(  # of an object that ends the text: its final answer, or its answer
    r'"(?:(?P<final>final[ _]?answer)|(?P<plain>answer)|solution|result)"\s*:\s*'
    r'(?:"(?P<text>(?:[^"\\]|\\.){0,2000})"|(?P<bare>\[[^\[\]{}]{0,500}\]|[^\s,"{}\[\]]{1,200}))\s*(?=[,}])',
    re.DOTALL | re.IGNORECASE,
)
_ESCAPED = re.compile(r'\\(["/\\]|n(?![A-Za-z]))')
_SPECIAL = re.compile(r"<\|(?:im_|end|eot|start|begin)[^>]{0,30}>|<(?:eos|pad|bos)>|</s>")


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
        text = _HIDDEN.sub(" ", text)
    if "<" in text:
        match = _SPECIAL.search(text)
        if match is not None and match.start() > 0:
            text = text[: match.start()]
    if "</" in text or "<br" in text or "<hr" in text:
        text = _BREAK.sub("\n", text)
        for _ in range(3):  # one inside another
            text = _MARKED.sub(_unmarked, text)
    text = languages.translated(text)
    if any(sign in text for sign in "\\{~_,"):
        text = tokens.with_groups(text)
    return _GAP.sub(_short_gap, text).strip().replace("\u2212", "-")


def _of_json(text: str) -> str | None:
    """The answer of an object in JSON that ends a text, as it was meant before it was escaped."""
    found = list(
        _JSON.finditer(text, max(0, text.rfind("{\n"), text.rfind('{"'), text.rfind("{ ")))
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


class Span(NamedTuple):
    text: str
    rule: str  # boxed, phrase, whole, bold, listed, stated, formula, number, sentence
