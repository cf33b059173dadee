"""The latent cache: what both attentions of every layer keep of each position."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from loong_jax.models import decoder
from loong_jax.models.moe.attention import Latent
from loong_jax.models.moe.config import MoEConfig
from loong_jax.sharding import ShardingRules

AXES = ("layers", None, "act_batch", "act_keys", "act_rank")


def put_entries(
    cache: Float[Array, "... B S W"],
    new: Float[Array, "B T W"],
    position: Int[Array, "B T"],
    lead: tuple[Int[Array, ""] | int, ...] = (),
) -> Float[Array, "... B S W"]:
    """The cache with T entries of each sequence at their positions, which differ in a sequence.

    Nothing is written at a position outside. `lead` indexes the axes before B.
    """
    row_B1 = jnp.arange(position.shape[0])[:, None]
    at = cache.at[(*lead, row_B1, position)]
    return at.set(new, mode="drop", unique_indices=True, wrap_negative_indices=False)


class LatentCache(NamedTuple):
    """Latents and rotary keys of S positions; entry s is position s, whoever wrote it."""

    latent: Float[Array, "L 2 B S C"]
    rope_key: Float[Array, "L 2 B S R"]

    @classmethod
    def zeros(
        cls, config: MoEConfig, batch: int, capacity: int, rules: ShardingRules | None = None
    ) -> "LatentCache":
        """An empty cache for `batch` sequences of at most `capacity` tokens."""
        lead = (config.num_layers, 2, batch, capacity)
        spec = (rules or ShardingRules()).spec_of(lead, *AXES)
        return cls(
            jnp.zeros((*lead, config.kv_lora_rank), config.dtype, device=spec),
            jnp.zeros((*lead, config.qk_rope_head_dim), config.dtype, device=spec),
        )

    def read(self, layer: Int[Array, ""], sub_layer: int) -> Latent:
        """The entries of one attention."""
        return Latent(self.latent[layer, sub_layer], self.rope_key[layer, sub_layer])

    def write(
        self,
        layer: Int[Array, ""],
        sub_layer: int,
        new: Latent,
        position: Int[Array, "B T"],
        rules: ShardingRules,
    ) -> "LatentCache":
        """Puts the T new entries of each sequence at their positions, which differ in a sequence.

        Nothing is written at a position outside the cache. Where the cache is donated, or carried
        by a loop, no other entry is copied.
        """

        def put(
            cache: Float[Array, "L 2 B S W"],
            new: Float[Array, "B T W"],
            position: Int[Array, "B T"],
            layer: Int[Array, ""],
        ) -> Float[Array, "L 2 B S W"]:
            return put_entries(cache, new, position, (layer, sub_layer))

        batch, whole = rules.partition("act_batch"), rules.partition(*AXES)
        local = rules.shard_map(
            put, in_specs=(whole, batch, batch, rules.partition()), out_specs=whole
        )
        return LatentCache(
            local(self.latent, new.latent, position, layer),
            local(self.rope_key, new.rope_key, position, layer),
        )

    def shift(self, by: Int[Array, "B"], rules: ShardingRules) -> "LatentCache":
        """Entry s of sequence b becomes what was entry by[b] + s, counted around the end."""
        return decoder.shifted(self, by, AXES, rules)

    def place(self, rules: ShardingRules) -> "LatentCache":
        """Moves the cache to where caches lie on the mesh."""
        return LatentCache(rules.place(self.latent, *AXES), rules.place(self.rope_key, *AXES))
