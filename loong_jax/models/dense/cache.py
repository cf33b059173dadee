"""Keys and values of every layer and position."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from loong_jax.models import decoder
from loong_jax.models.dense.config import DenseConfig
from loong_jax.sharding import ShardingRules

AXES = ("layers", "heads", "act_batch", "act_keys", None)


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
        spec = (rules or ShardingRules()).spec_of(shape, *AXES)
        return cls(*(jnp.zeros(shape, config.dtype, device=spec) for _ in range(2)))

    def write(
        self,
        layer: Int[Array, ""],
        key: Float[Array, "B T KV H"],
        value: Float[Array, "B T KV H"],
        position: Int[Array, "B T"],
        rules: ShardingRules,
    ) -> "KeyValueCache":
        """Puts the T new entries of each sequence at their positions, which differ in a sequence.

        Nothing is written at a position outside the cache. Where the cache is donated, or carried
        by a loop, no other entry is copied.
        """

        def put(
            cache: Float[Array, "L KV B S H"],
            new: Float[Array, "B T KV H"],
            position: Int[Array, "B T"],
            layer: Int[Array, ""],
        ) -> Float[Array, "L KV B S H"]:
            row_B1 = jnp.arange(position.shape[0])[:, None]
            at = cache.at[layer, :, row_B1, position]
            return at.set(new, mode="drop", unique_indices=True, wrap_negative_indices=False)

        batch, whole = rules.partition("act_batch"), rules.partition(*AXES)
        new = rules.partition("act_batch", None, "heads", None)
        local = rules.shard_map(
            put, in_specs=(whole, new, batch, rules.partition()), out_specs=whole
        )
        return KeyValueCache(
            local(self.key, key, position, layer), local(self.value, value, position, layer)
        )

    def shift(self, by: Int[Array, "B"], rules: ShardingRules) -> "KeyValueCache":
        """Entry s of sequence b becomes what was entry by[b] + s, counted around the end."""
        return decoder.shifted(self, by, AXES, rules)

    def place(self, rules: ShardingRules) -> "KeyValueCache":
        """Moves the cache to where caches lie on the mesh."""
        return KeyValueCache(rules.place(self.key, *AXES), rules.place(self.value, *AXES))
