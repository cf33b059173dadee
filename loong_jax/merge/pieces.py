"""A leaf in host memory or on disk, read piece by piece.

A matrix is a run of entries, and a piece a part of that run: the programs know no shapes, so a few
lengths are compiled for any model. Smaller pieces would stay in a core's cache, and starting their
programs would take longer than that saves.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from loong_jax.merge import masks as mask_lib
from loong_jax.merge import methods
from loong_jax.merge.methods import statistics

LENGTH = 1 << 19  # entries of a piece
_LANES = 4096  # partial sums, so that a sum is vectorised and its rounding small


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


def reader(leaf: Any) -> Callable[[int, int], np.ndarray]:
    """`read` of a stored leaf, or the same of an array in host memory."""
    if is_stored(leaf):
        return leaf.read
    flat = np.ascontiguousarray(leaf).reshape(-1)
    return lambda start, stop: flat[start:stop]


# Memory of lasting pieces that nobody needs any more, by length and dtype: fresh memory would be
# zeroed page by page, which takes longer than to read a piece again.
_free: dict[tuple[int, str], list[np.ndarray]] = {}


def free_memory() -> None:
    """Gives up what is kept for lasting pieces to come."""
    _free.clear()


class PieceReader:
    """Pieces of a leaf, padded, in memory that is used again: each belongs to the thread that reads
    it, until it reads the next one from here. A `lasting` piece has memory of its own.
    """

    def __init__(self, leaf: Any):
        self._leaf = leaf if is_stored(leaf) else None
        self._read = reader(leaf)
        self._kept = threading.local()

    def __call__(self, start: int, stop: int, *, lasting: bool = False) -> np.ndarray:
        if self._leaf is None:
            return padded(self._read(start, stop))
        count, length = stop - start, padded_length(stop - start)
        memory = self._lasting(length) if lasting else self._reused(length)
        self._leaf.read(start, stop, memory[:count])
        if count < length:
            memory[count:length] = 0
        return memory[:length]

    def give_back(self, piece: np.ndarray) -> None:
        """Lets the memory of a lasting piece be used for another."""
        if self._leaf is not None:
            _free.setdefault((len(piece), piece.dtype.name), []).append(piece)

    @property
    def bytes_per_entry(self) -> int:
        """Of what lasting pieces take of memory: nothing where the leaf is there already."""
        return 0 if self._leaf is None else self._leaf.dtype.itemsize

    def _lasting(self, length: int) -> np.ndarray:
        assert self._leaf is not None
        free = _free.setdefault((length, self._leaf.dtype.name), [])
        try:
            return free.pop()
        except IndexError:
            return aligned(length, self._leaf.dtype)

    def _reused(self, length: int) -> np.ndarray:
        assert self._leaf is not None
        kept = getattr(self._kept, "vector", None)
        if kept is None or len(kept) < length:
            kept = self._kept.vector = aligned(length, self._leaf.dtype)
        return kept


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


# --- by NumPy: what it does faster than a program ------------------------------------------------

_FIRST_NOT_FINITE = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F800000}


def is_finite(vector: np.ndarray) -> bool:
    """Whether all entries are, by their bits: those of NaN and inf are the largest of each sign."""
    first = _FIRST_NOT_FINITE.get(vector.dtype.name)
    if first is None or not len(vector):
        return bool(np.isfinite(vector.astype(np.float64)).all())
    size = vector.dtype.itemsize
    positive, negative = vector.view(f"i{size}").max(), vector.view(f"u{size}").max()
    return bool(positive < first and negative < first + (1 << (8 * size - 1)))


def ranks(sizes: Float[np.ndarray, "rows length"]) -> np.ndarray:
    """`statistics.ranks` of non-negative numbers along the last axis: one sort of 64-bit keys."""
    length = sizes.shape[-1]
    places = np.arange(length, dtype=np.uint64)
    keys = (sizes.view(np.uint32).astype(np.uint64) << np.uint64(32)) | places
    keys.sort(axis=-1)
    order = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    found = np.empty(sizes.shape, np.int32)
    np.put_along_axis(found, order, places.astype(np.int32)[None], axis=-1)
    return found


def smallest_of(sizes: Float[np.ndarray, " n"], num_kept: int) -> np.uint32:
    """`statistics.smallest_of` of one matrix, whose entries it puts into another order."""
    if num_kept <= 0:
        return np.uint32(statistics.NOTHING)
    bits = sizes.view(np.int32)  # non-negative floats are ordered like their bits
    bits.partition(len(bits) - num_kept)
    return np.uint32(bits[len(bits) - num_kept])


# --- programs over one piece ---------------------------------------------------------------------


class Piece(NamedTuple):
    """The same entries of everything that belongs to a leaf."""

    base: Any  # vectors of one length; None where there is no base
    experts: tuple[Any, ...]
    masks: tuple[Array, ...] | None = None
    importances: tuple[Array, ...] | None = None
    ranks: tuple[Array, ...] | None = None  # of each expert's entries in their rows, for DELLA
    start: Any = 0  # position in the matrix, modulo 2^32

    def models(self) -> methods.Deltas:
        return tuple(expert.astype(jnp.float32) for expert in self.experts)

    def deltas(self) -> methods.Deltas:
        if self.base is None:
            return self.models()
        start = self.base.astype(jnp.float32)
        return tuple(model - start for model in self.models())

    def keep_rates(self, known: Mapping[str, Any], row_length: int) -> tuple[Any, ...]:
        if self.ranks is None:
            return (known.get("keep_rate"),) * len(self.experts)
        rate, spread = known["keep_rate"], known["spread"]
        return tuple(statistics.keep_rates(r, row_length, rate, spread) for r in self.ranks)

    def kept(self, keys: tuple[Array, ...] | None, rates: tuple[Any, ...]) -> methods.Marks | None:
        """The explicit masks, or those drawn by `keys`."""
        if keys is None:
            return self.masks and tuple(mask.astype(bool) for mask in self.masks)
        length = self.experts[0].shape[0]
        return tuple(
            mask_lib.keep_run(key, rate, self.start, length)
            for key, rate in zip(keys, rates, strict=True)
        )


def _sum(x: Array) -> Array:
    """[lanes]: parts of the sum of a vector of 2^n, halves added to halves.

    Half the time of a reduction, which XLA's CPU programs carry out entry by entry.
    """
    while x.shape[0] > _LANES:
        half = x.shape[0] // 2
        x = x[:half] + x[half:]
    return x


@jax.jit
def magnitudes(piece: Piece) -> methods.Deltas:
    return tuple(map(jnp.abs, piece.deltas()))


@jax.jit
def variances(piece: Piece) -> Array:
    return methods.variance(piece.deltas())


@jax.jit
def squares(piece: Piece) -> Array:
    """[I, lanes]: the parts of sum d_i^2."""
    return jnp.stack([_sum(jnp.square(delta)) for delta in piece.deltas()])


@jax.jit
def products(piece: Piece) -> Array:
    """[pairs, lanes]: the parts of d_i . d_j for i <= j; of models where there is no base."""
    pairs = itertools.combinations_with_replacement(piece.deltas(), 2)
    return jnp.stack([_sum(x * y) for x, y in pairs])


@functools.partial(jax.jit, static_argnames="row_length")
def l1_norms(
    piece: Piece, keys: tuple[Array, ...] | None, known: dict[str, Any], *, row_length: int
) -> Array:
    """[2, I, lanes]: the parts of sum |d_i| and of sum |m_i d_i|."""
    sizes = tuple(map(jnp.abs, piece.deltas()))
    masks = piece.kept(keys, piece.keep_rates(known, row_length))
    assert masks is not None
    kept = methods.keep(masks, sizes)
    return jnp.stack([jnp.stack(list(map(_sum, part))) for part in (sizes, kept)])


@functools.partial(jax.jit, static_argnames="selects")
def energies(piece: Piece, smallest_variance: Any, *, selects: bool) -> Array:
    """[I, lanes]: the parts of the sum of d_i^2 over what SCE selects."""
    deltas = piece.deltas()
    if selects:
        kept = methods.reaches(methods.variance(deltas), smallest_variance)
        deltas = methods.keep((kept,) * len(deltas), deltas)
    return jnp.stack([_sum(jnp.square(delta)) for delta in deltas])


@jax.jit
def ram_counts(piece: Piece, threshold: Any) -> Array:
    """[2, I, 1]: entries moved with others and alone."""
    return jnp.stack(statistics.ram_counts(*methods.movers(piece.deltas(), threshold), (0,)))
