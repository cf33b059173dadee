"""Float32 masters whatever dtype weights came in, and what is kept and published beside them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models import moe, parameters
from loong_jax.rl import checkpoint, optimizers, sft, trainer
from loong_jax.rl.policy_model import longcat_policy
from loong_jax.run import stages, starting
from tests.doubles import tiny
from tests.doubles.toy_policy import toy_policy, toy_weights
from tests.rl.test_trainer import token_logprobs

ADAM = optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=1e-5))
PAIRS = [("1+1=", "2"), ("2+3=", "5"), ("4+4=", "8")] * 100
narrow = functools.partial(jax.tree.map, lambda a: a.astype(jnp.bfloat16))
wide = functools.partial(jax.tree.map, lambda a: a.astype(jnp.float32))


def dtypes(weights):
    return {str(leaf.dtype) for leaf in jax.tree.leaves(weights)}


def trained(weights, optimizer=ADAM, num_steps=20):
    settings = sft.SftSettings(optimizer=optimizer, num_steps=num_steps, rows=2, row_length=32)
    state = trainer.initial_state(toy_policy(), optimizer, weights)
    losses = []
    state, _ = sft.run(
        toy_policy(),
        settings,
        state,
        PAIRS,
        sft.pair_encoder(tiny.tokenizer()),
        on_step=lambda state, cursor, metrics: losses.append(metrics["loss"]),
    )
    return state, losses


def test_weights_that_came_in_bfloat16_train_as_the_same_in_float32_do():
    start = narrow(toy_weights())
    state, losses = trained(start)
    other, other_losses = trained(wide(start))
    assert dtypes(state.weights) == {"float32"}
    assert losses == other_losses
    jax.tree.map(np.testing.assert_array_equal, state.weights, other.weights)
    np.testing.assert_array_equal(
        state.optimizer_state[0]["adam"].inner_state[0].mu["head"].dtype, jnp.float32
    )
    moved = np.mean(np.asarray(state.weights["head"]) != np.asarray(wide(start)["head"]))
    assert moved > 0.9  # a step is far below half a unit in the last place of bfloat16


def test_moments_in_bfloat16_learn_as_those_in_float32_do():
    start = toy_weights()
    fast = dataclasses.replace(ADAM, schedule=optimizers.WarmupConstant(peak=1e-2))
    half = dataclasses.replace(fast, moments_dtype=jnp.bfloat16)
    (state, losses), (_, expected) = trained(start, half), trained(start, fast)
    assert dtypes(state.weights) == {"float32"}
    moments = [a for a in jax.tree.leaves(state.optimizer_state) if a.dtype == jnp.bfloat16]
    assert len(moments) == 2 * 3  # of embedding, head and norm
    np.testing.assert_allclose(losses, expected, rtol=0.01)
    assert losses[-1] < losses[0] - 0.3
    assert losses != expected


def test_moments_that_could_not_change_are_refused():
    with pytest.raises(ConfigError, match=r"beta2=0\.999"):
        dataclasses.replace(ADAM, moments_dtype=jnp.bfloat16, beta2=0.999)
    with pytest.raises(ConfigError, match="moments_dtype=int8"):
        dataclasses.replace(ADAM, moments_dtype=jnp.int8)


def test_a_kind_of_optimizer_is_chosen_by_name():
    chosen = dataclasses.replace(ADAM, weight_decay=0.25, moments_dtype=jnp.bfloat16)
    muon = optimizers.of_kind("muon", chosen)
    assert isinstance(muon, optimizers.Muon)
    assert (muon.weight_decay, muon.moments_dtype) == (0.25, jnp.bfloat16)
    assert optimizers.of_kind("adamw", muon) == chosen
    with pytest.raises(ConfigError, match="adamw, muon"):
        optimizers.of_kind("sgd", ADAM)


def test_a_checkpoint_in_bfloat16_goes_on_in_float32():
    """As runs from an import in bfloat16 wrote it before."""
    state, _ = trained(toy_weights(), num_steps=2)
    arrays = trainer.to_arrays(state)
    old = arrays | {
        "weights": narrow(arrays["weights"]),
        "optimizer": {
            name: a.astype(jnp.bfloat16) if a.dtype == np.float32 else a
            for name, a in arrays["optimizer"].items()
        },
    }
    found = trainer.from_arrays(toy_policy(), ADAM, toy_weights(), old)
    assert dtypes(found.weights) == {"float32"}
    jax.tree.map(np.testing.assert_array_equal, found.weights, wide(old["weights"]))
    assert jax.tree.map(lambda a: a.dtype, found) == jax.tree.map(lambda a: a.dtype, state)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_engines_sample_with_weights_in_the_dtype_of_activations(dtype):
    config = tiny.smallest_config(dtype=dtype, param_dtype="bfloat16")
    graphdef, weights = moe.init_weights(config, jax.random.key(0))
    policy = longcat_policy(graphdef, config, 0.0)
    masters = trainer.initial_state(policy, ADAM, weights).weights
    published = trainer.publisher(policy)(masters)
    assert published["head"].dtype == dtype
    assert published["layers"]["router"]["kernel"].dtype == jnp.float32
    tokens = np.arange(12).reshape(2, 6) + 40
    ones, positions = np.ones_like(tokens), np.arange(6)[None] + np.zeros_like(tokens)
    call = dict(tokens=tokens, segment_ids=ones, positions=positions), 1.0
    of_masters = token_logprobs(policy, masters, *call)[0]
    np.testing.assert_array_equal(token_logprobs(policy, published, *call)[0], of_masters)


def test_a_stage_keeps_its_masters_beside_weights_in_the_dtype_of_the_model(tmp_path):
    config = tiny.smallest_config(param_dtype="bfloat16")
    like = moe.abstract_weights(config)[1]
    _, masters = moe.init_weights(
        dataclasses.replace(config, param_dtype="float32"), jax.random.key(0)
    )
    stages.save_weights(tmp_path, 3, masters, like)
    stored = checkpoint.restore(tmp_path / "weights").arrays["weights"]
    assert stored["head"].dtype == jnp.bfloat16
    jax.tree.map(np.testing.assert_array_equal, stages.load_weights(tmp_path), masters)
    starting_from = starting._read(
        tmp_path,
        {
            path: jax.ShapeDtypeStruct(
                a.shape, a.dtype, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
            )
            for path, a in parameters.by_path(like).items()
        },
    )
    assert "head" in starting_from
    assert dtypes(starting_from) == {"float32", "bfloat16"}
    stages.save_weights(tmp_path / "plain", 3, masters, jax.eval_shape(lambda: masters))
    assert "masters" not in checkpoint.restore(tmp_path / "plain" / "weights").arrays
