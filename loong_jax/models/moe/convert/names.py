"""Which tensor of the published layout belongs where in the weights, and how it is turned.

Published matrices are stored (out, in), ours (in, out) with heads as axes of their own and layers
and experts stacked. So a tensor is one slice of a leaf, transposed. Zero-computation experts have
no tensors. Source: the published checkpoints.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import numpy as np

from loong_jax.models.moe.config import MoEConfig

# Published name -> (ours, leading axes that are inputs; 0 where a tensor is stored as we hold it).
_Table = dict[str, tuple[str, int]]

_ATTENTION: _Table = {
    "q_a_proj.weight": ("query_down", 1),
    "q_a_layernorm.weight": ("query_norm", 0),
    "q_b_proj.weight": ("query_up", 1),
    "kv_a_proj_with_mqa.weight": ("latent_down", 1),
    "kv_a_layernorm.weight": ("latent_norm", 0),
    "kv_b_proj.weight": ("latent_up", 1),
    "o_proj.weight": ("out", 2),
}
_DENSE: _Table = {
    "gate_proj.weight": ("gate", 1),
    "up_proj.weight": ("up", 1),
    "down_proj.weight": ("down", 1),
}
_ROUTER: _Table = {
    "classifier.weight": ("kernel", 1),
    "e_score_correction_bias": ("bias", 0),
}
_MTP: _Table = {
    "norm.weight": ("final_norm", 0),
    "layers.0.enorm.m.weight": ("embedding_norm", 0),
    "layers.0.hnorm.m.weight": ("hidden_norm", 0),
    "layers.0.eh_proj.weight": ("projection", 1),
    "layers.0.input_layernorm.weight": ("attention_norm", 0),
    "layers.0.post_attention_layernorm.weight": ("ffn_norm", 0),
}
MTP = "model.mtp."
EMBEDDING = "model.embed_tokens.weight"
EMBEDDING_COPY = "model.mtp.embed_tokens.weight"

Region = tuple[tuple[int, int], ...]  # start and stop along every axis of a leaf
Bounds = Sequence[tuple[int, int]]


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


def places(config: MoEConfig, leaves: Mapping[str, Any]) -> Iterator[Place]:
    """Every tensor of the published layout, in its order; `leaves` is by path, with shapes.

    The copy of the embedding that comes with a drafting head has the same region as the embedding.
    """

    def place(name: str, leaf: str, num_in: int, *index: int | slice) -> Place:
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

    def table(prefix: str, leaf: str, names: _Table, *index: int) -> Iterator[Place]:
        for name, (ours, num_in) in names.items():
            yield place(f"{prefix}.{name}", f"{leaf}/{ours}", num_in, *index)

    yield place(EMBEDDING, "embedding", 0)
    if config.ngram is not None:
        first = 0
        for index, rows in enumerate(config.ngram.rows):
            prefix = "model.ngram_embeddings"
            among = slice(first, first + rows)
            yield place(f"{prefix}.embedders.{index}.weight", "ngram/table", 0, among)
            yield place(f"{prefix}.post_projs.{index}.weight", "ngram/projection", 1, index)
            first += rows
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for i in (0, 1):
            yield place(
                f"{prefix}.input_layernorm.{i}.weight", f"layers/attention_norm_{i}", 0, layer
            )
            yield from table(f"{prefix}.self_attn.{i}", f"layers/attention_{i}", _ATTENTION, layer)
            yield place(
                f"{prefix}.post_attention_layernorm.{i}.weight", f"layers/ffn_norm_{i}", 0, layer
            )
            yield from table(f"{prefix}.mlps.{i}", f"layers/ffn_{i}", _DENSE, layer)
        yield from table(f"{prefix}.mlp.router", "layers/router", _ROUTER, layer)
        for expert in range(config.num_experts):
            own, among = f"{prefix}.mlp.experts.{expert}", slice(None)
            for half, name in enumerate(("gate_proj", "up_proj")):
                at = (layer, expert, among, half)
                yield place(f"{own}.{name}.weight", "layers/experts/gate_up", 1, *at)
            yield place(f"{own}.down_proj.weight", "layers/experts/down", 1, layer, expert)
    yield place("model.norm.weight", "final_norm", 0)
    yield place("lm_head.weight", "head", 1)
    if config.num_mtp_layers:
        yield place(EMBEDDING_COPY, "embedding", 0)
        yield from table(MTP[:-1], "mtp", _MTP)
        yield from table(f"{MTP}layers.0.self_attn", "mtp/attention", _ATTENTION, 0)
        yield from table(f"{MTP}layers.0.transformer_layer.mlp", "mtp/ffn", _DENSE, 0)


def meet(a: Bounds, b: Bounds) -> Region | None:
    """What two regions of one leaf have in common, None where that is nothing."""
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
