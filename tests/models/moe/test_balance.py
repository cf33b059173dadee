"""Balance loss, stability metrics, hidden z-loss and the bias controller against the equations."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.moe import balance
from loong_jax.models.moe.balance import (
    BiasController,
    ControllerMemory,
    CountTokens,
    DeviceBalance,
)
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.models.moe import reference
from tests.models.moe.test_model import CONFIG, call, fresh, random_tokens

TOKENS = random_tokens(4, 6)
MASK = np.arange(6)[None] < np.array([6, 4, 6, 1])[:, None]


@functools.cache
def output():
    graphdef, weights = fresh()
    return call(graphdef)(weights, TOKENS, mask=MASK)


@pytest.mark.parametrize("counting", [balance.CountChoices(), CountTokens()], ids=str)
@pytest.mark.parametrize("num_groups", [1, 2])
def test_the_balance_loss_follows_the_equation(counting, num_groups):
    loss = DeviceBalance(num_groups=num_groups, weight=0.3, counting=counting)
    found = balance.device_balance_loss(output(), CONFIG, loss, jnp.asarray(MASK))
    num_tokens, size = MASK.sum(), CONFIG.num_experts // num_groups
    for layer in range(CONFIG.num_layers):
        target = np.asarray(output().target[layer])[MASK]  # [T, K]
        mean_score = np.asarray(output().score_sum[layer], np.float64) / num_tokens
        total = 0.0
        for group in range(num_groups + 1):
            is_zero = group == num_groups
            members = range(4, 6) if is_zero else range(group * size, (group + 1) * size)
            hits = np.isin(target, list(members))
            count = hits.any(-1).sum() if isinstance(counting, CountTokens) else hits.sum()
            scale = 1 / (3 - 2.0) if is_zero else num_groups / 2.0
            total += scale * count / num_tokens * mean_score[list(members)].sum()
        assert float(found[layer]) == pytest.approx(0.3 * total, rel=1e-5)


def test_uniform_routing_at_the_target_has_frequency_one_in_every_group():
    config = tiny.smallest_config()
    load = jnp.array([[10, 10, 10, 10, 10, 10]], jnp.int32)  # 20 tokens, 2 of 3 choices to experts
    even = output()._replace(load=load, score_sum=jnp.full((1, 6), 20 / 6))
    loss = DeviceBalance(num_groups=2, weight=1.0)
    np.testing.assert_allclose(balance.group_frequency(even, config, loss), [[1, 1, 1]])
    assert float(balance.device_balance_loss(even, config, loss)[0]) == pytest.approx(1)
    all_experts = dataclasses.replace(config, target_ffn_experts=3.0)
    assert float(balance.group_frequency(even, all_experts, loss)[0, 2]) == 0


def test_scores_are_summed_over_unmasked_tokens_only():
    sums = np.asarray(output().score_sum)
    np.testing.assert_allclose(sums.sum(-1), MASK.sum(), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(output().load).sum(-1), 3 * MASK.sum())


@pytest.mark.slow
def test_the_gradient_of_the_balance_loss_lowers_the_scores_of_crowded_groups():
    graphdef, weights = fresh()
    loss = DeviceBalance(num_groups=2, weight=1.0)

    @jax.jit
    def value_and_gradient(weights):
        def total(weights):
            output = nnx.merge(graphdef, nnx.State(weights))(
                jnp.asarray(TOKENS), mask=jnp.asarray(MASK)
            )
            return jnp.sum(balance.device_balance_loss(output, CONFIG, loss))

        return jax.value_and_grad(total)(weights)

    value, gradient = value_and_gradient(weights)
    kernel = weights["layers"]["router"]["kernel"]
    slope = jnp.sum(gradient["layers"]["router"]["kernel"] ** 2)
    moved = kernel - 1e-3 * gradient["layers"]["router"]["kernel"] / jnp.sqrt(slope)
    layers = {**weights["layers"], "router": {**weights["layers"]["router"], "kernel": moved}}
    after, _ = value_and_gradient({**weights, "layers": layers})
    assert float(value - after) == pytest.approx(1e-3 * float(jnp.sqrt(slope)), rel=0.1)


def test_the_stability_ratio_compares_gradients_with_respect_to_mean_scores():
    graphdef, weights = fresh()
    tokens = random_tokens(1, 5)
    direction = np.random.default_rng(1).normal(size=(5, CONFIG.vocab_size))

    @jax.jit
    def score_gradient(shift):
        model = nnx.merge(graphdef, nnx.State(weights))

        def loss(shift):
            return jnp.sum(model(jnp.asarray(tokens), score_shift=shift).logits[0] * direction)

        return jax.grad(loss)(shift)

    gradient = np.asarray(score_gradient(jnp.zeros((CONFIG.num_layers, CONFIG.num_targets))))
    plain = jax.tree.map(lambda a: np.asarray(a, np.float64), weights)

    def shifted(along, step):
        router = {**plain["layers"]["router"], "score_shift": step * along}
        tree = {**plain, "layers": {**plain["layers"], "router": router}}
        return (reference.model(tree, tokens[0], CONFIG)[0] * direction).sum()

    for seed in range(3):
        along = np.random.default_rng(seed).normal(size=gradient.shape)
        expected = (shifted(along, 1e-6) - shifted(along, -1e-6)) / 2e-6
        assert (gradient * along).sum() == pytest.approx(expected, rel=1e-3)

    whole = call(graphdef)(weights, tokens)
    loss = DeviceBalance(num_groups=4, weight=0.01)
    ratio = balance.stability_ratio(whole, jnp.asarray(gradient), CONFIG, loss)
    frequency = np.asarray(balance.group_frequency(whole, CONFIG, loss))[:, [0, 1, 2, 3, 4, 4]]
    expected = 0.01 * np.linalg.norm(frequency, axis=-1) / np.linalg.norm(gradient, axis=-1)
    np.testing.assert_allclose(ratio, expected, rtol=1e-5)


def test_the_row_cosine_is_the_mean_over_pairs():
    kernel = np.random.default_rng(0).normal(size=(2, 7, 5)) + 0.3
    expected = []
    for layer in kernel:
        rows = layer.T / np.linalg.norm(layer.T, axis=-1, keepdims=True)
        cosine = rows @ rows.T
        expected.append(cosine[~np.eye(5, dtype=bool)].mean())
    found = balance.router_row_cosine(jnp.asarray(kernel, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    alone = balance.router_row_cosine(jnp.asarray(kernel[1], jnp.float32))
    assert float(alone) == pytest.approx(expected[1], rel=1e-5)


def test_a_row_of_zeros_has_cosine_0_with_all_others():
    kernel = np.zeros((2, 7, 3), np.float32)
    kernel[1, :, :2] = np.arange(1, 8)[:, None]  # two that are alike: one pair of three
    found = balance.router_row_cosine(jnp.asarray(kernel))
    np.testing.assert_allclose(found, [0, 1 / 3], atol=1e-6)


def test_the_hidden_z_loss_follows_the_equation_and_survives_massive_activations():
    hidden = np.random.default_rng(0).normal(size=(2, 3, 8)) * 3
    mask = np.array([[True, True, False], [True, False, False]])
    expected = np.mean(np.log(np.exp(abs(hidden)).sum(-1))[mask] ** 2)
    found = balance.hidden_z_loss(jnp.asarray(hidden, jnp.float32), jnp.asarray(mask), weight=0.5)
    assert float(found) == pytest.approx(0.5 * expected, rel=1e-5)
    massive = jnp.asarray([[[-1e4, 0.0, 0.0]]], jnp.bfloat16)
    of = jax.jit(jax.value_and_grad(lambda z: balance.hidden_z_loss(z, weight=1.0)))
    value, gradient = jax.device_get(of(massive))
    assert float(value) == pytest.approx(1e8, rel=0.01)
    assert np.isfinite(np.float32(gradient)).all()
    assert float(gradient[0, 0, 0]) < 0


def test_sharded_statistics_and_losses_equal_single_device():
    rules = ShardingRules(mesh=make_mesh(data=2, expert=2, context=2))
    _, weights = fresh()
    graphdef, placed = tiny.on_mesh(CONFIG, rules, weights)
    kinds = [
        DeviceBalance(num_groups=2, weight=1.0, counting=counting)
        for counting in (balance.CountChoices(), CountTokens())
    ]

    @jax.jit
    def on_mesh(weights):
        output = nnx.merge(graphdef, nnx.State(weights))(
            jnp.asarray(TOKENS), mask=jnp.asarray(MASK)
        )
        mask = rules.place(jnp.asarray(MASK), "act_batch", "act_length")
        losses = [balance.device_balance_loss(output, CONFIG, loss, mask) for loss in kinds]
        return losses, balance.hidden_z_loss(output.hidden, mask), output.score_sum

    losses, z_loss, score_sum = on_mesh(placed)
    mask = jnp.asarray(MASK)
    expected = [balance.device_balance_loss(output(), CONFIG, loss, mask) for loss in kinds]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    expected = balance.hidden_z_loss(output().hidden, mask)
    np.testing.assert_allclose(z_loss, expected, rtol=1e-5)
    np.testing.assert_allclose(score_sum, output().score_sum, rtol=1e-5)


def test_wrong_settings_are_refused():
    for change in (dict(num_groups=0), dict(weight=0.0)):
        with pytest.raises(ConfigError, match=next(iter(change))):
            DeviceBalance(**(dict(num_groups=2, weight=0.1) | change))
    unchecked = inspect.unwrap(DeviceBalance.__init__)  # as without the checks of annotations
    for counting in ("choices", CountTokens):
        new = object.__new__(DeviceBalance)
        with pytest.raises(ConfigError, match=r"counting=.* is neither CountChoices\(\)"):
            unchecked(new, num_groups=2, weight=0.1, counting=counting)
    with pytest.raises(ConfigError, match="num_groups=3"):
        balance.expert_groups(CONFIG, DeviceBalance(num_groups=3, weight=0.1))


# --- the bias controller: the published law and its optional terms

LOADS = np.random.default_rng(0).integers(0, 50, (5, CONFIG.num_layers, CONFIG.num_targets))
BIAS = jnp.full((CONFIG.num_layers, CONFIG.num_targets), 0.5)


def run(controller, loads):
    bias, memory = BIAS, ControllerMemory.zeros(CONFIG)
    for load in loads:
        bias, memory = controller.update(bias, jnp.asarray(load, jnp.int32), memory, CONFIG)
    return np.asarray(bias)


def test_a_controller_without_memory_follows_the_law_or_says_that_it_needs_one():
    load = jnp.asarray(LOADS[0], jnp.int32)
    bias, memory = BiasController(rate=0.02).update(BIAS, load, None, CONFIG)
    assert memory is None
    np.testing.assert_array_equal(bias, moe.update_bias(BIAS, load, CONFIG, 0.02))
    with pytest.raises(ValueError, match=r"memory=None.*ControllerMemory.zeros"):
        BiasController(rate=0.02, proportional=0.03).update(BIAS, load, None, CONFIG)


def test_all_terms_sum_to_the_textbook_controller():
    error = np.zeros((len(LOADS), CONFIG.num_layers, CONFIG.num_targets))
    wanted = CONFIG.target_ffn_experts / (CONFIG.num_chosen * CONFIG.num_experts)
    experts = slice(CONFIG.num_experts)
    error[..., experts] = wanted - (LOADS / LOADS.sum(-1, keepdims=True))[..., experts]
    expected = 0.5 + 0.02 * error.sum(0) + 0.03 * error[-1] + 0.04 * (error[-1] - error[-2])
    found = run(BiasController(rate=0.02, proportional=0.03, derivative=0.04), LOADS)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(found[:, CONFIG.num_experts :], 0.5)  # zero-computation experts


def test_a_layer_that_saw_no_token_keeps_its_bias_and_its_errors():
    controller = BiasController(rate=0.02, proportional=0.03, derivative=0.04)
    gap = np.insert(LOADS, 3, 0, axis=0)
    np.testing.assert_array_equal(run(controller, gap), run(controller, LOADS))


def test_a_mesh_gives_the_update_of_one_device():
    controller = BiasController(rate=0.02, proportional=0.03)
    graphdef, weights = fresh()

    def updated(graphdef, weights):
        def function(weights, tokens):
            load = nnx.merge(graphdef, nnx.State(weights))(tokens).load
            bias, memory = weights["layers"]["router"]["bias"], ControllerMemory.zeros(CONFIG)
            return controller.update(bias, load, memory, CONFIG)

        return jax.tree.leaves(jax.jit(function)(weights, random_tokens(8, 6)))

    placed = tiny.on_mesh(CONFIG, ShardingRules(mesh=make_mesh(data=2, fsdp=2)), weights)
    for one, other in zip(updated(graphdef, weights), updated(*placed), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("gain", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["rate", "proportional", "derivative"])
def test_gains_that_cannot_steer_are_refused(name, gain):
    with pytest.raises(ConfigError, match=f"{name}={gain}"):
        BiasController(**(dict(rate=0.1) | {name: gain}))
