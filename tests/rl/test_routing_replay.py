"""From the engine's record to the loss: what is replayed, and what is counted."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.errors import ConfigError
from loong_jax.models.moe.model import init_weights
from loong_jax.rl import batching, local_trainer, objectives, optimizers, policy_model, trainer
from loong_jax.rl.local_trainer import TrainerSettings
from tests.doubles import tiny
from tests.doubles.toy_policy import toy_batches, toy_group, toy_policy

CONFIG = tiny.smallest_config()
SETTINGS = TrainerSettings(
    objective=objectives.longcat_objective(group_size=4, max_response_tokens=9),
    optimizer=optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=1e-2, warmup_steps=1)),
    max_staleness=0,
    row_length=32,
    rows=2,
    score_rows=2,
    replays_routing=True,
)


@functools.cache
def policy_and_weights():
    graphdef, weights = init_weights(CONFIG, jax.random.key(0))
    return policy_model.longcat_policy(graphdef, CONFIG, 0.0), weights


def programs(settings=SETTINGS):
    return trainer.make_programs(
        policy_and_weights()[0],
        settings.objective,
        settings.optimizer,
        settings.max_staleness,
        settings.replays_routing,
    )


def with_routing(group, seed=0):
    """Random choices of every token but the last, which no engine reads."""
    random = np.random.default_rng(seed)

    def recorded(rollout):
        length = len(rollout.prompt) + len(rollout.tokens)
        order = np.argsort(random.random((length, CONFIG.num_layers, CONFIG.num_targets)), axis=-1)
        chosen = order[..., : CONFIG.num_chosen].astype(np.int16)
        chosen[-1] = -1
        return dataclasses.replace(rollout, routing=chosen)

    return group.replace_rollouts(tuple(map(recorded, group.rollouts)))


GROUPS = [with_routing(toy_group(n, (1.0, 0.0)), seed=n) for n in range(2)]


def test_prompts_and_padding_are_free_and_packing_keeps_every_choice():
    (batch,) = toy_batches(GROUPS, replays_routing=True)
    assert batch.routing is not None
    assert batch.routing.dtype == np.int16
    assert batch.routing.shape == (4, 32, CONFIG.num_layers, CONFIG.num_chosen)
    assert (np.asarray(batch.routing)[~batch.loss_mask] == -1).all()
    wanted = np.concatenate([r.routing[len(r.prompt) :] for g in GROUPS for r in g.rollouts])
    np.testing.assert_array_equal(np.asarray(batch.routing)[batch.loss_mask], wanted)
    (plain,) = toy_batches(GROUPS)
    assert plain.routing is None


def test_a_model_without_routers_is_refused():
    without = dataclasses.replace(toy_policy(), load_shape=(0, 0))
    with pytest.raises(ConfigError, match="no routers"):
        trainer.make_programs(without, SETTINGS.objective, SETTINGS.optimizer, 0, True)


def test_counts_follow_sets_of_choices():
    """Against sets in Python: order means nothing, free and masked tokens count nowhere."""
    random = np.random.default_rng(0)

    def chosen():
        return np.argsort(random.random((2, 3, 4, 6)), axis=-1)[..., :3].astype(np.int32)

    recorded, own, used = chosen(), chosen(), chosen()
    used[0] = recorded[0, ..., ::-1]
    recorded[1, 0, :2, 1] = -1
    mask = random.random((3, 4)) < 0.7
    replayed = own_differed = used_differed = 0
    for place in np.ndindex(2, 3, 4):
        if min(recorded[place]) < 0 or not mask[place[1:]]:
            continue
        replayed += 3
        own_differed += len(set(recorded[place]) - set(own[place]))
        used_differed += len(set(recorded[place]) - set(used[place]))
    counts = batching.count_replayed(*map(jnp.asarray, (recorded, own, used, mask)))
    assert [float(c) for c in counts] == [replayed, own_differed, used_differed]
    assert 0 < used_differed < own_differed < replayed


def test_scoring_and_training_replay_alike():
    """Behaviour and policy log-probabilities are those of the recorded experts: ratios are 1 before
    the first update, other experts give other values, and every recorded choice is carried out.
    """
    model, weights = policy_and_weights()
    compiled = programs()
    score = functools.partial(local_trainer.score_group, compiled, weights, settings=SETTINGS)
    scored = [score(group=group) for group in GROUPS]
    free = dataclasses.replace(SETTINGS, replays_routing=False)
    for group, found in zip(GROUPS, scored, strict=True):
        routed = local_trainer.group_logprobs(compiled, weights, group, free)
        for rollout, logprob in zip(found.rollouts, routed, strict=True):
            # the first token is drawn after the prompt, which is routed freely
            assert rollout.behavior_logprob[0] == pytest.approx(logprob[0], abs=1e-5)
            assert np.abs(rollout.behavior_logprob[1:] - logprob[1:]).max() > 1e-3
    batches = toy_batches(scored, rows=2, replays_routing=True)
    state = compiled.initial(weights)
    _, metrics = trainer.train_step(compiled, model, state, batches, 2, 1.0)
    assert metrics["ratio/mean_by_lag"] == {"0": pytest.approx(1.0, abs=1e-5)}
    num_read = sum(len(r.tokens) - 1 for g in scored for r in g.rollouts)
    assert metrics["routing/replayed_choices"] == num_read * CONFIG.num_layers * CONFIG.num_chosen
    assert 0.2 < metrics["routing/mismatch_before"] < 0.8  # random choices of 3 in 6
    assert metrics["routing/mismatch_after"] == 0


def test_the_record_of_an_equal_engine_agrees_with_the_trainer():
    """Choices stand at their tokens: read alone and unpacked, as an engine reads, they are those of
    the packed rows, and what is replayed then changes no log-probability.
    """
    graphdef, weights = init_weights(CONFIG, jax.random.key(0))
    rollouts = [r for group in GROUPS for r in group.rollouts]
    tokens, mask = np.zeros((len(rollouts), 16), np.int32), np.zeros((len(rollouts), 16), bool)
    for row, rollout in enumerate(rollouts):
        sequence = np.concatenate([rollout.prompt, rollout.tokens])
        tokens[row, : len(sequence)], mask[row, : len(sequence)] = sequence, True
    read = jax.jit(lambda w, *a: nnx.merge(graphdef, nnx.State(w))(a[0], mask=a[1]).target)
    target_BTLK = np.moveaxis(np.asarray(read(weights, tokens, mask)), 0, 2)
    recorded = iter(target_BTLK[row, mask[row]].astype(np.int16) for row in range(len(rollouts)))
    groups = [
        group.replace_rollouts(
            tuple(dataclasses.replace(r, routing=next(recorded)) for r in group.rollouts)
        )
        for group in GROUPS
    ]
    model, _ = policy_and_weights()
    compiled = programs()
    batches = toy_batches(groups, rows=2, replays_routing=True)
    _, metrics = trainer.train_step(compiled, model, compiled.initial(weights), batches, 2, 1.0)
    assert metrics["routing/replayed_choices"] > 0
    assert metrics["routing/mismatch_before"] == 0
    free = dataclasses.replace(SETTINGS, replays_routing=False)
    for group in groups:
        replayed = local_trainer.group_logprobs(compiled, weights, group, SETTINGS)
        routed = local_trainer.group_logprobs(compiled, weights, group, free)
        for one, other in zip(replayed, routed, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_without_replay_the_step_has_nothing_of_it():
    _, weights = policy_and_weights()
    (batch, *_) = toy_batches(GROUPS, rows=2)
    scalars = jnp.int32(2), jnp.float32(1.0), jnp.float32(9.0), jnp.int32(0)

    def inputs_and_jaxpr(settings, batch):
        made = programs(settings)
        accumulated = jax.eval_shape(made.begin, weights)
        traced = made.accumulate.trace(weights, accumulated, batch, *scalars)
        return len(jax.tree.leaves(accumulated)), str(traced.jaxpr)

    plain = dataclasses.replace(SETTINGS, replays_routing=False)
    num_plain, program = inputs_and_jaxpr(plain, batch)
    shape = (*batch.tokens.shape, CONFIG.num_layers, CONFIG.num_chosen)
    routing = np.full(shape, -1, np.int16)
    num_replaying, replaying = inputs_and_jaxpr(SETTINGS, batch._replace(routing=routing))
    assert num_replaying == num_plain + 3
    assert "i16" in replaying
    assert "i16" not in program
    assert len(program) < len(replaying)


def test_a_rollout_without_routing_is_not_replayed():
    with pytest.raises(AssertionError, match="recorded no routing"):
        toy_batches([toy_group(0, (1.0, 0.0))], replays_routing=True)
