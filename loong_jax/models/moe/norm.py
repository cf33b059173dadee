"""RMS norm."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(
    x: Float[Array, "*batch width"], weight: Float[Array, "width"], eps: float
) -> Float[Array, "*batch width"]:
    """x / sqrt(mean(x^2) + eps) * weight, all in float32 and rounded once to the dtype of x."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * weight.reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)
