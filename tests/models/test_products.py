"""Products and chunks against their plain forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.models.products import in_chunks, project, project_weight_first, rms_norm

assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


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
    narrow = (jnp.ones(shape, jnp.bfloat16) for shape in ((2, 3), (3, 1)))
    assert project(*narrow, out_dtype=jnp.float32).dtype == jnp.float32


def test_a_weight_whose_gradient_is_made_first_gets_the_same():
    random = np.random.default_rng(0)
    x, weight, grad = (jnp.asarray(random.normal(size=s)) for s in ((2, 3, 4), (4, 5), (2, 3, 5)))

    def back(function, dtype):
        value, pull = jax.vjp(function, x.astype(dtype), weight.astype(dtype))
        return value, pull(grad)

    first, plain = (
        functools.partial(of, out_dtype=jnp.float32) for of in (project_weight_first, project)
    )
    jax.tree.map(assert_close, back(first, jnp.float32), back(plain, jnp.float32))
    value, grads = back(first, jnp.bfloat16)
    assert value.dtype == jnp.float32
    assert {a.dtype for a in grads} == {jnp.dtype("bfloat16")}
    steps = jax.make_jaxpr(lambda: back(first, jnp.bfloat16)[1])().jaxpr.eqns
    names = [e.primitive.name for e in steps]
    *_, of_weight, of_x = (i for i, name in enumerate(names) if name == "dot_general")
    assert of_weight < names.index("optimization_barrier") < of_x


@pytest.mark.parametrize("rows", [None, 1, 2, 3, 7, 9])
def test_chunks_change_neither_value_nor_gradient(rows):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(7, 4)), jnp.float32)
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(4, 4)), jnp.float32)

    def loss(x, weight, rows):
        twice, tanh = in_chunks(lambda a, b: (2 * b, jnp.tanh(a @ weight)), (x, x), rows)
        return jnp.sum(tanh * twice)

    def value_and_gradient(rows):
        return jax.value_and_grad(lambda x, w: loss(x, w, rows), argnums=(0, 1))(x, weight)

    jax.tree.map(assert_close, value_and_gradient(rows), value_and_gradient(None))


def test_the_gradient_of_a_norms_weight_is_one_sum_over_all_other_axes():
    """A batch of one as well: a sum over the middle axis alone is slow on CPU."""
    x = jnp.ones((1, 7, 6))
    back = jax.grad(lambda weight: jnp.sum(rms_norm(x, weight, 1e-3)))
    sums = [
        e.params["axes"]
        for e in jax.make_jaxpr(back)(x[0, 0]).jaxpr.eqns
        if e.primitive.name == "reduce_sum"
    ]
    assert (0, 1) in sums
    assert (1,) not in sums
