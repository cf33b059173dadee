"""A leaf in host memory or on disk, read piece by piece.

A matrix is a run of entries, and a piece a part of that run: the programs know no shapes, so a few
lengths are compiled for any model. Smaller pieces would stay in a core's cache, and starting their
programs would take longer than that saves.
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard

import numpy as np
from jaxtyping import Float

LENGTH = 1 << 19  # entries of a piece


class StoredLeaf(Protocol):
    """A leaf that is not in memory."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, start: int, stop: int, into: np.ndarray | None = None) -> np.ndarray:
        """Entries start to stop, row by row, as a vector of `dtype`; in `into` where given."""
        ...


class WritableLeaf(StoredLeaf, Protocol):
    """A leaf that is written where it will lie, by any thread."""

    def write(self, start: int, vector: np.ndarray) -> None:
        """Puts a vector of `dtype` at entry `start`, row by row."""
        ...


def is_stored(leaf: Any) -> TypeGuard[StoredLeaf]:
    """No array can `read`; to ask for the whole protocol takes as long as a small leaf."""
    return hasattr(leaf, "read")


def reader(leaf: Any) -> Callable[..., np.ndarray]:
    """`read` of a stored leaf, or the same of an array in host memory."""
    if is_stored(leaf):
        return leaf.read
    flat = np.ascontiguousarray(leaf).reshape(-1)
    return lambda start, stop: flat[start:stop]


class PieceReader:
    """Pieces of a leaf, padded, in memory that is used again: each belongs to the thread that reads
    it, until it reads the next one from here.
    """

    def __init__(self, leaf: Any):
        self._is_stored = is_stored(leaf)
        self._dtype, self._read = leaf.dtype, reader(leaf)
        self._kept = threading.local()

    def __call__(self, start: int, stop: int) -> np.ndarray:
        if not self._is_stored:
            return padded(self._read(start, stop))
        count, length = stop - start, padded_length(stop - start)
        memory = getattr(self._kept, "vector", None)
        if memory is None or len(memory) < length:
            memory = self._kept.vector = aligned(length, self._dtype)
        self._read(start, stop, memory[:count])
        memory[count:length] = 0
        return memory[:length]


def ranges(size: int, row_length: int) -> list[tuple[int, int]]:
    """Pieces of a matrix of `size` entries: whole rows, at most LENGTH entries or one row."""
    step = max(1, LENGTH // row_length) * row_length
    return [(start, min(start + step, size)) for start in range(0, size, step)]


def aligned(length: int, dtype: Any) -> np.ndarray:
    """An empty vector where XLA may read it in place: it copies what is not 64-byte aligned."""
    size = length * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype)


def padded_length(count: int) -> int:
    return max(1024, 1 << (count - 1).bit_length())


def padded(vector: np.ndarray) -> np.ndarray:
    """Zeros added up to a power of two, which no sum, count or threshold sees."""
    length = padded_length(len(vector))
    if length == len(vector):
        return vector
    result = aligned(length, vector.dtype)
    result[: len(vector)] = vector
    result[len(vector) :] = 0
    return result


def ranks(sizes: Float[np.ndarray, "rows length"]) -> np.ndarray:
    """The place of each number among those along the last axis, from 0, of equal ones the first
    lower; none is negative. One sort of 64-bit keys."""
    length = sizes.shape[-1]
    places = np.arange(length, dtype=np.uint64)
    keys = (sizes.view(np.uint32).astype(np.uint64) << np.uint64(32)) | places
    keys.sort(axis=-1)
    order = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    found = np.empty(sizes.shape, np.int32)
    np.put_along_axis(found, order, places.astype(np.int32)[None], axis=-1)
    return found
