"""RMS norm against NumPy in float64, and how the gradient of its weight is summed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.models.products import rms_norm

EPS = 1e-3


def weight_gradient(x, weight, grad):
    _, pull = jax.vjp(lambda weight: rms_norm(x, weight, EPS), weight)
    return pull(grad)[0]


@pytest.mark.parametrize("shape", [(1, 7, 6), (3, 5, 6), (2, 3, 4, 6)])
def test_the_equation_and_the_gradient_of_its_weight(shape):
    normal = np.random.default_rng(0).normal
    x, grad, weight = normal(size=shape), normal(size=shape), normal(size=shape[-1])
    unit = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)
    axes = tuple(range(len(shape) - 1))
    exact, exact_gradient = unit * weight, (unit * grad).sum(axes)
    x, grad, weight = (jnp.asarray(a, jnp.float32) for a in (x, grad, weight))
    found = rms_norm(x, weight, EPS), weight_gradient(x, weight, grad)
    np.testing.assert_allclose(found[0], exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], exact_gradient, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_the_weight_is_one_sum_over_all_other_axes():
    """A batch of one as well: a sum over the middle axis alone is slow on CPU."""
    x = jnp.ones((1, 7, 6))
    jaxpr = jax.make_jaxpr(weight_gradient)(x, x[0, 0], x)
    sums = [e.params["axes"] for e in jaxpr.eqns if e.primitive.name == "reduce_sum"]
    assert (0, 1) in sums
    assert (1,) not in sums
