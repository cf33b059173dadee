"""Random choices of a merge: which entries of which delta survive.

The mask of a matrix depends on the seed and on what the matrix is: path, expert, place in its
stack. Mesh, stacking, the order of experts and the other leaves do not change it.
"""

import functools
import hashlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key, UInt32

from loong_jax.merge import tree


def leaf_key(seed: int, path: str, expert: str) -> Key[Array, ""]:
    """key = fold_in(fold_in(fold_in(seed, hash(path)), hash(expert)), integer keys of the path)."""
    name, indices = tree.identity(path)
    key = jax.random.key(seed, impl="threefry2x32")
    for number in (tree.stable_hash(name), tree.stable_hash(expert), *indices):
        key = jax.random.fold_in(key, number)
    return key


def keep_mask(
    key: Key[Array, ""], keep_rate: Array | float, shape: tuple[int, ...], batch_axes: int
) -> Bool[Array, "..."]:
    """True with probability `keep_rate`, each matrix of the stack under its own key."""

    def draw(key: Key[Array, ""], axis: int) -> Bool[Array, "..."]:
        if axis == batch_axes:
            return jax.random.bernoulli(key, keep_rate, shape[axis:])
        indices = jnp.arange(shape[axis], dtype=jnp.uint32)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, indices)
        return jax.vmap(functools.partial(draw, axis=axis + 1))(keys)

    return draw(key, 0)


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
        sums = np.asarray(_checksum(jnp.asarray(leaf), num_axes))
        for place in np.ndindex(sums.shape):
            text = f"{name}{indices + place}{int(sums[place])}"
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            total += int.from_bytes(digest, "little")
    return f"{total % 2**64:016x}"


@functools.partial(jax.jit, static_argnames="batch_axes")
def _checksum(leaf: Array, batch_axes: int) -> UInt32[Array, "..."]:
    """Sum modulo 2^32 of the bits of each entry times an odd number made of its position."""
    bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{leaf.dtype.itemsize * 8}"))
    position = jnp.zeros(leaf.shape, jnp.uint32)
    for axis in range(batch_axes, leaf.ndim):
        place = jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
        position = position * jnp.uint32(leaf.shape[axis]) + place
    mixed = bits.astype(jnp.uint32) * (position * jnp.uint32(2654435768) + jnp.uint32(1))
    axes = tuple(range(batch_axes, leaf.ndim))
    return jnp.sum(mixed, axis=axes, dtype=jnp.uint32)
