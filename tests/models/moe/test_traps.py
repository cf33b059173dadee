"""Mistakes that still give plausible logits: each is made here once and must be seen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.models import decoder, moe, products, rope
from loong_jax.models.moe import attention, router
from loong_jax.models.moe.config import NgramEmbedding
from loong_jax.models.moe.experts import Experts
from loong_jax.models.moe.router import Routing
from loong_jax.sharding import ShardingRules
from tests.doubles import tiny
from tests.models.moe import test_convert, test_model
from tests.sweeps import thinned


def half_split(x, position, theta, yarn=None):
    """The other rotary layout: pair i is (x_i, x_{i + R / 2})."""
    half = x.shape[-1] // 2
    interleaved = jnp.stack([x[..., :half], x[..., half:]], axis=-1).reshape(x.shape)
    return rope.rotate(interleaved, position, theta, yarn)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (moe.MoEConfig, "q_scale", property(lambda config: 1.0)),
        (moe.MoEConfig, "kv_scale", property(lambda config: 1.0)),
        (attention, "rotate", half_split),
    ],
    ids=["alpha_q", "alpha_kv", "half-split rotation"],
)
def test_transformers_logits_see_it(owner, name, broken, monkeypatch):
    model = test_convert.published()
    monkeypatch.setattr(owner, name, broken)
    output = test_convert.forward(model, jnp.asarray(test_convert.EXPECTED["tokens"]))
    assert np.abs(output.logits - test_convert.EXPECTED["logits"]).max() > 1e-2


def test_factors_of_bf16_norms_are_not_rounded():
    """bf16(1) * sqrt(12) would be 3.46875."""
    weight = products.scaled(jnp.ones(3, jnp.bfloat16), 12**0.5)
    np.testing.assert_array_equal(weight, np.float32(12**0.5))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(50, 8)), jnp.bfloat16)
    found = products.rms_norm(x, jnp.full(8, 12**0.5, jnp.float32), 1e-6)
    wide = np.asarray(x, np.float64)
    exact = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * 12**0.5
    np.testing.assert_array_equal(found, exact.astype(jnp.bfloat16))  # rounded once


def test_routing_is_float32_at_highest_precision():
    x = jnp.ones((1, 2, 4), jnp.bfloat16)
    kernel = jnp.ones((4, 3), jnp.float32)
    (product,) = (
        equation
        for equation in jax.make_jaxpr(router.router_logits)(x, kernel).jaxpr.eqns
        if equation.primitive.name == "dot_general"
    )
    assert {var.aval.dtype for var in (*product.invars, *product.outvars)} == {np.dtype("f4")}
    assert set(product.params["precision"]) == {jax.lax.Precision.HIGHEST}


@pytest.mark.parametrize("num_tokens", thinned([16, 64], 1))  # without and with a table of rows
def test_outputs_of_experts_are_summed_in_float32(num_tokens):
    """Seven equal experts give seven times one of them, rounded once; bf16 sums round six times."""
    config = tiny.smallest_config(
        num_experts=7, num_chosen=7, num_zero_experts=1, dtype=jnp.bfloat16,
        param_dtype=jnp.bfloat16,
    )  # fmt: skip
    layers = Experts(config, rngs=nnx.Rngs(0), rules=ShardingRules())
    graphdef, stacked = nnx.split(layers, graph=False)
    alike = jax.tree.map(lambda a: jnp.broadcast_to(a[0, :1], a.shape[1:]), stacked)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, num_tokens, 32)), jnp.bfloat16)
    mask = jnp.ones((1, num_tokens), bool)

    @jax.jit
    def mixed(num_used):
        target = jnp.broadcast_to(jnp.arange(7), (1, num_tokens, 7))
        gate = jnp.where(target < num_used, 1.0, 0.0)
        return nnx.merge(graphdef, alike)(x, Routing(target, gate), mask)

    one, seven = mixed(1), mixed(7)
    np.testing.assert_array_equal(seven, (7 * np.float32(one)).astype(jnp.bfloat16))


@pytest.mark.parametrize(
    "ngram", thinned([None, NgramEmbedding(max_order=2, num_splits=1, base_rows=30)], 0)
)
def test_float32_weights_are_multiplied_in_the_dtype_of_activations(ngram):
    """As if they had been rounded before; their gradients are float32."""
    sizes = dict(num_layers=1, num_mtp_layers=1, ngram=ngram, dtype=jnp.bfloat16)
    graphdef, weights = test_model.fresh(tiny.smallest_config(**sizes))
    rounded_graphdef, like = moe.abstract_weights(
        tiny.smallest_config(**sizes, param_dtype=jnp.bfloat16)
    )
    rounded = jax.tree.map(lambda w, a: w.astype(a.dtype), weights, like)
    tokens = jnp.asarray(np.random.default_rng(0).integers(1, 32, (2, 5)), jnp.int32)

    @functools.partial(jax.jit, static_argnums=0)
    def run(graphdef, weights):
        def loss(weights):
            model = nnx.merge(graphdef, nnx.State(weights))
            output = model(tokens)
            drafted, _ = model.draft(output.hidden, tokens)
            return jnp.sum(output.logits[..., 0] + drafted[..., 0]), (output.logits, drafted)

        return jax.grad(loss, has_aux=True)(weights)

    gradient, found = run(graphdef, weights)
    _, expected = run(rounded_graphdef, rounded)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}
    cache = moe.LatentCache.zeros(tiny.smallest_config(**sizes), 2, 4)
    history = jnp.zeros((2, 1), jnp.int32) if ngram else None
    logits, _ = test_model.call(graphdef, "decode")(
        weights, tokens[:, 0], jnp.zeros(2, jnp.int32), cache, history=history
    )
    assert np.isfinite(logits).all()


def test_a_position_before_the_first_writes_nothing():
    """An index of -1 would be the last entry, which is some other token's."""
    cache = moe.LatentCache.zeros(tiny.smallest_config(), 2, 4)
    of_head = attention.Latent(cache.latent[0, 0], cache.rope_key[0, 0])
    new = jax.tree.map(lambda a: jnp.ones_like(a[:, :2]), of_head)
    position = jnp.array([[-2, -1], [-1, 0]])
    layer, rules = jnp.int32(0), ShardingRules()
    written = cache.write(layer, 0, new, position, rules)
    own = decoder.written(of_head, new, position, attention.ENTRY_AXES, rules)
    for entries in (written.read(layer, 0), own):
        for found in entries:
            np.testing.assert_array_equal(found[..., 0], [[0, 0, 0, 0], [1, 0, 0, 0]])
