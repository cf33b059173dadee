"""The whole model on every mesh of eight devices, with its exchanges, against one device."""

import dataclasses
import functools
import itertools
import os

import jax
import numpy as np
import pytest

from loong_jax.models import moe
from loong_jax.models.moe import exchange
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.models.moe.test_model import assert_same_gradient, loss_and_gradient, random_tokens
from tests.sweeps import thinned

CONFIG = tiny.smallest_config(
    num_heads=4, expert_ffn_hidden_size=20, num_experts=8, num_zero_experts=4, num_layers=2
)
AXES = ("expert", "data", "fsdp", "tensor", "context")
MESHES = [
    dict(zip(AXES, sizes, strict=True))
    for sizes in itertools.product((1, 2, 4, 8), repeat=len(AXES))
    if np.prod(sizes) == 8 and sizes[0] > 1
]
EXCHANGES = (
    exchange.GatherExchange(),
    exchange.PaddedExchange(),
    exchange.PaddedExchange(choices_per_row=3),
    exchange.PaddedExchange(buffer_factor=0.01),
    exchange.RaggedExchange(),
    exchange.RaggedExchange(buffer_factor=0.3),
)
# One exchange on every mesh, in turn, so that each meets two or three meshes; with
# LOONG_MESHES=all every exchange meets every mesh.
EVERY = os.environ.get("LOONG_MESHES") == "all"
CASES = [
    (sizes, kind)
    for at, sizes in enumerate(MESHES)
    for number, kind in enumerate(EXCHANGES)
    if EVERY or number == (at + at // len(EXCHANGES)) % len(EXCHANGES)
]
B, T = 8, 16


def run(config, rules, weights):
    graphdef, weights = tiny.on_mesh(config, rules, weights)
    tokens = random_tokens(B, T) % CONFIG.vocab_size
    mask = np.arange(T)[None] < np.random.default_rng(0).integers(1, T + 1, size=(B, 1))
    (_, output), gradient = loss_and_gradient(graphdef)(weights, tokens, mask)
    return weights, np.asarray(output.logits)[mask], output, gradient


@functools.cache
def alone():
    """With biases that send most choices to the first two experts: buffers overflow."""
    _, weights = moe.init_weights(CONFIG, jax.random.key(0))
    bias = weights["layers"]["router"]["bias"]
    weights["layers"]["router"]["bias"] = bias.at[:, :2].set(0.2)
    return run(CONFIG, ShardingRules(), weights)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "kind"), thinned(CASES, 0, 7, 13), ids=str)
def test_logits_and_gradients_are_those_of_one_device(sizes, kind):
    check(sizes, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", thinned(EXCHANGES, 3), ids=str)
def test_so_they_are_with_tokens_in_chunks(kind):
    check(dict(data=2, expert=2, context=2), kind, token_chunks=2)


def check(sizes, kind, token_chunks=1):
    weights, expected, output, wanted = alone()
    remat = "off" if isinstance(kind, exchange.GatherExchange) else "all_but_dispatched"
    config = dataclasses.replace(CONFIG, exchange=kind, remat=remat, token_chunks=token_chunks)
    rules = ShardingRules(mesh=make_mesh(**sizes))
    _, logits, sharded, gradient = run(config, rules, weights)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)
    np.testing.assert_array_equal(sharded.load, output.load)
    if kind.buffer_factor < 1:
        assert np.all(np.asarray(sharded.num_overflowed) > 0)
    assert_same_gradient(gradient, wanted)
