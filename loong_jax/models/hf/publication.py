"""The published form of a model family's checkpoints: names of architectures, config, tensors.

A tensor is one slice of a leaf, transposed: published matrices are stored (out, in), ours (in, out)
with heads as axes of their own and layers and experts stacked.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import numpy as np

from loong_jax.models.hf.config_json import Json
from loong_jax.models.hf.files import Opened
from loong_jax.models.hf.quantised import Tensor

Region = tuple[tuple[int, int], ...]  # start and stop along every axis of a leaf
Bounds = Sequence[tuple[int, int]]
# Published name -> (ours, leading axes that are inputs; 0 where a tensor is stored as we hold it).
Table = Mapping[str, tuple[str, int]]
FFN: Table = {f"{name}_proj.weight": (name, 1) for name in ("gate", "up", "down")}


class Place(NamedTuple):
    """One tensor of the published layout and the region of a leaf that it is."""

    name: str
    leaf: str  # path in the weights, "layers/experts/gate_up"
    region: Region
    shape: tuple[int, ...]  # as stored
    is_turned: bool

    def turn(self, stored: np.ndarray) -> np.ndarray:
        """The stored tensor as the region holds it, without a copy."""
        held = stored.T if self.is_turned else stored
        return held.reshape([stop - start for start, stop in self.region])

    def turn_back(self, held: np.ndarray) -> np.ndarray:
        """The region as the tensor is stored."""
        return held.reshape(self.shape[::-1]).T if self.is_turned else held.reshape(self.shape)

    def rows(self, part: Bounds) -> tuple[int, int]:
        """The run of rows, as stored, that holds the region `part` of the leaf."""
        row = np.arange(self.shape[0]).reshape(-1, *[1] * (len(self.shape) - 1))
        held = self.turn(np.broadcast_to(row, self.shape))[within(part, self.region)]
        return int(held[(0,) * held.ndim]), int(held[(-1,) * held.ndim]) + 1  # rows grow with axes


def place(leaves: Mapping[str, Any], name: str, leaf: str, num_in: int, *index: Any) -> Place:
    """The tensor `name` at `index`, integers and slices, of a leaf; `leaves` have shapes.

    The first `num_in` of the axes that the index leaves are inputs; with 0 the tensor is stored as
    it is held.
    """
    shape = leaves[leaf].shape
    where = (*index, *(slice(None),) * (len(shape) - len(index)))
    region, kept = [], []
    for size, at in zip(shape, where, strict=True):
        start, stop, _ = (at if isinstance(at, slice) else slice(at, at + 1)).indices(size)
        region.append((start, stop))
        if isinstance(at, slice):
            kept.append(stop - start)
    stored = (math.prod(kept[num_in:]), math.prod(kept[:num_in])) if num_in else tuple(kept)
    return Place(name, leaf, tuple(region), stored, bool(num_in))


def table(
    leaves: Mapping[str, Any], prefix: str, leaf: str, names: Table, *index: int
) -> Iterator[Place]:
    """The tensors `prefix`.NAME at `index` of the leaves `leaf`/OURS."""
    for name, (ours, num_in) in names.items():
        yield place(leaves, f"{prefix}.{name}", f"{leaf}/{ours}", num_in, *index)


def meet(a: Bounds, b: Bounds) -> Region | None:
    """The intersection of two regions of one leaf; None where it is empty."""
    common = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return common if all(start < stop for start, stop in common) else None


def within(part: Bounds, whole: Bounds) -> tuple[slice, ...]:
    """The region `part` as an index into an array that holds the region `whole`."""
    return tuple(
        slice(start - origin, stop - origin)
        for (start, stop), (origin, _) in zip(part, whole, strict=True)
    )


def without_mesh() -> AbstractContextManager:
    """Within it, a program runs where its arrays lie, on one device of a mesh if need be.

    Under a mesh that `jax.set_mesh` set it would be refused.
    """
    return jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ()))


def region_of(index: Sequence[slice], shape: Sequence[int]) -> Region:
    """An index of slices as a region of a leaf of that shape."""
    bounds = (at.indices(size) for at, size in zip(index, shape, strict=True))
    return tuple((start, stop) for start, stop, _ in bounds)


Tensors = Mapping[str, Tensor]


def _nothing(*_: Any) -> None:
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Publication:
    """The published form of a family: how its checkpoints are recognised, and what files mean.

    `dtype` and `param_dtype` are fields of its configs. Leaves are by path, with shapes.
    """

    architectures: tuple[str, ...]  # in config.json
    model_types: tuple[str, ...]  # there, where it names no architecture
    config_type: type
    read_config: Callable[..., Any]  # (config.json, **fields it does not decide) -> config
    write_config: Callable[[Any, Json | None, Any], Json]  # (config, imported one, stored dtype)
    abstract_weights: Callable[..., Any]  # (config, rules=None) -> graph, tree of shapes
    places: Callable[[Any, Mapping[str, Any]], Iterator[Place]]  # (config, leaves)
    embedding: str  # the tensor whose dtype is that of the activations
    # (tensors, files, config.json) -> fields of the config that tensors tell, tensors of the model
    select: Callable[[Tensors, Opened, Json], tuple[Json, Tensors]]
    is_float32: Callable[[str], bool] = lambda leaf: False  # a leaf that is, whatever is stored
    # (names missing, names extra, config) -> what is wrong and the remedy, where there is a reason
    explain: Callable[[set[str], set[str], Any], str | None] = _nothing
    # (places, tensors, files, config.json, config); raises CheckpointError
    check_values: Callable[[Sequence[Place], Tensors, Opened, Json, Any], None] = _nothing


def bits_differ(found: Tensors, opened: Opened, first: str, second: str, rows: int = 4096) -> bool:
    """True where two tensors are not the same to the bit."""
    a, b = found[first], found[second]
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return True
    ends = ((at, min(at + rows, a.shape[0])) for at in range(0, a.shape[0], rows))
    bits = ([x.rows(opened, *end).view(np.uint8) for x in (a, b)] for end in ends)
    return any(not np.array_equal(ours, theirs) for ours, theirs in bits)
