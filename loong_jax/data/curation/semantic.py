"""Duplicates and clusters by meaning, where somebody gives vectors of the texts.

Vectors come from an `Embedder`, such as a file of them (`VectorFile`). Without one this room finds
what shares words, and says so.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from loong_jax.data import corpus
from loong_jax.data.curation.stages import Outcome, Record, Sketch
from loong_jax.errors import ConfigError, refuse_below, refuse_no_share

_BLOCK = 2048


@runtime_checkable
class Embedder(Protocol):
    def embed(self, records: Sequence[Record]) -> np.ndarray:
        """float32 [N, D], a vector of any length above 0 for each record."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorFile:
    """Vectors that were computed elsewhere: `.npy` [N, D], beside it `.ids`, an id a line."""

    path: Path

    def embed(self, records: Sequence[Record]) -> np.ndarray:
        vectors, place_of = _vectors(self.path)
        places = [place_of.get(str(record.get("id", record.get("uid")))) for record in records]
        if None in places:
            missing = records[places.index(None)].get("id")
            raise ConfigError(f"{self.path} has no vector of record {missing!r}. Embed it too.")
        return np.asarray(vectors[np.array(places, np.int64)], np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Semantic:
    """Drops records that mean what an earlier one means, and notes the `cluster` of the others.

    Reason: `same meaning`, where the cosine with an earlier kept record is at least `threshold`.
    Vectors are sorted into `num_clusters` by spherical k-means and compared within a cluster only,
    so a pair that a boundary divides is missed; fewer clusters miss less and cost more.
    """

    embedder: Embedder
    name: str = "semantic"
    threshold: float = 0.95
    num_clusters: int = 64
    num_rounds: int = 10
    seed: int = 0

    def __post_init__(self):
        refuse_no_share(self, "threshold")
        refuse_below(self, 1, "num_clusters", "num_rounds")

    def sketch(self, records: Sequence[Record]) -> Sketch:
        if not records:
            return {"vector": np.zeros((0, 0), np.float16)}
        return {"vector": unit(self.embedder.embed(records)).astype(np.float16)}

    def decide(self, sketch: Sketch) -> Outcome:
        vectors = sketch["vector"]
        cluster = kmeans(vectors, self.num_clusters, num_rounds=self.num_rounds, seed=self.seed)
        reasons = {}
        for number in range(int(cluster.max(initial=-1)) + 1):
            members = np.flatnonzero(cluster == number)
            for place in first_alike(vectors[members].astype(np.float32), self.threshold):
                reasons[int(members[place])] = f"same meaning: cluster {number}"
        notes = {i: {"cluster": int(c)} for i, c in enumerate(cluster) if i not in reasons}
        return Outcome(reasons, notes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SemanticContamination:
    """Drops records that mean what an item of a benchmark means (A.1).

    Reason: `same meaning as`, where the cosine with an item of the files `against` is at least
    `threshold`. The embedder has vectors of the items as well as of the records.
    """

    embedder: Embedder
    against: tuple[Path, ...]
    name: str = "semantic_contamination"
    threshold: float = 0.9

    def __post_init__(self):
        refuse_no_share(self, "threshold")
        if not self.against:
            raise ConfigError("against is empty. Name a file.")

    def judge(self, records: Sequence[Record]) -> Outcome:
        if not records:
            return Outcome()
        items, names = _items(self.embedder, self.against)
        vectors = unit(self.embedder.embed(records))
        reasons = {}
        for start in range(0, len(vectors), _BLOCK):
            cosine = vectors[start : start + _BLOCK] @ items.T
            nearest = cosine.argmax(axis=1)
            for place in np.flatnonzero(cosine.max(axis=1) >= self.threshold):
                found = int(nearest[place])
                share = cosine[place, found]
                reasons[int(start + place)] = f"same meaning as: {names[found]}, {share:.3f}"
        return Outcome(reasons)


@functools.lru_cache(maxsize=2)
def _items(embedder: Embedder, against: tuple[Path, ...]) -> tuple[np.ndarray, list[str]]:
    found = list(corpus.read_all(against))
    if not found:
        raise ConfigError(f"{[str(f) for f in against]} hold no records. Name a benchmark.")
    return unit(embedder.embed(found)), [str(record.get("id", "?")) for record in found]


def unit(vectors: np.ndarray) -> np.ndarray:
    """float32 rows of length 1; a row of zeros stays."""
    vectors = np.asarray(vectors, np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)


def first_alike(vectors: np.ndarray, threshold: float) -> list[int]:
    """Places of unit vectors whose cosine with an earlier one that stays reaches the threshold."""
    stays = np.ones(len(vectors), bool)
    for start in range(0, len(vectors), _BLOCK):
        block = slice(start, min(start + _BLOCK, len(vectors)))
        earlier = np.flatnonzero(stays[:start])
        if len(earlier):
            for low in range(0, len(earlier), _BLOCK):
                close = vectors[block] @ vectors[earlier[low : low + _BLOCK]].T >= threshold
                stays[block] &= ~close.any(axis=1)
        inside = np.tril(vectors[block] @ vectors[block].T >= threshold, -1)
        for place in np.flatnonzero(inside.any(axis=1)):
            if (inside[place] & stays[block]).any():
                stays[start + place] = False
    return np.flatnonzero(~stays).tolist()


def kmeans(vectors: np.ndarray, num: int, *, num_rounds: int, seed: int) -> np.ndarray:
    """int64 [N]: spherical k-means, `num` clusters at most, from rows that the seed draws."""
    if not len(vectors):
        return np.zeros(0, np.int64)
    rng = np.random.default_rng(seed)
    num = min(num, len(vectors))
    centres = vectors[rng.permutation(len(vectors))[:num]].astype(np.float32)
    cluster = np.zeros(len(vectors), np.int64)
    for _ in range(num_rounds):
        sums = np.zeros_like(centres)
        for start in range(0, len(vectors), _BLOCK):
            block = vectors[start : start + _BLOCK].astype(np.float32)
            nearest = np.argmax(block @ centres.T, axis=1)
            cluster[start : start + _BLOCK] = nearest
            np.add.at(sums, nearest, block)
        is_empty = np.abs(sums).sum(axis=1, keepdims=True) == 0
        centres = np.where(is_empty, centres, unit(sums))
    return cluster


@functools.lru_cache(maxsize=2)
def _vectors(path: Path) -> tuple[np.ndarray, dict[str, int]]:
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
        names = path.with_suffix(".ids").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} or its .ids cannot be read: {error}.") from None
    if vectors.ndim != 2 or len(vectors) != len(names):
        raise ConfigError(
            f"{path} has shape {vectors.shape} and {len(names)} ids. Give a row for each id."
        )
    return vectors, {name: place for place, name in enumerate(names)}
