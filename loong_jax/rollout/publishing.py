"""A policy version on its way into many processes: messages, replies and the host's part.

Two phases. First every host is sent the arrays in chunks, and prepares: all chunks are there, each
array has its checksum, the manifest is that of the versions before. Only when all have prepared
are they told to commit; until then nobody can be assigned the version, and one that refuses makes
all forget it. Every message may come twice, and may be sent again where its answer is late.
"""

import zlib
from typing import Any, NamedTuple

import jax
import numpy as np

from loong_jax.rollout.versions import Manifest, VersionError, VersionStore


class Begin(NamedTuple):
    publication: int  # counts attempts to publish, over all versions of a run
    version: int
    manifest: Manifest
    checksums: tuple[int, ...]  # CRC-32 of every leaf
    skeleton: Any  # the tree of the weights with the index of each leaf in its place
    sums: tuple[int, ...] | None = None  # of the driver's store


class Chunk(NamedTuple):
    """Bytes of one leaf from `offset` on; the bytes travel beside it."""

    publication: int
    leaf: int
    offset: int


class Prepare(NamedTuple):
    publication: int


class Commit(NamedTuple):
    publication: int


class Rollback(NamedTuple):
    publication: int


Message = Begin | Chunk | Prepare | Commit | Rollback


class Reply(NamedTuple):
    """`refusal` is empty where it was done; `leaf` names the array that a refusal is about."""

    refusal: str = ""
    leaf: str = ""


DONE = Reply()


class Staging:
    """The host's part. One publication is staged at a time; a newer one takes its place."""

    def __init__(self, store: VersionStore):
        self._store = store
        self._begun: Begin | None = None
        self._leaves: list[np.ndarray] = []  # uint8
        self._received: list[dict[int, int]] = []  # by leaf: offset, bytes
        self._sums: list[tuple[int, int]] = []  # by leaf: bytes from its beginning, their CRC-32
        self._last_committed = -1
        self._closed = -1  # this publication and those before are over
        self._is_prepared = False

    def handle(self, message: Message, data: np.ndarray | None = None) -> Reply:
        """Carries out one message; `data` is uint8, the bytes of a chunk."""
        match message:
            case Begin():
                return self._begin(message)
            case Chunk():
                assert data is not None
                return self._chunk(message, data)
            case Prepare(publication):
                return self._prepare(publication)
            case Commit(publication):
                return self._commit(publication)
            case Rollback(publication):
                self._drop(publication)
                return DONE

    def _begin(self, begun: Begin) -> Reply:
        if begun.publication <= self._closed or begun == self._begun:
            return self._stale(begun.publication) if begun != self._begun else DONE
        if self._begun is not None and begun.publication < self._begun.publication:
            return Reply(f"publication {self._begun.publication} has begun since")
        self._begun, self._is_prepared = begun, False
        sizes = [_num_bytes(leaf.shape, leaf.dtype) for leaf in begun.manifest]
        self._leaves = [np.empty(size, np.uint8) for size in sizes]
        self._received = [{} for _ in sizes]
        self._sums = [(0, 0) for _ in sizes]
        return DONE

    def _chunk(self, chunk: Chunk, data: np.ndarray) -> Reply:
        if self._begun is None or chunk.publication != self._begun.publication:
            return self._stale(chunk.publication)
        whole = self._leaves[chunk.leaf]
        if chunk.offset + len(data) > len(whole):
            return Reply(
                f"{len(data)} bytes at {chunk.offset} of {len(whole)}", self._name(chunk.leaf)
            )
        if not self._is_prepared:  # a late second copy changes nothing that was checked
            place = whole[chunk.offset : chunk.offset + len(data)]
            end, checksum = self._sums[chunk.leaf]
            if chunk.offset == end:  # summed as they come, so that to prepare takes no time
                self._sums[chunk.leaf] = end + len(data), zlib.crc32(data.data, checksum)
            elif chunk.offset < end and not np.array_equal(place, data):
                self._sums[chunk.leaf] = 0, 0
            place[:] = data
            self._received[chunk.leaf][chunk.offset] = len(data)
        return DONE

    def _prepare(self, publication: int) -> Reply:
        begun = self._begun
        if begun is None or publication != begun.publication:
            return self._stale(publication)
        if self._is_prepared:
            return DONE
        try:
            self._store.check(begun.version, begun.manifest)
        except VersionError as error:
            return Reply(str(error))
        for index, (whole, checksum) in enumerate(zip(self._leaves, begun.checksums, strict=True)):
            there = sum(self._received[index].values())
            if there != len(whole):
                return Reply(f"{there} of {len(whole)} bytes came", self._name(index))
            end, found = self._sums[index]
            if zlib.crc32(whole[end:].data, found) != checksum:
                return Reply("its checksum is another one", self._name(index))
        self._is_prepared = True
        return DONE

    def _commit(self, publication: int) -> Reply:
        if publication == self._last_committed:
            return DONE
        begun = self._begun
        if begun is None or publication != begun.publication or not self._is_prepared:
            return Reply(f"publication {publication} is not prepared here")
        arrays = [
            whole.view(jax.numpy.dtype(leaf.dtype)).reshape(leaf.shape)
            for whole, leaf in zip(self._leaves, begun.manifest, strict=True)
        ]
        weights = jax.tree.map(lambda index: arrays[index], begun.skeleton)
        self._store.put(begun.version, weights, timeout_s=0.0, checksums=begun.sums)
        self._last_committed = publication
        self._drop(publication)
        return DONE

    def _drop(self, publication: int) -> None:
        self._closed = max(self._closed, publication)
        if self._begun is not None and self._begun.publication <= self._closed:
            self._begun, self._leaves, self._received = None, [], []
            self._is_prepared = False

    def _stale(self, publication: int) -> Reply:
        if publication == self._last_committed:
            return DONE
        return Reply(f"publication {publication} is not under way here")

    def _name(self, index: int) -> str:
        assert self._begun is not None
        return self._begun.manifest[index].name


def checksums_of(weights: Any) -> tuple[int, ...]:
    """CRC-32 of the bytes of every array, in host memory."""
    return tuple(
        zlib.crc32(np.ascontiguousarray(np.asarray(a)).reshape(-1).view(np.uint8).data)
        for a in jax.tree.leaves(weights)
    )


def _num_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return int(np.prod(shape, dtype=np.int64)) * jax.numpy.dtype(dtype).itemsize
