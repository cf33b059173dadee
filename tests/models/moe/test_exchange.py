"""Every exchange on every kind of mesh against one device; rounds; envelopes; the emulation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.moe import exchange, experts
from loong_jax.models.moe.router import Routing
from loong_jax.sharding import ShardingRules, make_mesh
from loong_jax.testing import tiny

CONFIG = tiny.smallest_config(num_layers=1)
B, T = 8, 12

GATHER = exchange.GatherExchange()
PADDED = exchange.PaddedExchange()
RAGGED = exchange.RaggedExchange()
SHARED = exchange.PaddedExchange(choices_per_row=2)
# Buffers that hold a fraction of what an even load needs: several rounds.
TIGHT = (
    exchange.PaddedExchange(buffer_factor=0.01),
    exchange.PaddedExchange(buffer_factor=0.01, choices_per_row=3),
    exchange.RaggedExchange(buffer_factor=0.3),
)


@functools.cache
def problem():
    """States, choices of which expert 0 gets most, gates, mask and a direction."""
    random = np.random.default_rng(0)
    score = random.normal(size=(B, T, CONFIG.num_targets)) + [3, 0, 0, 1, 0, 1]
    target = np.argsort(-score)[..., : CONFIG.num_chosen].astype(np.int32)
    gate = random.uniform(size=target.shape).astype(np.float32)
    x, direction = random.normal(size=(2, B, T, CONFIG.hidden_size)).astype(np.float32)
    mask = random.uniform(size=(B, T)) < 0.9
    return x, target, gate, mask, direction


def mixture_and_gradient(config, sizes=None):
    """sum(mixture * direction), the mixture, its overflow and the gradient of all that is real."""
    if sizes is None:
        return _mixture_and_gradient(config, ShardingRules())
    mesh = make_mesh(**sizes)
    with jax.set_mesh(mesh):
        return _mixture_and_gradient(config, ShardingRules(mesh=mesh))


def _mixture_and_gradient(config, rules):
    graph, state = nnx.split(experts.Experts(config, rngs=nnx.Rngs(0), rules=rules), graph=False)
    weights = nnx.to_pure_dict(state)
    x, target, gate, mask, direction = problem()

    def loss(weights, x, gate):
        layer = jax.tree.map(lambda a: a[0], weights)
        here = nnx.merge(graph, nnx.State(layer))
        x, gate, routed = (
            rules.place(jnp.asarray(a), "act_batch", "act_length", None) for a in (x, gate, target)
        )
        mixture = here.dispatch(here.pack(x, Routing(routed, gate), jnp.asarray(mask)))
        out = here.mix(here.combine(here.compute(mixture)))
        return jnp.sum(out * direction), (out, mixture.num_overflowed)

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
    (_, (out, overflowed)), gradient = run(weights, x, gate)
    return out, int(overflowed), gradient


@functools.cache
def alone():
    return mixture_and_gradient(CONFIG)


def check(config, sizes):
    expected, _, wanted = alone()
    out, overflowed, gradient = mixture_and_gradient(config, sizes)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5 * abs(expected).max())
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * abs(b).max())
    return overflowed


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (GATHER, dict(expert=4, tensor=2)),
        (PADDED, dict(expert=2, tensor=2, fsdp=2)),
        (RAGGED, dict(data=2, expert=2, context=2)),
        (SHARED, dict(expert=4, context=2)),
    ],
    ids=str,
)
def test_mixture_and_gradient_are_those_of_one_device(kind, sizes):
    check(dataclasses.replace(CONFIG, exchange=kind), sizes)


@pytest.mark.parametrize("kind", TIGHT, ids=str)
def test_no_choice_is_lost_when_buffers_overflow(kind):
    overflowed = check(dataclasses.replace(CONFIG, exchange=kind), dict(expert=2))
    _, target, _, mask, _ = problem()
    travelling = int(((target < CONFIG.num_experts) & mask[..., None]).sum())
    assert 0 < overflowed < travelling
