"""Python's parser for code that threads share.

Before Python 3.11.8 the parser counted its depth in one place for all threads, so that two at once
could fail with a SystemError (CPython issue 106905).
"""

import ast
import threading
from collections.abc import Iterator

# Why a text has no tree, of all that `parse` raises.
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)

_one_at_a_time = threading.Lock()


def parse(source: str) -> ast.Module:
    """`ast.parse`, one text at a time. Raises one of `UNREADABLE` for what Python cannot read."""
    with _one_at_a_time:
        return ast.parse(source)


def parse_expression(source: str) -> ast.expr:
    """The same for a single expression."""
    with _one_at_a_time:
        return ast.parse(source, mode="eval").body


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of every module that is imported; dots before a relative one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")
