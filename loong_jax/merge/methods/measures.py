"""Programs over one piece that measure what several methods must know of a matrix."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from loong_jax.merge.methods.method import Deltas, Piece, add

_LANES = 4096  # partial sums, so that a sum is vectorised and its rounding small
NOTHING = np.uint32(0xFFFFFFFF)  # as the smallest entry to keep: above the bits of every float


def partial_sums(x: Array) -> Array:
    """[lanes]: parts of the sum of a vector of 2^n, halves added to halves.

    Half the time of a reduction, which XLA's CPU programs carry out entry by entry.
    """
    while x.shape[0] > _LANES:
        half = x.shape[0] // 2
        x = x[:half] + x[half:]
    return x


@jax.jit
def magnitudes(piece: Piece) -> Deltas:
    return tuple(map(jnp.abs, piece.deltas()))


@jax.jit
def squares(piece: Piece) -> Array:
    """[I, lanes]: the parts of sum d_i^2."""
    return jnp.stack([partial_sums(jnp.square(delta)) for delta in piece.deltas()])


@jax.jit
def products(piece: Piece) -> Array:
    """[pairs, lanes]: the parts of d_i . d_j for i <= j; of models where there is no base."""
    pairs = itertools.combinations_with_replacement(piece.deltas(), 2)
    return jnp.stack([partial_sums(x * y) for x, y in pairs])


def variance(deltas: Deltas) -> Float[Array, "*leaf"]:
    """Over experts, of the population."""
    center = add(deltas) / len(deltas)
    return add([jnp.square(delta - center) for delta in deltas]) / len(deltas)


def smallest_of(sizes: Float[np.ndarray, " n"], num_kept: int) -> np.uint32:
    """The bits of the smallest among the `num_kept` largest of non-negative numbers.

    NOTHING for none. Puts the numbers into another order.
    """
    if num_kept <= 0:
        return NOTHING
    bits = sizes.view(np.int32)  # non-negative floats are ordered like their bits
    bits.partition(len(bits) - num_kept)
    return np.uint32(bits[len(bits) - num_kept])


def tables(products: Float[np.ndarray, " pairs"], num_vectors: int) -> Float[np.ndarray, "I I"]:
    """A symmetric table from its upper triangle, given row by row."""
    found = np.zeros((num_vectors, num_vectors))
    upper = np.triu_indices(num_vectors)
    found[upper] = found[upper[::-1]] = products
    return found
