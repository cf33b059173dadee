"""Decoding where `tensor` cuts sequences, with the experts' weights in their stack."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.models import moe
from loong_jax.models.moe import exchange
from loong_jax.sharding import ShardingRules, decoding_rules, make_mesh
from tests.doubles import tiny
from tests.models.moe.test_model import perturbed
from tests.sweeps import thinned

CONFIG = tiny.smallest_config(
    num_heads=4, num_experts=8, num_zero_experts=4, num_layers=2, vocab_size=32
)
B, S = 8, 6
CASES = [
    (dict(data=2, expert=2, tensor=2), exchange.RaggedExchange(buffer_factor=0.3), "every"),
    (dict(expert=4, tensor=2), exchange.PaddedExchange(), "blocked"),
    (dict(expert=2, tensor=4), exchange.RaggedExchange(), "every"),
    (dict(tensor=8), exchange.PaddedExchange(buffer_factor=0.01), "ragged_dot"),
    (dict(data=2, tensor=4), exchange.GatherExchange(), "ragged_dot"),
]


def extend_twice(graphdef):
    """Two calls of two tokens each over an empty cache: logits of all four, and the cache."""

    @jax.jit
    def run(weights, tokens, cache):
        model = nnx.merge(graphdef, nnx.State(weights))
        made = []
        for start in (0, 2):
            positions = jnp.full(B, start)
            logits, _, cache = model.extend(tokens[:, start : start + 2], positions, cache)
            made.append(logits)
        return jnp.concatenate(made, axis=1), cache

    return run


@functools.cache
def alone():
    graphdef, weights = moe.init_weights(CONFIG, jax.random.key(0))
    weights = perturbed(weights)
    tokens = np.random.default_rng(0).integers(0, 32, size=(B, 4)).astype(np.int32)
    return tokens, weights, extend_twice(graphdef)(weights, tokens, empty(ShardingRules()))


def empty(rules):
    return moe.LatentCache.zeros(CONFIG, B, S, rules)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "kind", "gemm"), thinned(CASES, 0), ids=str)
def test_decoding_by_sequences_is_decoding_on_one_device(sizes, kind, gemm):
    tokens, weights, (expected, cached) = alone()
    rules = decoding_rules(make_mesh(**sizes))
    config = dataclasses.replace(CONFIG, exchange=kind, expert_gemm=gemm)
    graphdef, placed = tiny.on_mesh(config, rules, weights)
    with jax.set_mesh(rules.mesh):
        run = extend_twice(graphdef).lower(placed, tokens, empty(rules)).compile()
        logits, cache = run(placed, tokens, empty(rules))
        text = run.as_text()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(cache.latent, cached.latent, rtol=0, atol=2e-5)
    assert cache.latent.sharding.shard_shape(cache.latent.shape)[2] == 1  # a sequence each
    gathered = [line for line in text.splitlines() if " all-gather(" in line]
    for size in (f"32,{CONFIG.hidden_size}]", f"{CONFIG.hidden_size},32]"):
        assert not any(size in line for line in gathered)  # neither the embedding nor the head


def test_experts_stay_in_their_stack_unless_they_are_gathered():
    """The loop over layers is then given them whole, and cuts out none of them itself."""
    for axis, stays in (("expert", True), ("fsdp", False)):
        rules = ShardingRules(mesh=make_mesh(**{axis: 4}))
        graphdef, weights = moe.abstract_weights(CONFIG, rules)
        with jax.set_mesh(rules.mesh):
            tokens = np.zeros((B, 4), int)
            jaxpr = jax.make_jaxpr(extend_twice(graphdef))(weights, tokens, empty(rules))
        (jitted,) = jaxpr.jaxpr.eqns
        loop = next(e for e in jitted.params["jaxpr"].jaxpr.eqns if e.primitive.name == "scan")
        num_fixed = loop.params["num_consts"]
        shape = weights["layers"]["experts"]["down"].shape
        fixed = [a.aval.shape for a in loop.invars[:num_fixed]]
        assert (shape in fixed) == stays
