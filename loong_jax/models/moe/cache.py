"""The latent cache: what both attentions of every layer keep of each position."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from loong_jax.models import decoder
from loong_jax.models.moe.attention import Latent
from loong_jax.models.moe.config import MoEConfig
from loong_jax.sharding import ShardingRules

AXES = ("layers", None, "act_batch", "act_keys", "act_rank")


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
        widths = config.kv_lora_rank, config.qk_rope_head_dim
        return cls(*(jnp.zeros((*lead, width), config.dtype, device=spec) for width in widths))

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
        """Puts T new entries of one attention into each sequence; see `decoder.written`."""
        return decoder.written(self, new, position, AXES, rules, layer=(layer,), part=(sub_layer,))
