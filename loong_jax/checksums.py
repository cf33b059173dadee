"""Checksums of arrays: sums of bits, made where arrays lie, and CRC-32 of those in one place.

Knows: sharding.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped, UInt32

from loong_jax.sharding import launch

_BITS = "bits "


def labelled(array: Any) -> str:
    """The checksum of an array with dtype and shape. Of arrays over several devices it is the sum
    of bits, which no host has to see whole; else CRC-32, which also tells apart what changed
    places.
    """
    is_cut = isinstance(array, jax.Array) and len(array.sharding.device_set) > 1
    return _labelled(array, of_bits=is_cut)


def like(saved: str | int, array: Any) -> str | int:
    """The checksum of the kind that `saved` is of; older ones are sums of bits without a label."""
    if isinstance(saved, int):
        return of_array(array)
    return _labelled(array, of_bits=not is_of_whole(saved))


def is_of_whole(saved: str | int) -> bool:
    """True if the array was in one place, on a host or a device, when it was saved."""
    return isinstance(saved, str) and not saved.startswith(_BITS)


def _labelled(array: Any, *, of_bits: bool) -> str:
    if of_bits:
        return f"{_BITS}{array.dtype}{list(array.shape)}:{of_array(array):08x}"
    return of_whole(array.dtype, array.shape, crc32(array))


def of_whole(dtype: np.dtype, shape: Sequence[int], crc: int) -> str:
    """As `labelled`, of an array in one place that has this CRC-32."""
    return f"{dtype}{list(shape)}:{crc:08x}"


def crc32(array: Any, before: int = 0) -> int:
    """CRC-32 of bytes in C order, behind others that have `before`."""
    content = np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)
    return zlib.crc32(content.data, before)


def of_array(array: Any) -> int:
    """The sum of the bits of an array, as words of its dtype, modulo 2^32.

    However it is cut over devices and processes, all of them find the same number.
    """
    parts = [array]
    if isinstance(array, jax.Array):
        if not is_on_host(array):
            mesh: Any = getattr(array.sharding, "mesh", None)  # none of one device
            return int(np.asarray(launch(mesh, sum_of_bits, array)))
        parts = [shard.data for shard in array.addressable_shards if shard.replica_id == 0]
    return sum(map(_of_host, map(np.asarray, parts))) & 0xFFFFFFFF


def is_on_host(array: jax.Array) -> bool:
    """True if the array lies in this host's memory, where XLA's program would copy it."""
    (platform,) = {device.platform for device in array.sharding.device_set}
    return platform == "cpu" and array.is_fully_addressable


def _of_host(array: np.ndarray) -> int:
    width = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize]
    words = np.ascontiguousarray(array).reshape(-1).view(width)
    return int(np.sum(words, dtype=np.uint64 if width is np.uint64 else np.uint32))


def of_all(arrays: Iterable[Any]) -> tuple[int, ...]:
    """The checksums of arrays, one after the other: sums over processes that run at once may meet
    in another order in each.
    """
    return tuple(map(of_array, arrays))


@jax.jit
def sum_of_bits(array: Shaped[Array, "..."]) -> UInt32[Array, ""]:
    """The checksum `of_array`, computed on the devices that hold the parts."""
    if array.dtype == bool:
        return jnp.sum(array, dtype=jnp.uint32)
    array = jax.device_put(array, jax.memory.Space.Device)  # of host memory, as moments may be
    words = jax.lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")
    return jnp.sum(words.astype(jnp.uint32), dtype=jnp.uint32)
