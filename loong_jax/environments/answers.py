"""Readers of answers: small strict grammars in linear time. None of them evaluates anything."""

import re
from collections.abc import Sequence
from typing import Any

MAX_ANSWER_CHARS = 20_000
MAX_DIGITS = 12


class Malformed(ValueError):
    """The answer does not have the form that its prompt states."""


def lines(answer: str) -> list[str]:
    """Its lines that are not blank, stripped."""
    return [line.strip() for line in answer.splitlines() if line.strip()]


def one_line(answer: str) -> str:
    found = lines(answer)
    if len(found) != 1:
        raise Malformed(f"{len(found)} lines, not one")
    return found[0]


def items(line: str, separator: str = ",") -> list[str]:
    """The parts between separators, stripped; none may be empty."""
    parts = [part.strip() for part in line.split(separator)]
    if not all(parts):
        raise Malformed(f"an empty place between {separator!r}")
    return parts


def integer(text: str) -> int:
    """A decimal integer of ASCII digits."""
    if not re.fullmatch(rf"-?[0-9]{{1,{MAX_DIGITS}}}", text):
        raise Malformed(f"{text[:20]!r} is no integer")
    return int(text)


def integers(answer: str, count: int) -> list[int]:
    """So many integers on one line, with commas between them."""
    found = [integer(item) for item in items(one_line(answer))]
    if len(found) != count:
        raise Malformed(f"{len(found)} numbers, not {count}")
    return found


def grid(answer: str, num_rows: int, num_columns: int, symbols: str) -> list[str]:
    """Rows of symbols, one row a line; spaces between symbols are left out."""
    rows = ["".join(line.split(" ")) for line in lines(answer)]
    if len(rows) != num_rows or any(len(row) != num_columns for row in rows):
        raise Malformed(f"not {num_rows} lines of {num_columns} symbols")
    if unknown := set("".join(rows)) - set(symbols):
        raise Malformed(f"symbol {min(unknown)!r} is not one of {symbols}")
    return rows


def difference(given: Sequence[Any], wanted: Sequence[Any], what: str) -> str | None:
    """The first place where an answer is not what is wanted, which is not told."""
    pairs = enumerate(zip(given, wanted, strict=True), 1)
    return next((f"{what} {place} is not {a}" for place, (a, b) in pairs if a != b), None)


def assignment(answer: str, keys: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """`key=value, key=value` on one line: every key once, each value one of `values`."""
    found: dict[str, str] = {}
    for item in items(one_line(answer)):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in keys:
            raise Malformed(f"{item[:40]!r} is not KEY=VALUE with a known key")
        if key in found:
            raise Malformed(f"{key} is given twice")
        if value not in values:
            raise Malformed(f"{value[:20]!r} is not one of {', '.join(values)}")
        found[key] = value
    if missing := [key for key in keys if key not in found]:
        raise Malformed(f"{missing[0]} is missing")
    return found
