"""Sums over the segments of packed rows; a segment lies within one row."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.sharding import by_rows


def segment_sum(
    values: Float[Array, "B T"], mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """For each token, the sum of `values` over the masked tokens of its own segment."""
    num_segments = mask.shape[1] + 1

    def of_row(values_T, segment_T):
        return jax.ops.segment_sum(values_T, segment_T, num_segments)[segment_T]

    return by_rows(jax.vmap(of_row), jnp.where(mask, values, 0.0), segment_ids)


def segment_length(mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """For each token, how many masked tokens its own segment has; at least 1."""
    ones = jnp.ones(mask.shape, jnp.float32)
    return jnp.maximum(segment_sum(ones, mask, segment_ids), 1.0)


def segment_mean(
    values: Float[Array, "B T"], mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """For each token, the mean of `values` over its segment's masked tokens; 0 for none."""
    return segment_sum(values, mask, segment_ids) / segment_length(mask, segment_ids)
