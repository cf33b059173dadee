"""Texts as hashed runs of words, many texts at once, in NumPy.

A word is a run of letters and digits (also a single CJK character, or one mathematical sign such
as `+`), case and other marks ignored. `\\frac{1}{2}` and `$\\frac12$` differ, "x=1" and "x = 1" do
not. Hashes are 64-bit, the same in every process and on every machine.
"""

import functools
import html
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_DIGITS = re.compile(r"\d+")
_SEPARATOR, _LETTER, _ALONE = 0, 1, 2
_SIGNS = (
    "+-*/=<>^%\u00d7\u00f7\u00b1\u2212\u2260\u2264\u2265\u221a\u221e\u2211\u222b\u2208\u222a\u2229"
)
_TAGGED, _MARKS = re.compile(r"<(/?)su([pb])\b[^<>]{0,40}>", re.IGNORECASE), {"p": "^", "b": "_"}
_RAISED = re.compile(r"[\u00b2\u00b3\u00b9\u2070-\u207f]+")
_SUNK = re.compile(r"[\u2080-\u209c]+")
_WITHOUT_SPACES = ((0x0E00, 0x0EFF), (0x3040, 0x30FF), (0x3400, 0x9FFF))
_BASE = np.uint64(0x9E3779B97F4A7C15 | 1)  # odd, so that it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))
_WORD_BASE = np.uint64(0xD1342543DE82EF95)


class Ragged(NamedTuple):
    """Values of N records, one after another: those of record i are `starts[i]:starts[i + 1]`."""

    values: np.ndarray  # uint64
    starts: np.ndarray  # int64 [N + 1]

    @property
    def counts(self) -> np.ndarray:
        return np.diff(self.starts)

    @property
    def owners(self) -> np.ndarray:
        """The record of each value."""
        return np.repeat(np.arange(len(self.starts) - 1), self.counts)


def words(texts: Sequence[str]) -> Ragged:
    """Hashes of the words of each text, in order."""
    folded = [_folded(text) for text in texts]
    joined = "\n".join(folded) + "\n"
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _kinds()[codes]
    lengths = np.fromiter((len(text) + 1 for text in folded), np.int64, len(folded))
    text_ends = np.cumsum(lengths)
    is_letter = kinds == _LETTER
    before = np.concatenate([[False], is_letter[:-1]])
    is_start = (is_letter & ~before) | (kinds == _ALONE)
    begins = np.flatnonzero(is_start)
    after = np.concatenate([is_letter[1:], [False]])
    ends = np.flatnonzero((is_letter & ~after) | (kinds == _ALONE)) + 1
    powers, inverses = _powers(1 << max(16, len(codes).bit_length()))
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum((codes.astype(np.uint64) + np.uint64(1)) * powers[: len(codes)], out=sums[1:])
    hashes = _mixed((sums[ends] - sums[begins]) * inverses[begins])
    starts = np.concatenate([[0], np.searchsorted(begins, text_ends)])
    return Ragged(hashes, starts.astype(np.int64))


def ngrams(of_words: Ragged, size: int) -> Ragged:
    """Hashes of all runs of `size` words; of a shorter text that has any, one of all its words."""
    values, starts = of_words
    counts = of_words.counts
    num = np.where(counts >= size, counts - size + 1, np.minimum(counts, 1))
    new_starts = np.concatenate([[0], np.cumsum(num)])
    owners = np.repeat(np.arange(len(counts)), num)
    first = starts[owners] + np.arange(len(owners)) - new_starts[owners]
    result = np.zeros(len(owners), np.uint64)
    padded = np.concatenate([values, np.zeros(size, np.uint64)])
    ends = starts[owners + 1]
    for offset in range(size):
        place = first + offset
        inside = place < ends
        word = np.where(inside, padded[np.minimum(place, len(values))], np.uint64(0))
        result = result * _WORD_BASE + word + inside.astype(np.uint64)
    return Ragged(_mixed(result), new_starts)


def shingles(texts: Sequence[str], size: int) -> Ragged:
    """`ngrams` of the words of texts."""
    return ngrams(words(texts), size)


def fingerprints(texts: Sequence[str]) -> np.ndarray:
    """uint64 [N]: equal for texts of the same words in the same order."""
    found = words(texts)
    place = np.arange(len(found.values)) - found.starts[found.owners]
    terms = _mixed(found.values + place.astype(np.uint64) * _WORD_BASE)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
    sums = sums[found.starts[1:]] - sums[found.starts[:-1]]
    return _mixed(sums + found.counts.astype(np.uint64))


def numbers(texts: Sequence[str]) -> np.ndarray:
    """uint64 [N]: equal for texts with the same numbers, in the same order."""
    return fingerprints(["\n".join(_DIGITS.findall(text)) for text in texts])


def _folded(text: str) -> str:
    """In lower case, with powers and indices as plain text has them, and one minus."""
    if "&" in text:
        text = html.unescape(text)
    if "<su" in text or "<SU" in text:
        text = _TAGGED.sub(lambda m: " " if m[1] else _MARKS[m[2].lower()], text)
    if text.isascii():
        return text.lower()
    text = _RAISED.sub(r"^\g<0> ", text)
    text = _SUNK.sub(r"_\g<0> ", text)
    return unicodedata.normalize("NFKC", text).lower().replace("\u2212", "-")


@functools.cache
def _kinds() -> np.ndarray:
    """uint8 [2^17 and one for the rest]: what each code point is."""
    kinds = np.zeros(0x110000, np.uint8)
    for code in range(0x20000):
        character = chr(code)
        if character in _SIGNS:
            kinds[code] = _ALONE
        elif character.isalnum() or unicodedata.category(character) in ("Mn", "Mc"):
            is_alone = any(first <= code <= last for first, last in _WITHOUT_SPACES)
            kinds[code] = _ALONE if is_alone else _LETTER
    kinds[0x20000:0x32000] = _ALONE  # further CJK
    return kinds


@functools.lru_cache(maxsize=2)
def _powers(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The first powers of the base and of its inverse, modulo 2^64."""
    factors = np.full((2, size), [[_BASE], [_INVERSE]], np.uint64)
    factors[:, 0] = 1
    powers, inverses = np.cumprod(factors, axis=1)
    return powers, inverses


def _mixed(values: np.ndarray) -> np.ndarray:
    """Spreads every bit over all others (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
