"""Stacked layers: what they compute, where they live, and the optimizer state beside them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models import moe, parameters
from loong_jax.models.moe import scaling
from loong_jax.rl import optimizers
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.models.moe import reference
from tests.models.moe.test_model import CONFIG, call, fresh, random_tokens

SMALL = tiny.smallest_config(num_mtp_layers=1)


def test_the_stacked_model_runs_its_layers_twice_over():
    _, weights = fresh()
    grown, config = scaling.stack_layers(weights), scaling.stack_config(CONFIG)
    assert config.num_layers == 2 * CONFIG.num_layers
    graphdef, like = moe.init_weights(config, jax.random.key(0))
    assert jax.tree.map(jnp.shape, grown) == jax.tree.map(jnp.shape, like)
    tokens = random_tokens(1, 5)
    found = call(graphdef)(grown, tokens)
    expected, loads = reference.model(grown, tokens[0], config)
    np.testing.assert_allclose(found.logits[0], expected, rtol=0, atol=5e-5)
    np.testing.assert_array_equal(found.load, loads)


@pytest.mark.parametrize("times", [1, 3])
def test_layers_repeat_in_order_and_nothing_else_grows(times):
    _, weights = moe.init_weights(SMALL, jax.random.key(0))
    grown = scaling.stack_layers(weights, times)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(weights), jax.tree.leaves(grown), strict=True
    ):
        in_layers = path[0].key == "layers"
        np.testing.assert_array_equal(b, np.concatenate([a] * times) if in_layers else a)


@pytest.mark.slow
def test_growth_commutes_with_sharding():
    rules = ShardingRules(mesh=make_mesh(fsdp=2, tensor=2, expert=2))
    _, weights = fresh()
    _, placed = tiny.on_mesh(CONFIG, rules, weights)
    grown = scaling.stack_layers(placed)
    jax.tree.map(np.testing.assert_array_equal, grown, scaling.stack_layers(weights))
    for a, b in zip(*map(jax.tree.leaves, (grown, placed)), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


def test_abstract_weights_grow_as_real_ones_do():
    rules = ShardingRules(mesh=make_mesh(fsdp=2, tensor=2, expert=2))
    _, abstract = moe.abstract_weights(CONFIG, rules)
    _, like = moe.abstract_weights(scaling.stack_config(CONFIG, 3), rules)
    assert scaling.stack_layers(abstract, 3) == like


def test_moments_go_with_their_layers_and_counts_go_on():
    _, weights = moe.init_weights(CONFIG, jax.random.key(0))
    optimizer = optimizers.transformation(
        optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=1.0), max_grad_norm=1e9),
        weights,
        parameters.is_controller_state,
        lambda path: None,
    )
    update = jax.jit(optimizer.update)
    gradient = jax.jit(lambda tree: jax.tree.map(lambda a: jnp.sin(a + 0.1), tree))(weights)
    _, state = update(gradient, jax.jit(optimizer.init)(weights), weights)
    grown, grown_state = scaling.stack_layers(weights), scaling.stack_layers(state)
    assert [int(n) for n in optax.tree.get_all_with_path(grown_state, "count")[0][1:]] == [1]
    # Both copies of a layer take the step that the layer would have taken.
    step, _ = update(gradient, state, weights)
    grown_step, _ = update(scaling.stack_layers(gradient), grown_state, grown)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(close, scaling.stack_layers(step), grown_step)


def test_what_cannot_be_stacked_is_refused():
    with pytest.raises(ConfigError, match="times=0"):
        scaling.stack_config(CONFIG, 0)
    with pytest.raises(ConfigError, match="layers"):
        scaling.stack_layers({"embedding": jnp.ones((2, 2))})
