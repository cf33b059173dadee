"""The bias controller: the published law and its optional terms."""

import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.moe.balance import BiasController, ControllerMemory
from tests.models.moe.test_model import CONFIG

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


@pytest.mark.parametrize("gain", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["rate", "proportional", "derivative"])
def test_gains_that_cannot_steer_are_refused(name, gain):
    with pytest.raises(ConfigError, match=f"{name}={gain}"):
        BiasController(**(dict(rate=0.1) | {name: gain}))
