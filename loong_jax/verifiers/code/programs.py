"""The program of a response: out of its tags, out of its fences."""

import ast
import re

from loong_jax.data import fences, response
from loong_jax.data.fences import Block
from loong_jax.verifiers import syntax
from loong_jax.verifiers.code import recipes

MAX_PARSED_CHARS = 100_000
_INLINE = re.compile(r"\s*(`{3,})(?!`)([^\n]*[^`\n])\1\s*\Z")
_NAME = re.compile(r"[{.\s]*([\w+#-]+)")
_MARKS = re.compile(  # of languages that we do not parse
    r";[ \t]*$|\w\(|"
    r"^[ \t]*(?:#include|import|package|using|use|fn|func|def|class|public|var|let)\b",
    re.MULTILINE,
)


def source_of(text: str, language: str) -> str:
    """The program of a whole response, or of what holds a program alone; "" where there is none.

    That is what the answer's tags hold, or follows the thinking; of it the last fenced block in
    the language, or the last without a name that can be a program. A block need not be closed, nor
    opened where a prompt did so. Without a block it is all of the text.
    """
    names = _names(language)
    text = response.without_end(text)
    if "python" in names and any(mark in text for mark in ("```", "~~~", "<")) and _parses(text):
        return text  # what looks like a fence or a tag is in its strings
    text = response.read(text).answer
    found = [
        inner
        for block in fences.blocks(text)
        for inner in (_name(block) in ("markdown", "md") and fences.blocks(block.body)) or [block]
    ]
    if not found:
        inline = _INLINE.match(text)
        return _without_name(inline[2], names) if inline else text
    own = [block for block in found if _name(block) in names]
    bare = [block for block in found if not block.info]
    before = text[: found[0].start]
    if not own and not found[0].info and not found[-1].is_closed and _is_program(before, names):
        return before
    if own:
        later = [block for block in bare if block.start > own[-1].start]
        return next((b.body for b in reversed(later) if _is_program(b.body, names)), own[-1].body)
    return (bare or found)[-1].body


def _names(language: str) -> set[str]:
    """The language's own and other names, in lower case."""
    wanted = language.strip().lower()
    for name, recipe in recipes.RECIPES.items():
        if wanted in (name, *recipe.aliases):
            return {name, *recipe.aliases} | ({"python", "py"} if name == "pypy" else set())
    return {wanted}


def _name(block: Block) -> str:
    named = _NAME.match(block.info)
    return named[1].lower() if named else ""


def _without_name(text: str, names: set[str]) -> str:
    first, _, rest = text.partition(" ")
    return rest if first.lower() in names and rest else text


def _is_program(text: str, names: set[str]) -> bool:
    """Whether it can be a program of the language, and is not prose or what one prints."""
    if "python" not in names:
        return _MARKS.search(text) is not None
    return any(
        not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call)
        for node in _statements(text)
    )


def _parses(text: str) -> bool:
    return bool(_statements(text))


def _statements(text: str) -> list[ast.stmt]:
    """Those of a Python program; none where it is not one."""
    if len(text) > MAX_PARSED_CHARS:
        return []
    try:
        return syntax.parse(text).body
    except syntax.UNREADABLE:
        return []
