"""Variances of fresh weights and of what they compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.models import moe
from loong_jax.models.decoder import DenseFFN
from loong_jax.models.moe import router
from loong_jax.models.moe.experts import Experts
from loong_jax.sharding import ShardingRules
from tests.doubles import tiny


def only_layer(module):
    graph, state = nnx.split(module, graph=False)
    return nnx.merge(graph, jax.tree.map(lambda a: a[0], state))


def test_the_residual_gain_scales_what_is_written_to_the_stream_and_nothing_else():
    plain, scaled = (
        moe.init_weights(tiny.smallest_config(residual_gain=gain), jax.random.key(0))[1]
        for gain in (1.0, 8**-0.5)
    )
    found = set()
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(plain), jax.tree.leaves(scaled), strict=True
    ):
        names = [entry.key for entry in path]
        writes = names[-1] in ("out", "down")
        np.testing.assert_allclose(b, a * (8**-0.5 if writes else 1), rtol=1e-6)
        found |= {names[-2]} if writes else set()
    assert found == {"attention_0", "attention_1", "ffn_0", "ffn_1", "experts"}


def test_fresh_experts_are_as_strong_as_their_gates_say():
    """With the published E, Z, K and gate scale, at widths that fit a test."""
    config = tiny.smallest_config(
        num_layers=1,
        hidden_size=32,
        ffn_hidden_size=64,
        expert_ffn_hidden_size=16,
        num_experts=512,
        num_zero_experts=256,
        num_chosen=12,
        target_ffn_experts=8.0,
        gate_scale=6.0,
    )
    x = jax.random.normal(jax.random.key(1), (8, 64, 32))
    mask = jnp.ones((8, 64), bool)

    @jax.jit
    def deviations(key):
        rules, rngs = ShardingRules(), nnx.Rngs(key)
        routing, *_ = only_layer(router.Router(config, rngs=rngs, rules=rules))(x)
        is_zero = routing.target >= config.num_experts
        both = only_layer(Experts(config, rngs=rngs, rules=rules))(x, routing, mask)
        identity = jnp.sum(routing.gate * is_zero, axis=-1)[..., None] * x
        dense = only_layer(DenseFFN(config, rngs=rngs, rules=rules))(x)
        gates = jnp.sum(jnp.where(is_zero, 0, routing.gate) ** 2, axis=-1)
        return jnp.std(both - identity), jnp.std(identity), jnp.std(dense), jnp.sqrt(gates.mean())

    experts, identity, dense, gates = (float(a) for a in deviations(jax.random.key(0)))
    # Independent experts add their variances: the ratio is the root of the sum of squared gates.
    assert experts / dense == pytest.approx(gates, rel=0.1)
    assert (experts / dense, identity / dense) == pytest.approx((0.21, 0.48), abs=0.04)
