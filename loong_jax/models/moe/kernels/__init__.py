"""Kernels of attention and of experts; here what those of attention take: operands, and a mask.

The mask is two numbers per token in place of a matrix of pairs.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models.products import project


class Operands(NamedTuple):
    """Queries, latents, and the weights that expand latents into keys and values."""

    query: Float[Array, "B T N h"]  # times the scale of scores; h = H + R
    latent: Float[Array, "B S C"]
    rope_key: Float[Array, "B S R"]
    key_up: Float[Array, "C N H"]
    value_up: Float[Array, "C N U"]

    def expanded(self) -> tuple[Float[Array, "B S N h"], Float[Array, "B S N U"]]:
        """Keys and values of every head; all heads share the rotary part of the key."""
        key_BSNH = project(self.latent, self.key_up)
        value_BSNU = project(self.latent, self.value_up)
        rope_BSNR = jnp.broadcast_to(
            self.rope_key[:, :, None], (*key_BSNH.shape[:3], self.rope_key.shape[-1])
        )
        return jnp.concatenate([key_BSNH, rope_BSNR], axis=-1), value_BSNU


def expand(
    latent: Float[Array, "B S C"],
    rope_key: Float[Array, "B S R"],
    key_up: Float[Array, "C N H"],
    value_up: Float[Array, "C N U"],
) -> tuple[Float[Array, "B N S h"], Float[Array, "B N S U"]]:
    """Keys and values as `Operands.expanded` gives them, heads before keys."""
    key_BNSH = jnp.swapaxes(project(latent, key_up), 1, 2)
    rope_BNSR = jnp.broadcast_to(rope_key[:, None], (*key_BNSH.shape[:3], rope_key.shape[-1]))
    key_BNSh = jnp.concatenate([key_BNSH, rope_BNSR], axis=-1)
    return key_BNSh, jnp.swapaxes(project(latent, value_up), 1, 2)


class AttentionMask(NamedTuple):
    """A query sees keys of its own segment and of its parent whose index is not above its own.

    Segment 0 is padding, which therefore sees padding alone. A query that sees nothing mixes
    zeros. The parent of a response is the segment of its prompt; None: no query has one.
    """

    query_segment: Int[Array, "B T"]
    query_index: Int[Array, "B T"]
    key_segment: Int[Array, "B S"]
    key_index: Int[Array, "B S"]
    query_parent: Int[Array, "B T"] | None = None

    def pairs(self) -> Bool[Array, "B T S"]:
        """True where a query may see a key; for few tokens, or for one block of many."""
        kin = self.query_segment[:, :, None] == self.key_segment[:, None]
        if self.query_parent is not None:
            kin |= self.query_parent[:, :, None] == self.key_segment[:, None]
        return kin & (self.query_index[:, :, None] >= self.key_index[:, None])

    def any_pair(self) -> Bool[Array, ""]:
        """False only if no query can see any key, judged by the ranges of their numbers alone."""
        lowest, highest = jnp.min, jnp.max
        seen_BT = self.query_segment
        if self.query_parent is not None:
            seen_BT = jnp.concatenate([seen_BT, self.query_parent], axis=1)
        segments_meet_B = (lowest(seen_BT, axis=1) <= highest(self.key_segment, axis=1)) & (
            lowest(self.key_segment, axis=1) <= highest(seen_BT, axis=1)
        )
        early_B = lowest(self.key_index, axis=1) <= highest(self.query_index, axis=1)
        return jnp.any(segments_meet_B & early_B)
