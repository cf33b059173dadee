"""The program of a response: out of its tags, out of its fences."""

import ast
import itertools
import re
from collections.abc import Collection

from loong_jax import syntax
from loong_jax.problems import response
from loong_jax.problems.response import Block
from loong_jax.sandbox import languages

MAX_PARSED_CHARS = 100_000
_INLINE = re.compile(r"\s*(`{3,})(?!`)([^\n]*[^`\n])\1\s*\Z")
_NAME = re.compile(r"[{.\s]*([\w+#-]+)")
_DEFINING = "class|struct|enum|impl|fn|func|function|def|const|let|var"
_NO_TYPES = ("return", "else", "new", "throw", "case", "if", "while", "for", "//", "*")
_MARKS = re.compile(  # of languages that we do not parse
    r";[ \t]*$|\w\(|"
    r"^[ \t]*(?:#include|import|package|using|use|fn|func|def|class|public|var|let)\b",
    re.MULTILINE,
)


def source_of(text: str, language: str, called: Collection[str] = ()) -> str:
    """The program of a whole response, or of what holds a program alone; "" where there is none.

    That is what the answer's tags hold, or follows the thinking; of it the last fenced block in
    the language, or the last without a name that can be a program. Where names are `called`, a
    block that defines one of them goes before those that only use it, and a block of Python that
    can be a program before one that cannot. A block need not be closed, nor opened where a prompt
    did so. Without a block it is all of the text.
    """
    names = _names(language)
    text = response.without_end(text)
    if (
        "python" in names
        and any(mark in text for mark in ("```", "~~~", "<"))
        and _statements(text)
    ):
        return text  # what looks like a fence or a tag is in its strings
    text = response.read(text).answer
    found = [
        inner
        for block in response.blocks(text)
        for inner in (_name(block) in ("markdown", "md") and response.blocks(block.body)) or [block]
    ]
    if not found:
        if (inline := _INLINE.match(text)) is None:
            return text
        first, _, rest = inline[2].partition(" ")
        return rest if first.lower() in names and rest else inline[2]
    own = [block for block in found if _name(block) in names]
    bare = [block for block in found if not block.info]
    before = text[: found[0].start]
    if not own and not found[0].info and not found[-1].is_closed and _is_program(before, names):
        return before
    if own:
        later = [block for block in bare if block.start > own[-1].start]
        programs = [block.body for block in own]
        programs += [block.body for block in later if _is_program(block.body, names)]
        return _best(programs, names, called)
    return _best([block.body for block in bare or found], names, called)


def _best(blocks: list[str], names: set[str], called: Collection[str]) -> str:
    """The last that defines what is called, else the last that can be a program, else the last."""
    for block in reversed(blocks if len(blocks) > 1 else ()):
        if any(_defines(block, name, names) for name in called):
            return block
    if "python" in names and len(blocks) > 1:
        return next((block for block in reversed(blocks) if _is_program(block, names)), blocks[-1])
    return blocks[-1]


def _is_signature(text: str, name: re.Match[str]) -> bool:
    """True if a type stands before a name and a body behind its parameters."""
    before = text[max(0, name.start() - 200) : name.start()].rpartition("\n")[2].split()
    is_type = bool(before) and before[-1][-1] not in "=(.+-!," and before[0] not in _NO_TYPES
    return is_type and re.match(r"[^;{}]*\{", text[name.end() :][:300]) is not None


def _defines(text: str, name: str, names: set[str]) -> bool:
    """True if a block defines a function or class of this name, as far as its text says."""
    if "python" not in names:
        if re.search(rf"\b(?:{_DEFINING})\s+{re.escape(name)}\b", text):
            return True
        places = re.finditer(rf"\b{re.escape(name)}\s*\(", text)
        return any(_is_signature(text, one) for one in itertools.islice(places, 100))
    for node in _statements(text):
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        if name in [getattr(one, "name", getattr(one, "id", None)) for one in targets]:
            return True
    return False


def _names(language: str) -> set[str]:
    """The language's own and other names, in lower case."""
    found = languages.names_of(language) or [language.strip().lower()]
    return {*found} | ({"python", "py"} if found[0] == "pypy" else set())


def _name(block: Block) -> str:
    named = _NAME.match(block.info)
    return named[1].lower() if named else ""


def _is_program(text: str, names: set[str]) -> bool:
    """True if a text can be a program of the language, and is not prose or a program's output."""
    if "python" not in names:
        return _MARKS.search(text) is not None
    return any(
        isinstance(node.value, ast.Call)
        if isinstance(node, ast.Expr)
        else getattr(node, "value", node) is not None  # `input: 3` says a type and sets nothing
        for node in _statements(text)
    )


def _statements(text: str) -> list[ast.stmt]:
    """The statements of a Python program; none where it is not one."""
    if len(text) > MAX_PARSED_CHARS:
        return []
    try:
        return syntax.parse(text).body
    except syntax.UNREADABLE:
        return []
