"""Checksums of arrays, summed where they lie."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped, UInt32

from loong_jax.sharding import launch


def of_array(array: Any) -> int:
    """The sum of the bits of an array, as words of its dtype, modulo 2^32.

    However it is cut over devices and processes, all of them find the same number.
    """
    if not isinstance(array, jax.Array):
        array = np.asarray(array)
        width = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize]
        words = np.ascontiguousarray(array).reshape(-1).view(width)
        return int(np.sum(words, dtype=np.uint64 if width is np.uint64 else np.uint32) & 0xFFFFFFFF)
    sharding = array.sharding
    mesh: Any = getattr(sharding, "mesh", None)  # none of one device
    return int(np.asarray(launch(mesh, _sum, array)))


def of_all(arrays: Iterable[Any]) -> tuple[int, ...]:
    """Of each array, one after the other: sums over processes that run at once may meet in another
    order in each.
    """
    return tuple(map(of_array, arrays))


def by_name(arrays: Mapping[str, Any]) -> dict[str, int]:
    return dict(zip(arrays, of_all(arrays.values()), strict=True))


@jax.jit
def _sum(array: Shaped[Array, "..."]) -> UInt32[Array, ""]:
    if array.dtype == bool:
        return jnp.sum(array, dtype=jnp.uint32)
    words = jax.lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")
    return jnp.sum(words.astype(jnp.uint32), dtype=jnp.uint32)
