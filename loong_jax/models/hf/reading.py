"""Leaves of a model, put together from the tensors of a checkpoint while these are read.

Every device is given its shard of a leaf, put together on the host from the regions of the tensors
that meet it, in blocks of bounded size, and cast on the way. So no host holds more than a block
beyond what its devices hold, and of a checkpoint it reads what its devices need.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.errors import CheckpointError
from loong_jax.models.hf import publication
from loong_jax.models.hf.files import CODES, Opened, StoredTensor
from loong_jax.models.hf.publication import Bounds, Place, Region
from loong_jax.models.hf.quantised import Tensor
from loong_jax.remote import RemotePath

BLOCK_BYTES = 1 << 30  # of host memory for what is on its way to a device
_EXPONENTS = {"float32": (np.uint32, 0x7F800000), "bfloat16": (np.uint16, 0x7F80)}
_EXPONENTS["float16"] = (np.uint16, 0x7C00)  # all ones: infinite, or no number


class Reader:
    """The leaves that `places` make up of the tensors `found`, unread."""

    def __init__(self, found: Mapping[str, Tensor], places: Iterable[Place]):
        self._found = found
        self._opened: Opened = {}
        self._of_leaf: dict[str, list[Place]] = {}
        for place in places:
            known = self._of_leaf.setdefault(place.leaf, [])
            if not known or known[-1].region != place.region:
                known.append(place)

    def read(self, leaf: str, region: Region, dtype: np.dtype) -> np.ndarray:
        """A region of a leaf in `dtype`.

        Raises CheckpointError where a value is not finite, or is not in `dtype` any more.
        """
        block = np.empty([stop - start for start, stop in region], dtype)
        for place in self._of_leaf[leaf]:
            if common := publication.meet(region, place.region):
                part, where = self._part(place, common), publication.within(common, region)
                with np.errstate(over="ignore"):
                    block[where] = part
                if not is_finite(block[where]):
                    refuse_values(place.name, part, dtype)
        return block

    def _part(self, place: Place, region: Bounds) -> np.ndarray:
        """A tensor's part in a region: a view of a local file, else read in the rows it takes."""
        tensor = self._found[place.name]
        first, last = 0, tensor.shape[0] if tensor.shape else 1
        is_local = isinstance(tensor, StoredTensor) and not isinstance(tensor.file, RemotePath)
        if not is_local:
            first, last = place.rows(region)
        stored = tensor.rows(self._opened, first, last)
        if stored.shape != tensor.shape:
            rows, stored = stored, np.empty(tensor.shape, tensor.dtype)
            stored[first:last] = rows  # touched in these only
        return place.turn(stored)[publication.within(region, place.region)]

    def load(self, leaf: str, spec: Any) -> jax.Array:
        """A whole leaf in the shape, dtype and sharding of `spec`; on the default device without.

        Of a sharded one, what the devices of this process hold is read.
        """
        shape, dtype, sharding = spec.shape, np.dtype(spec.dtype), spec.sharding
        if sharding is None:
            return self._on_device(leaf, tuple((0, size) for size in shape), dtype, None)
        shards, first = [], {}
        for device, index in sharding.addressable_devices_indices_map(shape).items():
            region = publication.region_of(index, shape)
            if region not in first:
                first[region] = self._on_device(leaf, region, dtype, device)
            shards.append(jax.device_put(first[region], device))
        return jax.make_array_from_single_device_arrays(shape, sharding, shards)

    def _on_device(self, leaf: str, region: Region, dtype: np.dtype, device: Any) -> jax.Array:
        """A region on one device, sent in blocks along its first axis."""
        shape = [stop - start for start, stop in region]
        rows = max(1, BLOCK_BYTES // max(1, math.prod(shape[1:]) * dtype.itemsize))
        if rows >= shape[0]:
            return jax.device_put(self.read(leaf, region, dtype), device)
        with publication.without_mesh():
            whole = jnp.zeros(shape, dtype, device=device)
            begin, end = region[0]
            for start in range(begin, end, rows):
                block = self.read(leaf, ((start, min(start + rows, end)), *region[1:]), dtype)
                whole = _write(whole, jax.device_put(block, device), start - begin)
            return whole


@functools.partial(jax.jit, donate_argnums=0)
def _write(whole: jax.Array, block: jax.Array, start: Any) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(whole, block, start, axis=0)


def is_finite(values: np.ndarray) -> bool:
    """True if no value is infinite or NaN, judged by the exponent bits."""
    kind, ones = _EXPONENTS[values.dtype.name]
    return not values.size or int((values.view(kind) & kind(ones)).max()) != ones


def refuse_values(name: str, stored: np.ndarray, dtype: np.dtype) -> NoReturn:
    """Raises CheckpointError: a tensor is not finite, or not in `dtype`."""
    wide = np.asarray(stored, np.float32)
    if not np.isfinite(wide).all():
        raise CheckpointError(
            f"{name} holds {int((~np.isfinite(wide)).sum())} values that are not finite, and every "
            "answer would be noise. Fetch the checkpoint again, or take an earlier one of the run "
            "that wrote it."
        )
    raise CheckpointError(
        f"{name} holds {np.abs(wide).max():.6g}, which {CODES[dtype]} cannot: it would become "
        "infinite. Choose bfloat16 or float32."
    )
