"""Products and chunks against their plain forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.models.moe.dense import in_chunks, project


def test_project_contracts_last_axes_with_first():
    random = np.random.default_rng(0)
    x, square, cube = (random.normal(size=s) for s in ((2, 3, 4, 5), (5, 6), (4, 5, 7)))
    np.testing.assert_allclose(project(jnp.asarray(x), jnp.asarray(square)), x @ square, rtol=1e-4)
    np.testing.assert_allclose(
        project(jnp.asarray(x), jnp.asarray(cube), num_contracted=2),
        np.tensordot(x, cube, axes=2),
        rtol=1e-4,
        atol=1e-4,
    )
    assert (
        project(
            jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 1), jnp.bfloat16), out_dtype=jnp.float32
        ).dtype
        == jnp.float32
    )


@pytest.mark.parametrize("rows", [None, 1, 2, 3, 7, 9])
def test_chunks_change_neither_value_nor_gradient(rows):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(7, 4)), jnp.float32)
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(4, 4)), jnp.float32)

    def loss(x, weight, rows):
        twice, tanh = in_chunks(lambda a, b: (2 * b, jnp.tanh(a @ weight)), (x, x), rows)
        return jnp.sum(tanh * twice)

    def value_and_gradient(rows):
        return jax.value_and_grad(lambda x, w: loss(x, w, rows), argnums=(0, 1))(x, weight)

    for a, b in zip(
        jax.tree.leaves(value_and_gradient(rows)),
        jax.tree.leaves(value_and_gradient(None)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
