"""Arrays of a checkpoint in parts, read from their bytes in the file.

TensorStore reads an array by the chunks that it was written in, and an array that lay on one device
is one chunk. Chunks without compression are bytes in C order (Zarr, version 2), so rows of one can
be read alone.
"""

import gc
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import tensorstore
from etils import epath
from jax.sharding import SingleDeviceSharding

Index = tuple[slice, ...]  # start and stop on every axis

_CACHE_BYTES = 1_000_000  # of the tables of what lies where


class Part(NamedTuple):
    index: Index
    array: np.ndarray


class StoredParts:
    """Of the arrays in `directory`, as Orbax wrote them."""

    def __init__(self, directory: epath.Path):
        url = f"{directory}/"
        base = url if "://" in url else {"driver": "file", "path": url}
        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
        self._values = tensorstore.KvStore.open(
            {"driver": "ocdbt", "base": base}, context=context
        ).result()

    def is_plain(self, name: str) -> bool:
        """False where an array was compressed: it has no parts then."""
        layout = self._layout(name)
        return layout["compressor"] is None and not layout["filters"] and layout["order"] == "C"

    def read(self, name: str, dtype: np.dtype, region: Index, num_bytes: int) -> np.ndarray:
        """A region of an array; at most `num_bytes` are held beside it."""
        found = np.empty(_shape(region), dtype)
        for part in self.parts(name, dtype, region, num_bytes):
            found[_seen_from(region, part.index)] = part.array
        return found

    def parts(self, name: str, dtype: np.dtype, region: Index, num_bytes: int) -> Iterator[Part]:
        """All of a region in C order; at most `num_bytes` are held, the next part among them."""
        chunk = self._layout(name)["chunks"]
        begun = (
            (block, self._begin(name, block, chunk, dtype))
            for block in _blocks(region, chunk, num_bytes // 2 // dtype.itemsize)
        )
        for now, _ in itertools.pairwise(itertools.chain(begun, [None])):
            assert now is not None
            yield _joined(*now, dtype)

    def _layout(self, name: str) -> dict[str, Any]:
        return json.loads(self._values[f"{name}/.zarray"])

    def _begin(self, name: str, block: Index, chunk: Sequence[int], dtype: np.dtype) -> list[Any]:
        """Begins to read a block from each chunk: the rows there that hold something of it."""
        begun = []
        for grid in itertools.product(*map(_numbers, block, chunk)):
            whole = tuple(slice(i * c, (i + 1) * c) for i, c in zip(grid, chunk, strict=True))
            shared = _overlap(whole, block)
            inside = _seen_from(whole, shared)
            cut = next((i for i, n in enumerate(_shape(inside)) if n > 1), len(chunk) - 1) + 1
            shape = (*_shape(inside)[:cut], *chunk[cut:])
            row = math.prod(chunk[cut:]) * dtype.itemsize
            first = np.ravel_multi_index([one.start for one in inside[:cut]], chunk[:cut])
            span = slice(int(first) * row, (int(first) + math.prod(shape[:cut])) * row)
            coming = self._values.read(f"{name}/{'.'.join(map(str, grid))}", byte_range=span)
            begun.append((_seen_from(block, shared), coming, shape, inside[cut:]))
        return begun


def _joined(block: Index, begun: list[Any], dtype: np.dtype) -> Part:
    array = None if len(begun) == 1 else np.empty(_shape(block), dtype)
    for index, coming, shape, columns in begun:
        piece = np.frombuffer(coming.result().value, dtype).reshape(shape)[..., *columns]
        if array is None:
            return Part(block, piece)
        array[index] = piece
    assert array is not None
    return Part(block, array)


def _numbers(part: slice, size: int) -> range:
    """Of the chunks of a size that hold something of a part of an axis."""
    return range(part.start // size, -(-part.stop // size))


def _blocks(region: Index, chunk: Sequence[int], num_elements: int) -> Iterator[Index]:
    """Of a region, in C order. Rows of chunks that hold one have at most `num_elements`."""
    sizes = [c * len(_numbers(part, c)) for part, c in zip(region, chunk, strict=True)]
    axis = next(i for i in range(len(sizes)) if math.prod(sizes[i + 1 :]) <= num_elements)
    num_rows = num_elements // math.prod(sizes[axis + 1 :])
    for before in itertools.product(*(range(part.start, part.stop) for part in region[:axis])):
        for start in range(region[axis].start, region[axis].stop, num_rows):
            rows = slice(start, min(start + num_rows, region[axis].stop))
            yield (*(slice(i, i + 1) for i in before), rows, *region[axis + 1 :])


def by_shares(
    read: Callable[[Index], np.ndarray], shape: tuple[int, ...], place: jax.sharding.Sharding
) -> jax.Array:
    """An array on the devices of its place. One share after the other is read."""
    indices = place.addressable_devices_indices_map(shape)
    devices_of: dict[tuple[tuple[int, int], ...], list[Any]] = {}  # that hold the same
    for device, index in indices.items():
        assert index is not None
        spans = (one.indices(size)[:2] for one, size in zip(index, shape, strict=True))
        devices_of.setdefault(tuple(spans), []).append(device)
    shares = {}
    for spans, devices in devices_of.items():
        share = read(tuple(slice(*span) for span in spans))
        for device in devices:
            own = SingleDeviceSharding(device, memory_kind=place.memory_kind)
            shares[device] = jax.device_put(share, own)
        jax.block_until_ready(list(shares.values()))
        del share
        gc.collect(0)  # else JAX holds what it copied to devices until its next turn
    ordered = [shares[device] for device in indices]
    return jax.make_array_from_single_device_arrays(shape, place, ordered)


def _shape(index: Index) -> tuple[int, ...]:
    return tuple(one.stop - one.start for one in index)


def _overlap(a: Index, b: Index) -> Index:
    """Empty on an axis where they share nothing."""
    spans = ((max(x.start, y.start), min(x.stop, y.stop)) for x, y in zip(a, b, strict=True))
    return tuple(slice(start, max(start, stop)) for start, stop in spans)


def _seen_from(origin: Index, index: Index) -> Index:
    return tuple(
        slice(i.start - o.start, i.stop - o.start) for o, i in zip(origin, index, strict=True)
    )
