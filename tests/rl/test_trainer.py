import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.model import init_weights
from loong_jax.rl import objectives, optimizers, policy_model, trainer
from tests.doubles.toy_policy import toy_batches, toy_group, toy_policy, toy_weights

OBJECTIVE = objectives.longcat_objective(group_size=4, max_response_tokens=9)
OPTIMIZER = optimizers.AdamW(
    schedule=optimizers.WarmupConstant(peak=1e-2, warmup_steps=3), weight_decay=0.1
)
GROUPS = [toy_group(n, (1.0, 0.0, None, 0.0)) for n in range(4)]
apply_gradient = jax.jit(trainer.apply_gradient, static_argnames=("model", "optimizer"))
token_logprobs = jax.jit(policy_model.replayed_logprobs, static_argnums=0)


def programs(objective=OBJECTIVE, optimizer=OPTIMIZER):
    return trainer.make_programs(toy_policy(), objective, optimizer, 2)


def make_batches(groups=GROUPS, rows=3, **how):
    return jax.tree.map(jnp.asarray, toy_batches(groups, rows=rows, **how))


def accumulate(compiled, weights, batches, num_groups, temperature=1.0):
    """All that the micro-batches of a step add up to."""
    accumulated = compiled.begin(weights)
    for batch in batches:
        accumulated = compiled.accumulate(
            weights, accumulated, batch, jnp.int32(num_groups), jnp.float32(temperature)
        )
    return accumulated


def gradient(batches, objective=OBJECTIVE):
    return accumulate(programs(objective), toy_weights(), batches, num_groups=4)


def assert_close(one, other, rtol=2e-4, atol=1e-7):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, other)


def logprobs_by_hand(weights, prompt, response, temperature):
    """Float64, one sequence, one token at a time."""
    weights = jax.tree.map(lambda w: np.asarray(w, np.float64), weights)
    tokens = [*prompt, *response]
    found = []
    for t in range(len(prompt), len(tokens)):
        seen = weights["embedding"][tokens[:t]]
        x = (seen[-1] + seen.mean(axis=0)) * weights["final_norm"]
        logits = x @ weights["head"] / temperature
        found.append(logits[tokens[t]] - np.log(np.exp(logits).sum()))
    return np.array(found)


def scored(weights, batch, temperature=1.0):
    rows = batch.tokens, batch.segment_ids, batch.positions
    return programs().logprobs(weights, *rows, jnp.float32(temperature))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_belong_to_their_token_and_temperature(temperature):
    (batch,) = make_batches(rows=8)
    weights = toy_weights()
    logprob = scored(weights, batch, temperature)
    expected = np.concatenate(
        [
            logprobs_by_hand(weights, r.prompt, r.tokens, temperature)
            for g in GROUPS
            for r in g.rollouts
            if r.reward is not None
        ]
    )
    found = np.asarray(logprob)[batch.loss_mask]
    np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(logprob)[batch.positions == 0], 0)


def test_neither_microbatches_nor_packing_change_the_gradient():
    whole = gradient(make_batches(rows=12))
    for rows, row_length in ((2, 32), (5, 14)):
        parts = make_batches(rows=rows, row_length=row_length)
        assert len(parts) > 1
        found = gradient(parts)
        assert_close(found.gradient, whole.gradient)
        assert_close(found.sums, whole.sums)
        np.testing.assert_allclose(found.loss, whole.loss, rtol=1e-5)
        np.testing.assert_array_equal(found.load, whole.load)


def test_staleness_0_is_reinforce():
    """Ratios of 1: the gradient is that of -sum(advantage * log pi) / (P G T_max)."""
    weights, batches = toy_weights(), []
    for batch in make_batches(rows=4):
        logprob = scored(weights, batch)
        batches.append(batch._replace(behavior_logprob=logprob, engine_logprob=logprob))
    found = gradient(batches)
    np.testing.assert_allclose(found.sums.ratio_H[0], found.sums.num_tokens_H[0], rtol=1e-6)

    def reinforce(weights):
        total = 0.0
        for batch in batches:
            logprob, *_ = token_logprobs(toy_policy(), weights, batch._asdict(), 1.0)
            total += jnp.sum(jnp.where(batch.loss_mask, batch.advantage * logprob, 0.0))
        return -total / (len(GROUPS) * 4 * 9)

    assert_close(found.gradient, jax.jit(jax.grad(reinforce))(weights))


def test_groups_without_signal_and_masked_rollouts_teach_nothing():
    groups = [toy_group(1, (1.0,) * 4), toy_group(2, (0.0, 0.0, None, 0.0))]
    found = gradient(make_batches(groups))
    jax.tree.map(lambda g: np.testing.assert_array_equal(g, 0), found.gradient)
    assert make_batches([toy_group(3, (None, None))]) == []
    assert float(gradient([]).loss) == 0


def adamw_by_hand(weights, gradients, config):
    """Float64 AdamW with clipping and warm-up over a list of gradients."""
    weights = jax.tree.map(lambda w: np.asarray(w, np.float64), weights)
    first = jax.tree.map(np.zeros_like, weights)
    second = jax.tree.map(np.zeros_like, weights)
    for step, gradient in enumerate(gradients):
        norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(gradient)))
        gradient = jax.tree.map(
            lambda g, norm=norm: g * min(1, config.max_grad_norm / norm), gradient
        )
        first = jax.tree.map(
            lambda m, g: config.beta1 * m + (1 - config.beta1) * g, first, gradient
        )
        second = jax.tree.map(
            lambda v, g: config.beta2 * v + (1 - config.beta2) * g * g, second, gradient
        )
        rate = config.schedule.peak * min(1, (step + 1) / config.schedule.warmup_steps)
        for name in ("embedding", "head", "final_norm"):
            direction = (first[name] / (1 - config.beta1 ** (step + 1))) / (
                np.sqrt(second[name] / (1 - config.beta2 ** (step + 1))) + config.eps
            )
            if name != "final_norm":
                direction = direction + config.weight_decay * weights[name]
            weights[name] = weights[name] - rate * direction
    return weights


@pytest.mark.parametrize("max_grad_norm", [0.5, 100.0])
def test_updates_equal_adamw_by_hand_and_leave_biases_to_their_controller(max_grad_norm):
    config = dataclasses.replace(OPTIMIZER, max_grad_norm=max_grad_norm)
    weights = toy_weights()
    state = trainer.initial_state(toy_policy(), config, weights)
    random = np.random.default_rng(0)
    load = jnp.array([[5, 1, 3]])
    gradients = [
        jax.tree.map(lambda w: random.normal(size=w.shape).astype(np.float32), weights)
        for _ in range(5)
    ]
    for g in gradients:
        g["layers"]["0"]["router"]["bias"] *= 0  # as in the model: no gradient reaches it
    for g in gradients:
        state, metrics = apply_gradient(state, g, load, model=toy_policy(), optimizer=config)
    expected = adamw_by_hand(weights, gradients, config)
    for name in ("embedding", "head", "final_norm"):
        np.testing.assert_allclose(state.weights[name], expected[name], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(
        state.weights["layers"]["0"]["router"]["bias"], 5 * 0.01 * (3.0 - load), rtol=1e-5
    )
    assert int(state.step) == 5
    assert float(metrics["learning_rate"]) == pytest.approx(1e-2)


def test_muon_turns_matrices_and_leaves_the_rest_to_adamw():
    schedule = optimizers.WarmupConstant(peak=0.1)
    muon = optimizers.Muon(schedule=schedule, max_grad_norm=1e9)
    adamw = optimizers.AdamW(schedule=schedule, max_grad_norm=1e9)
    random = np.random.default_rng(1)
    weights = toy_weights()
    gradient = jax.tree.map(lambda w: random.normal(size=w.shape).astype(np.float32), weights)
    load = jnp.ones((1, 3), jnp.int32)
    after = {}
    for config in (muon, adamw):
        state = trainer.initial_state(toy_policy(), config, weights)
        after[config], _ = apply_gradient(
            state, gradient, load, model=toy_policy(), optimizer=config
        )
    for name in ("embedding", "final_norm"):
        np.testing.assert_array_equal(after[muon].weights[name], after[adamw].weights[name])
    step = np.asarray(weights["head"] - after[muon].weights["head"]) / 0.1
    # the nearest orthogonal matrix, by singular values, at the length of an AdamW step
    left, _, right = np.linalg.svd(gradient["head"], full_matrices=False)
    expected = 0.2 * np.sqrt(128) * (left @ right)
    cosine = np.sum(step * expected) / np.linalg.norm(step) / np.linalg.norm(expected)
    assert cosine > 0.95  # five Newton-Schulz steps leave singular values between 0.7 and 1.2
    assert np.linalg.norm(step) / np.linalg.norm(expected) == pytest.approx(1, abs=0.25)


def test_every_matrix_of_the_layers_has_axes_and_nothing_else_does():
    model, weights = tiny_longcat()
    for key_path, weight in jax.tree_util.tree_leaves_with_path(weights):
        path = optimizers.path_of(key_path)
        axes = model.matrix_axes(path)
        is_matrix = path[0] == "layers" and weight.ndim > 2 and "router" not in path
        assert (axes is not None) == is_matrix, path
        if axes is not None:
            assert 0 not in axes[0] + axes[1]  # layers are stacked
            assert not set(axes[0]) & set(axes[1])


def test_the_real_model_steps_with_muon():
    model, weights = tiny_longcat()
    config = optimizers.Muon(schedule=optimizers.WarmupConstant(peak=0.01), weight_decay=0.1)
    state = trainer.initial_state(model, config, weights)
    random = np.random.default_rng(2)
    gradient = jax.tree.map(lambda w: random.normal(size=w.shape).astype(w.dtype), weights)
    load = jnp.ones((1, 12), jnp.int32)
    state, _ = apply_gradient(state, gradient, load, model=model, optimizer=config)
    found = np.asarray(state.weights["layers"]["attention_0"]["query_up"])[0]
    before = np.asarray(weights["layers"]["attention_0"]["query_up"])[0]
    step = (before * (1 - 0.01 * 0.1) - found).reshape(64, 4 * 48) / 0.01
    np.testing.assert_allclose(
        np.linalg.svd(step, compute_uv=False) / (0.2 * np.sqrt(192)), 1, atol=0.35
    )


def test_a_gradient_that_is_not_finite_changes_nothing_but_the_step():
    state = trainer.initial_state(toy_policy(), OPTIMIZER, toy_weights())
    bad = jax.tree.map(lambda w: jnp.full_like(w, jnp.nan), state.weights)
    after, metrics = apply_gradient(
        state, bad, jnp.ones((1, 3), jnp.int32), model=toy_policy(), optimizer=OPTIMIZER
    )
    assert_close(after.weights, state.weights, rtol=0)
    assert_close(after.optimizer_state, state.optimizer_state, rtol=0)
    assert int(after.step) == 1
    assert np.isnan(metrics["grad_norm"])


def test_learning_moves_probability_to_what_was_rewarded():
    group = toy_group(0, (1.0, 0.0, 0.0, 1.0))
    compiled = programs()
    state = compiled.initial(toy_weights())
    before = logprobs_by_hand(state.weights, group.rollouts[0].prompt, group.rollouts[0].tokens, 1)
    for step in range(6):
        (batch,) = make_batches([group], rows=4, version=step)
        logprob = scored(state.weights, batch)
        batch = batch._replace(behavior_logprob=logprob, engine_logprob=logprob)
        state, metrics = trainer.train_step(compiled, toy_policy(), state, [batch], 1, 1.0)
    after = logprobs_by_hand(state.weights, group.rollouts[0].prompt, group.rollouts[0].tokens, 1)
    assert after.sum() > before.sum() + 0.05
    assert int(state.step) == 6
    assert {"loss", "entropy", "grad_norm", "ratio/mean_by_lag", "load/max_over_mean"} <= set(
        metrics
    )


def test_programs_compile_once_for_a_shape_and_are_shared():
    assert programs() is programs()
    compiled = programs(objectives.longcat_objective(group_size=4, max_response_tokens=11))
    state = compiled.initial(toy_weights())
    for step in range(3):
        batches = make_batches(GROUPS[: step + 2], rows=2, version=step)
        state, _ = trainer.train_step(compiled, toy_policy(), state, batches, step + 2, 1.0)
    assert compiled.accumulate._cache_size() == 1
    assert compiled.update._cache_size() == 1


def after_one_step(objective, rows, row_length, step=0):
    compiled = programs(objective)
    state = compiled.initial(toy_weights())._replace(step=jnp.int32(step))
    batches = make_batches(GROUPS, rows=rows, row_length=row_length, version=step)
    state, metrics = trainer.train_step(compiled, toy_policy(), state, batches, len(GROUPS), 1.0)
    return state.weights, metrics


def test_a_mean_over_the_steps_tokens_does_not_depend_on_its_microbatches():
    objective = objectives.dapo_objective()
    whole, metrics = after_one_step(objective, 12, 32)
    parts, other = after_one_step(objective, 2, 32)
    assert_close(parts, whole, rtol=1e-3, atol=1e-5)
    assert other["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    over_constant = dataclasses.replace(
        OBJECTIVE,
        ratio=objectives.TokenRatio(engine_cap=None),
        clip=objectives.AsymmetricClip(),  # as DAPO's
    )
    expected = gradient(make_batches(rows=12), objective=over_constant)
    tokens = float(expected.num_tokens)
    assert metrics["loss"] * tokens == pytest.approx(float(expected.loss) * 4 * 4 * 9, rel=1e-5)


def test_the_bound_of_a_step_is_that_of_its_schedule_and_one_program_runs_all():
    """A bound of 0 stops every positive token that has grown; the schedule reaches it at step 5."""
    schedule = objectives.SteppedBound(steps=(5,), values=(0.0,))
    led = objectives.TripletClip(pos_high_schedule=schedule)
    objective = dataclasses.replace(OBJECTIVE, clip=led)
    before, after = (after_one_step(objective, 3, 32, step)[1] for step in (4, 5))
    fixed = dataclasses.replace(OBJECTIVE, clip=objectives.TripletClip(eps_pos_high=0.0))
    assert before["loss"] == after_one_step(OBJECTIVE, 3, 32, 4)[1]["loss"]
    assert after["loss"] == pytest.approx(after_one_step(fixed, 3, 32, 5)[1]["loss"], rel=1e-6)
    assert before["loss"] != after["loss"]
    assert programs(objective).accumulate._cache_size() == 1


def test_the_proximal_policy_is_the_one_a_step_begins_with():
    """Then the ratio is 1, and staleness and engine are in the weight: that of the old ratio."""
    objective = objectives.decoupled_ppo_objective(max_weight=float("inf"))
    (batch,) = make_batches(rows=12)
    logprob = scored(toy_weights(), batch)
    _, metrics = after_one_step(objective, 12, 32)
    assert metrics["ratio/mean_by_lag"]["0"] == pytest.approx(1, abs=1e-6)
    weight = np.exp(np.asarray(logprob) - batch.engine_logprob)
    gain = (weight * batch.advantage)[batch.loss_mask]
    assert metrics["loss"] == pytest.approx(-float(gain.mean()), rel=1e-5)


def test_schedules():
    warm = optimizers.WarmupConstant(peak=2.0, warmup_steps=4)
    assert [float(optimizers.learning_rate(warm, s)) for s in (0, 1, 3, 9)] == [0.5, 1.0, 2.0, 2.0]
    cosine = optimizers.WarmupCosine(peak=1.0, warmup_steps=2, num_steps=10, final_share=0.2)
    found = [float(optimizers.learning_rate(cosine, s)) for s in (0, 2, 6, 10, 50)]
    np.testing.assert_allclose(found, [0.5, 1.0, 0.6, 0.2, 0.2], rtol=1e-6)


@functools.cache
def tiny_longcat():
    config = MoEConfig.tiny(
        num_layers=1, hidden_size=32, ffn_hidden_size=32, expert_ffn_hidden_size=16
    )
    graphdef, weights = init_weights(config, jax.random.key(0))
    model = policy_model.longcat_policy(graphdef, config, 0.01)
    assert policy_model.longcat_policy(graphdef, config, 0.01) is model  # stages share programs
    return model, weights


def test_the_real_model_trains_and_its_biases_follow_the_load():
    model, weights = tiny_longcat()
    compiled = trainer.make_programs(model, OBJECTIVE, OPTIMIZER, 2)
    state = compiled.initial(weights)
    state, metrics = trainer.train_step(
        compiled, model, state, make_batches(rows=4), len(GROUPS), 1.0
    )
    bias = np.asarray(state.weights["layers"]["router"]["bias"])
    assert np.any(bias[:, :8] != 0)
    np.testing.assert_array_equal(bias[:, 8:], 0)  # zero experts are left alone
    assert 0 < metrics["load/ffn_experts_per_token"] <= 3
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), state.weights, weights)
    assert moved["embedding"]
    assert all(jax.tree.leaves(moved["layers"]["experts"]))
