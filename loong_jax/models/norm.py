"""RMS norm, and factors folded into its weight."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(
    x: Float[Array, "*batch width"], weight: Float[Array, "width"], eps: float
) -> Float[Array, "*batch width"]:
    """x / sqrt(mean(x^2) + eps) * weight, all in float32 and rounded once to the dtype of x."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    # Straight to the shape of x, so that its gradient is one sum over all other axes. By way of
    # axes of size 1 it is, in a batch of one, a sum over a middle axis: slow on CPU.
    weight = jax.lax.broadcast_in_dim(
        weight.astype(jnp.float32), x.shape, (x.ndim - 1,), out_sharding=jax.typeof(x).sharding
    )
    return (y * weight).astype(x.dtype)


def scaled(weight: Float[Array, "width"], factor: float) -> Float[Array, "width"]:
    """The weight of a norm times a factor, float32.

    A bf16 weight times a Python number would round the number to bf16 first: sqrt(12) by 0.13 %.
    """
    return weight.astype(jnp.float32) * factor
