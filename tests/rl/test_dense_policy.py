"""A dense decoder in training: shared prompts, logits of few tokens, dtypes, adapters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.models import dense, parameters
from loong_jax.rl import batching, local_trainer, lora, objectives, optimizers, trainer
from loong_jax.rl.batching import Layout
from loong_jax.rl.policy_model import policy_of
from tests.doubles.toy_policy import group_of, toy_batches
from tests.rl.test_lora import join_by_hand
from tests.rl.test_trainer import accumulate

CONFIG = dense.DenseConfig.tiny(qkv_bias=True, qk_norm=True)
ADAM = optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=1e-3), weight_decay=0.1)
OBJECTIVE = objectives.grpo_objective(group_size=4, beta=0.0)


@pytest.fixture(scope="module")
def made():
    graphdef, weights = dense.init_weights(CONFIG, jax.random.key(0))
    weights = jax.tree.map(  # biases and norms are not 0 and 1 either
        lambda w: w + 0.1 * jax.random.normal(jax.random.key(w.size), w.shape, w.dtype), weights
    )
    return policy_of(graphdef, CONFIG), weights


GROUPS = [
    group_of(number, rewards, 3 * number)
    for number, rewards in enumerate(((1.0, 0.0, None, 0.0), (1.0, 0.0), (0.0, 1.0, 1.0)))
]


def programs(policy, shares_prompts):
    return trainer.make_programs(policy, OBJECTIVE, ADAM, 0, False, shares_prompts)


def settings(row_length):
    return local_trainer.TrainerSettings(
        objective=OBJECTIVE, optimizer=ADAM, max_staleness=0, row_length=row_length, score_rows=2
    )


def gradient(compiled, weights, layout, row_length):
    batches = toy_batches(GROUPS, row_length=row_length, layout=layout)
    return accumulate(compiled, weights, batches, num_groups=3, temperature=0.8)


@pytest.mark.release
def test_shared_prompts_give_the_gradient_of_flat_rows_without_lists(made):
    policy, weights = made
    plain = dataclasses.replace(policy, lists=False)
    flat = gradient(programs(plain, None), weights, batching.FLAT, 32)
    assert programs(policy, None).layout == Layout(lists=True, shares_prompts=True)
    for shares, row_length in ((None, 64), (None, 32), (False, 32)):
        compiled = programs(policy, shares)
        found = gradient(compiled, weights, compiled.layout, row_length)
        for name, expected in parameters.by_path(flat.gradient).items():
            value = parameters.by_path(found.gradient)[name]
            largest = np.max(np.abs(expected))
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5 * largest)
        np.testing.assert_allclose(found.loss, flat.loss, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.entropy, flat.entropy, rtol=1e-5)
        assert found.num_tokens == flat.num_tokens


def test_shared_prompts_give_the_scores_of_flat_rows_without_lists(made):
    policy, weights = made
    plain = dataclasses.replace(policy, lists=False)
    for group in GROUPS:
        flat = local_trainer.group_logprobs(programs(plain, None), weights, group, settings(32))
        for shares, row_length in ((None, 64), (None, 21), (False, 32)):
            compiled = programs(policy, shares)
            found = local_trainer.group_logprobs(compiled, weights, group, settings(row_length))
            for one, other in zip(found, flat, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_response_does_not_see_another_one(made):
    """Other tokens in one response leave the scores of the others bit for bit."""
    policy, weights = made
    compiled, group = programs(policy, None), GROUPS[2]
    first = group.rollouts[0]
    other = dataclasses.replace(first, tokens=first.tokens[::-1] // 2 + 30)
    changed = group.replace_rollouts((other, *group.rollouts[1:]))
    before = local_trainer.group_logprobs(compiled, weights, group, settings(64))
    after = local_trainer.group_logprobs(compiled, weights, changed, settings(64))
    assert np.any(before[0] != after[0])
    for one, two in zip(before[1:], after[1:], strict=True):
        np.testing.assert_array_equal(one, two)


def test_every_matrix_has_axes_and_biases_do_not_decay(made):
    policy, weights = made
    for key_path, weight in jax.tree_util.tree_leaves_with_path(weights):
        path = optimizers.path_of(key_path)
        is_matrix = path[-1] in ("query", "key", "value", "out", "gate", "up", "down")
        axes = policy.matrix_axes(path)
        assert (axes is not None) == is_matrix, path
        assert optimizers.decays(path, weight) == (is_matrix or path == ("embedding",)), path
        if axes is not None:
            assert sorted((0, *axes[0], *axes[1])) == list(range(weight.ndim))


def test_adapters_reach_every_matrix(made):
    policy, weights = made
    config = lora.LoraConfig(rank=2, alpha=3.0)
    adapters = lora.initial_adapters(policy, config, weights, jax.random.key(0))
    adapters = jax.tree.map(lambda a: a + 0.1, adapters)
    adapted = lora.lora_policy(policy, config)
    found = parameters.by_path(adapted.join(adapters, weights))
    for path, expected in join_by_hand(weights, adapters, 1.5).items():
        np.testing.assert_allclose(found[path], expected, rtol=1e-5, atol=1e-6)
    assert len(jax.tree.leaves(adapters)) == 2 * 7
    compiled = programs(adapted, None)
    batches = toy_batches(GROUPS, row_length=64, layout=compiled.layout)
    state = trainer.initial_state(adapted, ADAM, adapters)
    state, metrics = trainer.train_step(compiled, adapted, state, batches, 3, 1.0, weights)
    assert np.isfinite(metrics["grad_norm"])
    assert metrics["grad_norm"] > 0


def test_a_model_in_bfloat16_is_published_as_it_computes():
    config = dataclasses.replace(CONFIG, dtype="bfloat16", param_dtype="float32")
    graphdef, weights = dense.init_weights(config, jax.random.key(0))
    policy = policy_of(graphdef, config)
    published = trainer.publisher(policy)(weights)
    assert published["embedding"].dtype == jnp.bfloat16
    group, compiled = GROUPS[1], programs(policy, None)
    of_masters = local_trainer.group_logprobs(compiled, weights, group, settings(64))
    of_published = local_trainer.group_logprobs(compiled, published, group, settings(64))
    for one, other in zip(of_masters, of_published, strict=True):
        np.testing.assert_array_equal(one, other)
