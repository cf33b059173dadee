"""Choices that are given to the model instead of made by its routers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.models.moe import reference
from tests.models.moe.test_model import CONFIG, call, fresh, random_tokens

LAYERS, NUM_CHOSEN = CONFIG.num_layers, CONFIG.num_chosen


def random_choices(*shape, seed=0, free_share=0.0):
    """Distinct targets, zero-computation experts among them; some tokens have a -1."""
    random = np.random.default_rng(seed)
    order = np.argsort(random.random((*shape, CONFIG.num_targets)), axis=-1)
    chosen = order[..., :NUM_CHOSEN].astype(np.int32)
    chosen[random.random(shape) < free_share, -1] = -1
    return chosen


def model(weights, tokens, segment_ids=None, forced_target=None):
    """One program for all tests but that of meshes."""
    compiled = call(fresh()[0])
    segment_ids = np.ones_like(tokens) if segment_ids is None else segment_ids
    return compiled(weights, tokens, segment_ids=segment_ids, forced_target=forced_target)


def test_its_own_choices_change_nothing():
    _, weights = fresh()
    tokens = random_tokens(2, 9)
    free = model(weights, tokens)
    forced = model(weights, tokens, forced_target=free.target)
    np.testing.assert_allclose(forced.logits, free.logits, rtol=0, atol=1e-6)
    for found in (forced.target, forced.own_target):
        np.testing.assert_array_equal(found, free.target)
    assert free.own_target is None
    nothing = np.full_like(free.target, -1)
    twice = np.broadcast_to(np.array([1, *range(NUM_CHOSEN - 1)], np.int32), free.target.shape)
    beyond = np.concatenate([free.target[..., :-1], np.full_like(nothing[..., :1], 99)], axis=-1)
    last = np.where(beyond == 99, CONFIG.num_targets, beyond)  # the first that is none
    for ignored in (nothing, twice, beyond, last):
        found = model(weights, tokens, forced_target=ignored)
        np.testing.assert_allclose(found.logits, free.logits, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(found.load, free.load)


@pytest.mark.parametrize("free_share", [0.0, 0.4])
def test_other_choices_follow_the_equations(free_share):
    _, weights = fresh()
    tokens = random_tokens(2, 9)
    chosen = random_choices(LAYERS, 2, 9, free_share=free_share)
    output = model(weights, tokens, forced_target=chosen)
    for b, row in enumerate(tokens):
        logits, _ = reference.model(weights, row, CONFIG, chosen[:, b])
        free, _ = reference.model(weights, row, CONFIG)
        assert np.abs(logits - free).max() > 0.1
        np.testing.assert_allclose(
            output.logits[b], logits, rtol=0, atol=2e-5 * max(1, np.sqrt((logits**2).mean()))
        )
    load = sum(
        reference.model(weights, row, CONFIG, chosen[:, b])[1] for b, row in enumerate(tokens)
    )
    np.testing.assert_array_equal(output.load, load)
    is_forced = (chosen >= 0).all(-1)
    np.testing.assert_array_equal(output.target[is_forced], chosen[is_forced])
    np.testing.assert_array_equal(output.target[~is_forced], output.own_target[~is_forced])


def test_gradients_reach_the_router_through_its_gates():
    _, weights = fresh()
    tokens, chosen = random_tokens(2, 9), random_choices(LAYERS, 2, 9)
    direction_BTV = np.random.default_rng(1).normal(size=(2, 9, CONFIG.vocab_size))
    direction_BTV[1] = 0

    def loss(kernel):
        router = weights["layers"]["router"] | {"kernel": kernel}
        changed = weights | {"layers": weights["layers"] | {"router": router}}
        logits = model(changed, tokens, forced_target=chosen).logits
        return (logits * direction_BTV).sum()

    kernel = np.asarray(weights["layers"]["router"]["kernel"], np.float64)
    along = np.random.default_rng(2).normal(size=kernel.shape)
    got = (jax.grad(loss)(jnp.asarray(kernel, jnp.float32)) * along).sum()

    def by_hand(amount):
        router = weights["layers"]["router"] | {"kernel": kernel + amount * along}
        changed = weights | {"layers": weights["layers"] | {"router": router}}
        logits, _ = reference.model(changed, tokens[0], CONFIG, chosen[:, 0])
        return (logits * direction_BTV[0]).sum()

    assert got == pytest.approx((by_hand(1e-6) - by_hand(-1e-6)) / 2e-6, rel=3e-4, abs=3e-3)


def test_packed_equals_separate():
    _, weights = fresh()
    packed, chosen = random_tokens(2, 9), random_choices(LAYERS, 2, 9, free_share=0.2)
    segments = np.array([[1] * 5 + [2] * 3 + [0], [0] * 9], np.int32)
    together = model(weights, packed, segments, chosen)
    apart = np.zeros((2, 9), np.int32)
    apart[0, :5], apart[1, :3] = packed[0, :5], packed[0, 5:8]
    split = np.full((LAYERS, 2, 9, NUM_CHOSEN), -1, np.int32)
    split[:, 0, :5], split[:, 1, :3] = chosen[:, 0, :5], chosen[:, 0, 5:8]
    alone = model(weights, apart, (np.arange(9) < [[5], [3]]).astype(np.int32), split)
    np.testing.assert_allclose(together.logits[0, :5], alone.logits[0, :5], rtol=0, atol=2e-5)
    np.testing.assert_allclose(together.logits[0, 5:8], alone.logits[1, :3], rtol=0, atol=2e-5)
    np.testing.assert_array_equal(together.load, alone.load)


@pytest.mark.parametrize(
    ("sizes", "zigzag"),
    [
        pytest.param(dict(fsdp=2, tensor=2, expert=2), False, marks=pytest.mark.slow),
        pytest.param(dict(slice=2, data=2, context=2), True, marks=pytest.mark.release),
    ],
    ids=str,
)
def test_sharded_equals_single_device(sizes, zigzag):
    rules = ShardingRules(mesh=make_mesh(**sizes), zigzag=zigzag)
    _, weights = fresh()
    graphdef, placed = tiny.on_mesh(CONFIG, rules, weights)
    tokens, chosen = random_tokens(8, 8), random_choices(LAYERS, 8, 8, free_share=0.2)
    alone = model(weights, tokens, forced_target=chosen)
    sharded = call(graphdef)(placed, tokens, forced_target=chosen)
    np.testing.assert_allclose(sharded.logits, alone.logits, rtol=0, atol=2e-5)
    for name in ("target", "own_target", "load"):
        np.testing.assert_array_equal(getattr(sharded, name), getattr(alone, name))
