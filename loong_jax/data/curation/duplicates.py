"""Near-duplicates: MinHash over runs of words, found by locality-sensitive hashing.

For a corpus in memory:

    first = duplicates.near_duplicates(["What is 7 * 8?", "what is 7 * 8 ?", "Name a prime."])
    # array([0, 0, 2]): the second says what the first says

and as a stage of a chain, `Duplicates`. Similarity is the Jaccard index of the two sets of runs of
words, estimated from `num_hashes` minima: its standard error at 0.8 is 0.035 with 128. Pairs that
share all hashes of a band are compared, and only they: at 32 bands of 4, a pair of similarity 0.8
is met with probability 1 - (1 - 0.8^4)^32 > 0.9999, one of 0.5 with 0.87.

A word is a run of letters and digits (also a single CJK character, or one mathematical sign such
as `+`), case and other marks ignored. `\\frac{1}{2}` and `$\\frac12$` differ, "x=1" and "x = 1" do
not. Hashes are 64-bit, the same in every process and on every machine.

Broder, "On the resemblance and containment of documents", 1997.
"""

import dataclasses
import functools
import html
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from loong_jax.data.curation.stages import Outcome, Record, Sketch, text_of
from loong_jax.errors import ConfigError, refuse_below, refuse_no_share

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


def shingles_of(texts: Sequence[str], size: int) -> Ragged:
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


_BLOCK = 1 << 16  # values hashed at a time, so that they stay in the cache
_SEED = 20240917
_ID_TYPE = "S32"  # longer ones are cut


@dataclasses.dataclass(frozen=True, kw_only=True)
class Similarity:
    """The measure by which two texts are near-duplicates.

    With `numbers_matter`, texts whose numbers differ are two problems, however alike their words.
    """

    threshold: float = 0.6  # Jaccard index of the sets of runs
    ngram: int = 3  # words in a run
    num_hashes: int = 128
    num_bands: int = 32
    numbers_matter: bool = True

    def __post_init__(self):
        refuse_no_share(self, "threshold")
        refuse_below(self, 1, "ngram", "num_bands")
        if self.num_hashes % self.num_bands:
            raise ConfigError(
                f"num_hashes={self.num_hashes} is no multiple of num_bands={self.num_bands}. "
                "Change one of them."
            )


def near_duplicates(texts: Sequence[str], similarity: Similarity | None = None) -> np.ndarray:
    """int64 [N]: for each text the index of the first that it repeats; its own where it is new.

    Similarity passes on: where b repeats a and c repeats b, c repeats a. Texts without a word
    repeat one another. The result depends on the texts and their order only.
    """
    similarity = similarity or Similarity()
    if not len(texts):
        return np.zeros(0, np.int64)
    signatures = signatures_of(shingles_of(texts, similarity.ngram), similarity.num_hashes)
    groups = numbers(texts) if similarity.numbers_matter else None
    return first_alike(signatures, similarity, groups)


def signatures_of(grams: Ragged, num_hashes: int) -> np.ndarray:
    """uint32 [N, num_hashes]: the minima of the runs of each record under as many hash functions.

    A record without any has the largest value everywhere.
    """
    num = len(grams.starts) - 1
    result = np.full((num, num_hashes), 0xFFFFFFFF, np.uint32)
    factors, shifts = _functions(num_hashes)
    filled = np.flatnonzero(grams.counts > 0)
    position = 0
    while position < len(filled):  # blocks of whole records
        first = filled[position]
        end = int(np.searchsorted(grams.starts[filled + 1], grams.starts[first] + _BLOCK, "right"))
        end = max(end, position + 1)
        members = filled[position:end]
        values = grams.values[grams.starts[first] : grams.starts[members[-1] + 1]]
        cuts = grams.starts[members] - grams.starts[first]
        for i in range(num_hashes):
            hashed = ((values * factors[i] + shifts[i]) >> np.uint64(32)).astype(np.uint32)
            result[members, i] = np.minimum.reduceat(hashed, cuts)
        position = end
    return result


def first_alike(
    signatures: np.ndarray, similarity: Similarity, groups: np.ndarray | None = None
) -> np.ndarray:
    """int64 [N]: the first record that each is alike to. Records of two `groups` never are.

    In a band each record is compared with the first of its bucket and with its neighbour, so the
    work grows with N and not with the square of a bucket.
    """
    num = len(signatures)
    rows = signatures.shape[1] // similarity.num_bands
    edges = [np.zeros((2, 0), np.int64)]
    for band in range(similarity.num_bands):
        keys = _band_keys(signatures[:, band * rows : (band + 1) * rows])
        if groups is not None:
            keys = keys ^ (groups * np.uint64(0x9E3779B97F4A7C15))
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        same = np.concatenate([[False], ordered[1:] == ordered[:-1]])
        leader = np.maximum.accumulate(np.where(same, 0, np.arange(num)))
        later = np.flatnonzero(same)
        of_leader = np.stack([order[leader[later]], order[later]])
        of_neighbour = np.stack([order[later - 1], order[later]])
        pairs = np.unique(np.concatenate([of_leader, of_neighbour], axis=1), axis=1)
        if groups is not None:
            pairs = pairs[:, groups[pairs[0]] == groups[pairs[1]]]
        edges.append(pairs[:, _similarities(signatures, pairs) >= similarity.threshold])
    left, right = np.concatenate(edges, axis=1)
    alike = sparse.coo_array((np.ones(len(left), bool), (left, right)), (num, num))
    _, component = csgraph.connected_components(alike, directed=False)
    _, first = np.unique(component, return_index=True)
    return first[component]


def _similarities(signatures: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    found = np.empty(pairs.shape[1])
    for start in range(0, pairs.shape[1], _BLOCK):
        block = slice(start, start + _BLOCK)
        equal = signatures[pairs[0, block]] == signatures[pairs[1, block]]
        found[block] = equal.mean(axis=1)
    return found


def _band_keys(band: np.ndarray) -> np.ndarray:
    keys = np.zeros(len(band), np.uint64)
    for column in band.T:
        keys = (keys ^ column) * np.uint64(0xBF58476D1CE4E5B9)
        keys ^= keys >> np.uint64(29)
    return keys


@functools.cache
def _functions(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(_SEED)
    factors = rng.integers(1, 1 << 63, count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return factors, rng.integers(0, 1 << 63, count, dtype=np.uint64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Duplicates:
    """Drops records that say what an earlier one says. Reasons: `exact`, `near`.

    Where `keys` are several texts (prompt and response), they are compared as one.
    """

    name: str = "duplicates"
    keys: tuple[str, ...] = ("prompt",)
    similarity: Similarity = Similarity()

    def sketch(self, records: Sequence[Record]) -> Sketch:
        texts = ["\n".join(text_of(record, key) for key in self.keys) for record in records]
        grams = shingles_of(texts, self.similarity.ngram)
        ids = [str(record.get("id", "")).encode(errors="replace") for record in records]
        return {
            "signature": signatures_of(grams, self.similarity.num_hashes),
            "fingerprint": fingerprints(texts),
            "numbers": numbers(texts),
            "id": np.array(ids, _ID_TYPE),
        }

    def decide(self, sketch: Sketch) -> Outcome:
        prints = sketch["fingerprint"]
        _, first_place, which = np.unique(prints, return_index=True, return_inverse=True)
        exact = first_place[which]
        groups = sketch["numbers"] if self.similarity.numbers_matter else None
        near = first_alike(sketch["signature"], self.similarity, groups)
        reasons, own = {}, np.arange(len(prints))
        for index in np.flatnonzero((near != own) | (exact != own)):
            kind, of = ("exact", exact) if exact[index] != index else ("near", near)
            name = bytes(sketch["id"][of[index]]).decode(errors="replace")
            reasons[int(index)] = f"{kind}: {name or 'an earlier record'}"
        return Outcome(reasons)
