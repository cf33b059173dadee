"""Near-duplicates: MinHash over runs of words, found by locality-sensitive hashing.

For a corpus in memory:

    first = duplicates.near_duplicates(["What is 7 * 8?", "what is 7 * 8 ?", "Name a prime."])
    # array([0, 0, 2]): the second says what the first says

and as a stage of a chain, `Duplicates`. Similarity is the Jaccard index of the two sets of runs of
words, estimated from `num_hashes` minima: its standard error at 0.8 is 0.035 with 128. Pairs that
share all hashes of a band are compared, and only they: at 32 bands of 4, a pair of similarity 0.8
is met with probability 1 - (1 - 0.8^4)^32 > 0.9999, one of 0.5 with 0.87.

Broder, "On the resemblance and containment of documents", 1997.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from loong_jax.data.curation import shingles
from loong_jax.data.curation.shingles import Ragged
from loong_jax.data.curation.stages import Outcome, Record, Sketch, text_of
from loong_jax.errors import ConfigError, refuse_below, refuse_no_share

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
    signatures = signatures_of(shingles.shingles(texts, similarity.ngram), similarity.num_hashes)
    groups = shingles.numbers(texts) if similarity.numbers_matter else None
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
        grams = shingles.shingles(texts, self.similarity.ngram)
        ids = [str(record.get("id", "")).encode(errors="replace") for record in records]
        return {
            "signature": signatures_of(grams, self.similarity.num_hashes),
            "fingerprint": shingles.fingerprints(texts),
            "numbers": shingles.numbers(texts),
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
