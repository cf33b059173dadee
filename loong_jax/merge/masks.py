"""Random choices of a merge: which entries of which delta survive.

The mask of a matrix depends on the seed and on what the matrix is: path, expert, place in its
stack. Mesh, stacking, the order of experts and the other leaves do not change it. Bits come from a
hash of a 64-bit key and the position in the matrix, not from `jax.random`: the same in every
release of JAX, and compiled for a CPU in a twentieth of the time.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt32

from loong_jax.merge import tree


def leaf_key(seed: int, path: str, expert: str) -> UInt32[np.ndarray, "2"]:
    """A key for the leaf: hash of seed, path and expert, with the path's integer keys folded in."""
    name, indices = tree.identity(path)
    digest = hashlib.blake2b(f"{seed}\n{name}\n{expert}".encode(), digest_size=8).digest()
    return matrix_key(np.frombuffer(digest, "<u4").astype(np.uint32), indices)


def fold(first: Any, second: Any, index: Any) -> tuple[Any, Any]:
    """The key (first, second) of matrix `index` of a stack."""
    return scramble(first, second, 2 * index), scramble(first, second, 2 * index + 1)


def scramble(first: Any, second: Any, position: Any) -> Any:
    """32 random bits of a key at a position: mix(mix(position ^ first) + second)."""
    return _mix(_mix(position ^ first) + second)


def _mix(x: Any) -> Any:
    """Every bit of x reaches every bit of the result (finalizer of MurmurHash3, public domain)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def keep_run(
    key: UInt32[Array, "2"], keep_rate: Array | float, start: Array | int, length: int
) -> Bool[Array, " n"]:
    """True with probability `keep_rate`: `length` entries of a matrix from position `start` on.

    Uniform numbers have 24 bits, so a rate of 1 keeps everything.
    """
    position = jnp.arange(length, dtype=jnp.uint32) + jnp.asarray(start, jnp.uint32)
    bits = scramble(key[0], key[1], position)
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2**-24) < keep_rate


def matrix_key(key: UInt32[np.ndarray, "2"], place: tuple[int, ...]) -> UInt32[np.ndarray, "2"]:
    """The key of one matrix of a stack, from the leaf's."""
    first, second = key[:1], key[1:]
    for index in place:
        first, second = fold(first, second, np.full(1, index, np.uint32))
    return np.concatenate([first, second])


def fingerprint(leaves: Mapping[str, tree.Leaf], batch_axes: tree.BatchAxes) -> str:
    """A name made of the weights themselves, for experts that were given without one.

    A sum of hashes over matrices and wrapping integer sums inside them, so neither mesh nor
    stacking nor the order of leaves changes it.
    """
    total = 0
    for path, leaf in leaves.items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        num_axes = tree.num_batch_axes(batch_axes, path, leaf.ndim)
        name, indices = tree.identity(path)
        sums = _checksums(tree.on_host(leaf), num_axes)
        for place in np.ndindex(sums.shape):
            text = f"{name}{indices + place}{int(sums[place])}"
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            total += int.from_bytes(digest, "little")
    return f"{total % 2**64:016x}"


def _checksums(leaf: np.ndarray, batch_axes: int) -> UInt32[np.ndarray, "..."]:
    """Checksums of matrices: sum modulo 2^32 of entries' bits times odd numbers of positions."""
    leaf = np.ascontiguousarray(leaf)
    leaf = leaf.astype(np.float32) if leaf.dtype.itemsize > 4 else leaf
    bits = leaf.view(f"u{leaf.dtype.itemsize}").reshape(*leaf.shape[:batch_axes], -1)
    odd = np.arange(bits.shape[-1], dtype=np.uint32) * np.uint32(2654435768) + np.uint32(1)
    return np.asarray(np.sum(bits.astype(np.uint32) * odd, axis=-1, dtype=np.uint32))
