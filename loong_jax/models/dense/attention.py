"""Attention whose queries share keys and values in groups.

N = KV * G query heads; heads g of one key stand together, as in the published matrices. Keys and
values are never repeated: all queries of a key are the rows of one product. Source:
arXiv:2305.13245.
"""

import functools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.models import decoder, parameters
from loong_jax.models.decoder import States
from loong_jax.models.dense.config import DenseConfig
from loong_jax.models.products import accumulate, project, rms_norm
from loong_jax.models.rope import Turn, turned
from loong_jax.sharding import ShardingRules

CACHE_AXES = ("layers", "heads", "act_batch", "act_keys", None)
_MOST_SCORES = 1 << 26  # in memory at once: 256 MiB of float32


class KeyValueCache(NamedTuple):
    """Rotated keys and values of S positions; entry s is position s, whoever wrote it."""

    key: Float[Array, "L KV B S H"]
    value: Float[Array, "L KV B S H"]

    @classmethod
    def zeros(
        cls, config: DenseConfig, batch: int, capacity: int, rules: ShardingRules | None = None
    ) -> "KeyValueCache":
        """An empty cache for `batch` sequences of at most `capacity` tokens."""
        shape = (config.num_layers, config.num_kv_heads, batch, capacity, config.head_dim)
        spec = (rules or ShardingRules()).spec_of(shape, *CACHE_AXES)
        return cls(*(jnp.zeros(shape, config.dtype, device=spec) for _ in range(2)))

    def write(
        self,
        layer: Int[Array, ""],
        key: Float[Array, "B T KV H"],
        value: Float[Array, "B T KV H"],
        position: Int[Array, "B T"],
        rules: ShardingRules,
    ) -> "KeyValueCache":
        """Puts T new entries of one layer into each sequence; see `decoder.written`."""
        return decoder.written(
            self,
            (key, value),
            position,
            CACHE_AXES,
            rules,
            layer=(layer,),
            part=(slice(None),),
            new_axes=("act_batch", None, "heads", None),
        )


class View(NamedTuple):
    """The mask of attention: a query sees keys of its segment or its parent, up to its own index.

    Segment 0 is padding and sees nothing.
    """

    query_segment: Int[Array, "B T"]
    query_parent: Int[Array, "B T"]
    query_index: Int[Array, "B T"]
    key_segment: Int[Array, "B S"]
    key_index: Int[Array, "B S"]

    @classmethod
    def of_cache(cls, position: Int[Array, "B T"], capacity: int) -> "View":
        """The mask of queries at these positions over the entries of a cache."""
        key_index_BS = jnp.zeros_like(position[:, :1]) + jnp.arange(capacity)[None]
        one_BT, one_BS = jnp.ones_like(position), jnp.ones_like(key_index_BS)
        return cls(one_BT, one_BT, position, one_BS, key_index_BS)

    def pairs(self) -> Bool[Array, "B T S"]:
        segment_BT1, key_B1S = self.query_segment[:, :, None], self.key_segment[:, None]
        kin = (key_B1S == segment_BT1) | (key_B1S == self.query_parent[:, :, None])
        early = self.key_index[:, None] <= self.query_index[:, :, None]
        return kin & early & (segment_BT1 > 0) & (key_B1S > 0)


class GroupedAttention(parameters.Gathering, nnx.Module):
    """The attention of every layer; methods expect one layer's slice of the weights."""

    AXES: ClassVar[dict[str, tuple[str | None, ...]]] = {
        "query": ("embed", "heads", None, "head_width"),
        "key": ("embed", "heads", "head_width"),
        "value": ("embed", "heads", "head_width"),
        "out": ("heads", None, "head_width", "embed"),
    }

    def __init__(self, config: DenseConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        self.config, self.rules = config, rules
        c = config
        queries, keys = (c.num_kv_heads, c.num_groups, c.head_dim), (c.num_kv_heads, c.head_dim)

        def bias(name: str, *shape: int) -> nnx.Param:
            axes = ("layers", *self.AXES[name][1:]) if name != "out" else ("layers", None)
            return parameters.zeros((c.num_layers, *shape), axes, c.param_dtype, rules)

        matrix, width = functools.partial(self.fresh, rngs), c.hidden_size
        self.query = matrix("query", width, *queries, fan_in=width)
        self.key = matrix("key", width, *keys, fan_in=width)
        self.value = matrix("value", width, *keys, fan_in=width)
        fan_in = c.num_heads * c.head_dim
        self.out = matrix("out", *queries, width, fan_in=fan_in, gain=c.residual_gain)
        if c.qkv_bias:
            self.query_bias = bias("query", *queries)
            self.key_bias = bias("key", *keys)
            self.value_bias = bias("value", *keys)
        if c.out_bias:
            self.out_bias = bias("out", c.hidden_size)
        if c.qk_norm:
            norm = (c.num_layers, c.head_dim), ("layers", None), rules
            self.query_norm, self.key_norm = parameters.ones(*norm), parameters.ones(*norm)

    def queries(self, x: States, turn: Turn) -> Float[Array, "B T KV G H"]:
        """Rotated queries."""
        return turned(self._normed("query", self._made("query", x)), turn)

    def keys_and_values(
        self, x: States, turn: Turn
    ) -> tuple[Float[Array, "B T KV H"], Float[Array, "B T KV H"]]:
        """Rotated keys, and values, as they are cached."""
        return turned(self._normed("key", self._made("key", x)), turn), self._made("value", x)

    def _made(self, name: str, x: States) -> Float[Array, "B T *heads H"]:
        made = project(x, self._gather(name, getattr(self, name)[...], x))
        bias = getattr(self, f"{name}_bias", None)
        return made if bias is None else made + bias[...].astype(made.dtype)[None, None]

    def _normed(self, name: str, x: Float[Array, "B T *heads H"]) -> Float[Array, "B T *heads H"]:
        norm = getattr(self, f"{name}_norm", None)
        return x if norm is None else rms_norm(x, norm[...], self.config.rms_norm_eps)

    def mixed(
        self,
        x: States,
        query: Float[Array, "B T KV G H"],
        key: Float[Array, "KV B S H"],
        value: Float[Array, "KV B S H"],
        view: View,
        length: str | None = "act_length",
    ) -> States:
        """The attention's contribution to the residual stream, sharded as its input `x`.

        `length` names the logical axis of T.
        """
        rules = self.rules
        per_query = rules.partition("act_batch", length)
        per_key = rules.partition("act_batch", "act_keys")
        queries = rules.partition("act_batch", length, "heads", None, None)
        keys = rules.partition("heads", "act_batch", "act_keys", None)
        views = View._make((per_query, per_query, per_query, per_key, per_key))
        attend = rules.shard_map(attended, in_specs=(queries, keys, keys, views), out_specs=queries)
        mixed_BTKGH = attend(query, key, value, view)
        out_KGHD = self._gather("out", self.out[...], x)
        made = project(mixed_BTKGH, out_KGHD, num_contracted=3, out_sharding=rules.like(x))
        bias = getattr(self, "out_bias", None)
        return made if bias is None else made + bias[...].astype(made.dtype)[None, None]


def attended(
    query: Float[Array, "B T KV G H"],
    key: Float[Array, "KV B S H"],
    value: Float[Array, "KV B S H"],
    view: View,
) -> Float[Array, "B T KV G H"]:
    """softmax(query key / sqrt(H)) value, some queries at a time where there are many pairs.

    Scores and weights are float32. A query that sees nothing mixes zeros.
    """
    batch, num_queries, kv, groups, _ = query.shape
    row_scores = batch * kv * groups * key.shape[2]
    block = max(1, _MOST_SCORES // row_scores)
    if block >= num_queries:
        return _attended(query, key, value, view)
    missing = -num_queries % block

    def blocks(a: Shaped[Array, "B T ..."]) -> Shaped[Array, "blocks B block ..."]:
        padded = jnp.pad(a, ((0, 0), (0, missing), *((0, 0),) * (a.ndim - 2)))
        cut = padded.reshape(a.shape[0], -1, block, *a.shape[2:])
        return jnp.moveaxis(cut, 1, 0)

    def of_block(query, segment, parent, index):
        return _attended(query, key, value, View(segment, parent, index, *view[3:]))

    parts = tuple(map(blocks, (query, *view[:3])))
    mixed = jax.lax.map(lambda part: jax.checkpoint(of_block)(*part), parts)
    mixed = jnp.moveaxis(mixed, 0, 1)
    return mixed.reshape(batch, -1, *mixed.shape[3:])[:, :num_queries]


def _attended(
    query: Float[Array, "B T KV G H"],
    key: Float[Array, "KV B S H"],
    value: Float[Array, "KV B S H"],
    view: View,
) -> Float[Array, "B T KV G H"]:
    batch, num_queries, kv, groups, width = query.shape
    rows = jnp.moveaxis(query, (2, 3), (0, 2)).reshape(kv, batch, groups * num_queries, width)
    score = accumulate("KBMH,KBSH->KBMS", rows, key) * width**-0.5
    score = score.reshape(kv, batch, groups, num_queries, -1)
    allowed = view.pairs()[None, :, None]
    hidden = jnp.finfo(jnp.float32).min
    score = jnp.where(allowed, score, hidden)
    largest = jnp.max(score, axis=-1, keepdims=True, initial=hidden / 2)
    weight = jnp.exp(score - jax.lax.stop_gradient(largest))
    total = jnp.sum(weight, axis=-1).reshape(kv, batch, -1, 1)
    weight = weight.astype(value.dtype).reshape(kv, batch, groups * num_queries, -1)
    mixed = accumulate("KBMS,KBSH->KBMH", weight, value) / jnp.where(total > 0, total, 1)
    mixed = mixed.astype(query.dtype).reshape(kv, batch, groups, num_queries, width)
    return jnp.moveaxis(mixed, (0, 2), (2, 3))
