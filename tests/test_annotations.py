"""The suite checks shapes wherever arrays are annotated."""

import jax.numpy as jnp
import jaxtyping
import pytest

from loong_jax.models.products import rms_norm


def test_a_wrong_shape_is_an_error():
    with pytest.raises(jaxtyping.TypeCheckError, match="weight"):
        rms_norm(jnp.zeros((2, 4)), jnp.zeros(3), 1e-5)
    with pytest.raises(jaxtyping.TypeCheckError, match="eps"):
        rms_norm(jnp.zeros((2, 4)), jnp.zeros(4), "small")  # pyright: ignore[reportArgumentType]
