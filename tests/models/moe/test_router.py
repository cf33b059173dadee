"""Choice, gates, loads and the controller of the biases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.models import moe
from loong_jax.models.moe import router
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny

CONFIG = tiny.smallest_config(gate_scale=6.0)


def route(logits, bias, config=CONFIG):
    return router.choose(jax.nn.softmax(logits), bias, config)


def random_logits(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(*shape, CONFIG.num_targets)).astype(np.float32)


def test_the_bias_steers_the_choice_and_never_enters_the_gates():
    logits = random_logits(2, 5)
    bias = np.zeros(CONFIG.num_targets, np.float32)
    bias[4] = 2.0
    routing = route(jnp.asarray(logits), jnp.asarray(bias))
    score = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert (routing.target == 4).any(-1).all()
    expected = np.sort(np.argsort(-(score + bias), axis=-1)[..., : CONFIG.num_chosen])
    np.testing.assert_array_equal(np.sort(routing.target), expected)
    np.testing.assert_allclose(
        routing.gate, 6 * np.take_along_axis(score, np.asarray(routing.target), -1), rtol=1e-6
    )
    assert not np.allclose(np.sum(routing.gate, -1), 6)  # not normalised over the chosen


def test_the_bias_follows_the_integral_law():
    load = np.array([[10, 30, 20, 0, 25, 5], [0, 0, 0, 0, 0, 0]], np.int32)
    bias = np.full((2, 6), 0.5, np.float32)
    moved = moe.update_bias(jnp.asarray(bias), jnp.asarray(load), CONFIG, 0.1)
    tokens = 30  # 90 choices of 3 per token
    share = (2.0 / 3) * (1 / 4) - load[0, :4] / (3 * tokens)
    np.testing.assert_allclose(moved[0, :4], 0.5 + 0.1 * share, rtol=1e-6)
    np.testing.assert_array_equal(moved[0, 4:], [0.5, 0.5])  # zero-computation experts
    np.testing.assert_array_equal(moved[1], bias[1])  # a layer that saw no token


@pytest.mark.parametrize("wanted", [1.2, 2.0, 2.7])
def test_the_controller_brings_the_load_to_its_target(wanted):
    config = tiny.smallest_config(target_ffn_experts=wanted)
    skew = np.array([1.0, 0.0, -0.5, 0.5, 1.5, -1.0], np.float32)
    logits = jnp.asarray(random_logits(1, 2000) * 0.7 + skew)
    mask = jnp.ones((1, 2000), bool)

    def step(bias, _):
        routing = route(logits, bias[0], config)
        load = router.count_load(routing.target, mask, config.num_targets)
        return moe.update_bias(bias, load[None], config, 0.1), load

    bias = jnp.zeros((1, config.num_targets))
    _, load = jax.jit(lambda bias: jax.lax.scan(step, bias, length=600))(bias)
    experts = np.asarray(load[-1, : config.num_experts]) / 2000
    assert np.asarray(load[0, : config.num_experts]).std() / 2000 > 0.1
    assert experts.sum() == pytest.approx(wanted, rel=0.02)
    np.testing.assert_allclose(experts, wanted / config.num_experts, rtol=0.05)


def test_biases_are_told_apart_by_their_path():
    _, weights = moe.init_weights(CONFIG, jax.random.key(0))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(weights)]
    found = [jax.tree_util.keystr(path) for path in paths if moe.is_controller_state(path)]
    assert found == ["['layers']['router']['bias']"]
    assert moe.is_controller_state(("layers", "router", "bias"))
    assert not moe.is_controller_state(("layers", "router", "kernel"))


@pytest.mark.parametrize(
    "sizes",
    [dict(data=2, expert=2, context=2), pytest.param(dict(context=8), marks=pytest.mark.slow)],
    ids=str,
)
def test_no_score_leaves_its_device(sizes):
    """Read off the compiled program, backward pass included: sums travel, and nothing else."""
    rules = ShardingRules(mesh=make_mesh(**sizes))
    logits = jnp.asarray(random_logits(4, 8))
    bias = jnp.asarray(random_logits(1)[0])
    expected = route(logits, bias)
    placed = rules.place(logits, "act_batch", "act_length", None)

    def loss(logits, bias):
        routing = router.choose(jax.nn.softmax(logits), bias, CONFIG, rules)
        return jnp.sum(routing.gate**2), routing

    with jax.set_mesh(rules.mesh):
        program = jax.jit(jax.grad(loss, has_aux=True)).lower(placed, bias).compile()
        gradient, found = program(placed, bias)
    text = program.as_text()
    assert not any(
        f"{kind}(" in text for kind in ("all-gather", "all-to-all", "collective-permute")
    )
    np.testing.assert_array_equal(found.target, expected.target)
    np.testing.assert_allclose(found.gate, expected.gate, rtol=1e-6)
    alone = jax.grad(lambda x: jnp.sum(route(x, bias).gate ** 2))(logits)
    np.testing.assert_allclose(gradient, alone, rtol=1e-5, atol=1e-6)
