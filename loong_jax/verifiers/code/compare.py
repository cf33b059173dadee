"""Comparing what a program gave with what was expected; all of it outside the sandbox."""

import collections
import fractions
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

# Of bounded size: a power of ten is written out before it is compared.
_NUMBER = re.compile(r"-?[0-9]{1,4000}(?:/[0-9]{1,4000}|(?:\.[0-9]{1,4000})?(?:E[+-]?[0-9]{1,3})?)")
_SPECIAL = re.compile(r"NaN|-?Infinity")


def matches_output(got: bytes, expected: Sequence[str], tolerance: float | None) -> bool:
    """True if an output is one of those expected.

    White space at the ends of lines and of the output does not count. With a tolerance, the outputs
    are compared word by word, and numbers may differ by so much, absolute or relative.
    """
    for text in expected:
        wanted = text.encode("utf-8", "surrogatepass")
        if _lines(got) == _lines(wanted):
            return True
        if tolerance is None or len(words := got.split()) != len(wanted.split()):
            continue
        pairs = zip(words, wanted.split(), strict=True)
        if all(a == b or _numbers_match(a, b, tolerance) for a, b in pairs):
            return True
    return False


def _lines(output: bytes) -> list[bytes]:
    return [line.rstrip() for line in output.rstrip().split(b"\n")]


def _numbers_match(got: bytes, wanted: bytes, tolerance: float) -> bool:
    if len(got) > 400 or b"_" in got:
        return False
    try:
        a, b = float(got), float(wanted)
    except ValueError:
        return False
    return close(a, b, tolerance)


def close(a: float, b: float, tolerance: float) -> bool:
    """True if two finite numbers differ by at most the tolerance, absolute or relative to b."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return False
    return abs(a - b) <= max(tolerance, tolerance * abs(b))


def matches_value(got: Any, expected: Any, tolerance: float | None) -> bool:
    """True if a value answers an expected JSON value.

    `got` is as the driver wrote it: a scalar as it is, all else {"t": kind, "v": content}. Tuples
    answer lists; sets answer lists of their members in any order; the keys of a dict answer the
    words JSON has for them; decimals and fractions answer numbers; 1.0 answers 1, but True does
    not; NaN answers NaN. Nodes of a list or tree answer the list of their values, and None where
    there are none. A call that returned nothing answers None, or what it changed its first
    argument to.
    """
    if not isinstance(got, dict):
        return not isinstance(got, list) and _plain_matches(got, expected, tolerance)
    if set(got) != {"t", "v"}:
        return False
    kind, content = got["t"], got["v"]
    if kind == "plain":
        return _plain_matches(content, expected, tolerance)
    if kind == "changed":
        return expected is None or matches_value(content, expected, tolerance)
    if kind == "nan":
        return isinstance(expected, float) and math.isnan(expected)
    if kind == "infinity":  # of its sign
        return content in (1, -1) and expected == content * math.inf
    if kind in ("integer", "decimal", "fraction"):  # what a JSON number may not hold
        return isinstance(content, str) and _number_matches(content, expected, tolerance)
    if not isinstance(content, list):
        return False
    if kind == "nodes" and not isinstance(expected, list):
        if expected is None or not content:
            return expected is None and not content
        return matches_value(content[0], expected, tolerance)
    if kind in ("list", "tuple", "nodes"):
        return (
            isinstance(expected, list)
            and len(content) == len(expected)
            and all(matches_value(a, b, tolerance) for a, b in zip(content, expected, strict=True))
        )
    if kind == "set":
        return isinstance(expected, list) and _is_permutation(content, expected, tolerance)
    if kind == "dict":
        return isinstance(expected, dict) and _dict_matches(content, expected, tolerance)
    return False


def _number_matches(got: str, expected: Any, tolerance: float | None) -> bool:
    """A decimal or a fraction: exact for an integer, else the float next to it."""
    if _SPECIAL.fullmatch(got):
        return isinstance(expected, float) and str(float(got)) == str(expected)
    if not _NUMBER.fullmatch(got) or isinstance(expected, bool):
        return False
    try:
        value = fractions.Fraction(got)
        if isinstance(expected, float):
            return _plain_matches(float(value), expected, tolerance)
    except (ZeroDivisionError, OverflowError):
        return False
    return isinstance(expected, int) and (
        value == expected or (tolerance is not None and close(float(value), expected, tolerance))
    )


def _plain_matches(got: Any, expected: Any, tolerance: float | None) -> bool:
    kinds = (bool, str, type(None))
    if isinstance(got, kinds) or isinstance(expected, kinds):
        return type(got) is type(expected) and got == expected
    if isinstance(got, int | float) and isinstance(expected, int | float):
        if got == expected:
            return True
        try:
            return tolerance is not None and close(float(got), float(expected), tolerance)
        except OverflowError:
            return False
    return False


def _is_permutation(got: list[Any], expected: list[Any], tolerance: float | None) -> bool:
    matches = functools.partial(matches_value, tolerance=tolerance)
    if len(got) != len(expected):
        return False
    keys = [[_key(item) for item in items] for items in (got, expected)]
    if None not in (*keys[0], *keys[1]):
        if collections.Counter(keys[0]) == collections.Counter(keys[1]):
            return True
        if tolerance is None:
            return False
        if all(key and key[0] == "number" for key in (*keys[0], *keys[1])):
            pairs = zip(sorted(got), sorted(expected), strict=True)
            return all(_plain_matches(a, b, tolerance) for a, b in pairs)
    return is_permutation(got, expected, matches)


def is_permutation(one: list[Any], other: list[Any], matches: Callable[[Any, Any], bool]) -> bool:
    """True if lists of equal length match item by item in some order; not tried of over 2000."""
    if len(one) != len(other) or len(one) > 2000:
        return False
    left = list(other)
    for item in one:
        place = next((i for i, b in enumerate(left) if matches(item, b)), None)
        if place is None:
            return False
        del left[place]
    return True


def _key(item: Any) -> tuple[str, Any] | None:
    """Equal for scalars that answer each other; None for what is no scalar."""
    if isinstance(item, bool | str | None):
        return type(item).__name__, item
    return ("number", item) if isinstance(item, int | float) and item == item else None


def _dict_matches(got: list[Any], expected: dict, tolerance: float | None) -> bool:
    if len(got) != len(expected):
        return False
    seen = set()
    for pair in got:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
            return False
        key, value = pair
        if key in seen or key not in expected:
            return False
        seen.add(key)
        if not matches_value(value, expected[key], tolerance):
            return False
    return True
