import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.rl import objectives, rewards
from tests.rl.objectives import cases

LONGCAT = objectives.longcat_objective(group_size=4, max_response_tokens=10)
GRPO = objectives.grpo_objective(group_size=4, beta=0.05)


def test_the_eq4_trap():
    """Printed literally, the outer max leaves positive advantages no gradient; ours has one."""

    def literal(ratio, advantage, clip):
        inner = jnp.minimum(
            ratio * advantage,
            jnp.clip(ratio, 1 - clip.eps_neg_low, 1 + clip.eps_pos_high) * advantage,
        )
        return jnp.maximum(inner, clip.eps_neg_high * advantage)

    clip = objectives.TripletClip()
    assert jax.grad(literal)(1.0, 1.0, clip) == 0
    assert jax.grad(lambda r: objectives.clipped_gain(r, jnp.array(1.0), clip)[0])(1.0) == 1
    for ratio in (0.5, 0.9, 1.1, 2.0, 5.0):  # negative advantages agree with the printed form
        ours, _ = objectives.clipped_gain(jnp.array(ratio), jnp.array(-0.7), clip)
        np.testing.assert_allclose(ours, literal(ratio, -0.7, clip), rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (objectives.LinearBound(end=0.1, num_steps=4), {0: 0.3, 1: 0.25, 2: 0.2, 4: 0.1, 9: 0.1}),
        (
            objectives.SteppedBound(steps=(3, 8), values=(0.2, 0.05)),
            {0: 0.3, 2: 0.3, 3: 0.2, 7: 0.2, 8: 0.05, 99: 0.05},
        ),
    ],
)
def test_a_bound_goes_from_the_clips_own_value_where_its_schedule_leads(schedule, expected):
    found = [float(objectives.bound_at(schedule, 0.3, step)) for step in expected]
    np.testing.assert_allclose(found, [*expected.values()], rtol=1e-6)


def test_huge_log_ratios_stay_finite():
    batch, _ = cases.packed(cases.responses(8))
    batch["policy_logprob"] = batch["behavior_logprob"] + np.float32(500)
    loss, gradient, _ = cases.evaluate(LONGCAT, batch)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


def test_the_policy_alone_has_a_gradient():
    batch = jax.tree.map(jnp.asarray, cases.packed(cases.responses(9))[0])
    others = {name: batch.pop(name) for name in ("engine_logprob", "behavior_logprob")}

    def loss(others):
        return objectives.policy_loss(LONGCAT, **batch, **others, num_groups=2)[0]

    jax.tree.map(lambda g: np.testing.assert_array_equal(g, 0), jax.grad(loss)(others))


def test_metrics_by_lag():
    case, _ = cases.packed(cases.responses(11, count=12), rows=5)
    lag = np.random.default_rng(11).integers(0, 3, size=case["loss_mask"].shape)
    lag[0] = 7  # beyond the last lag: counted there
    case["advantage"][1] = 0  # which is never clipped
    given = jax.tree.map(jnp.asarray, case | {"version_lag": lag})
    _, sums = objectives.policy_loss(LONGCAT, **given, num_groups=2, num_lags=3)
    metrics = objectives.summarise(sums)
    ratio, advantage = np.exp(case["policy_logprob"] - case["behavior_logprob"]), case["advantage"]
    below = (advantage < 0) & ((ratio < 0.8) | (ratio > 3.0))
    clipped = np.where(advantage > 0, ratio > 1.28, below)
    for h in range(3):
        here = case["loss_mask"] & (np.minimum(lag, 2) == h)
        assert metrics["tokens_by_lag"][str(h)] == here.sum()
        for name, of_tokens in (("ratio/mean_by_lag", ratio), ("clip/fraction_by_lag", clipped)):
            assert metrics[name][str(h)] == pytest.approx(of_tokens[here].mean(), rel=1e-5)
    engine = np.exp(case["behavior_logprob"] - case["engine_logprob"])[case["loss_mask"]]
    assert metrics["engine_ratio/max"] == pytest.approx(engine.max(), rel=1e-5)
    assert metrics["engine_ratio/mean"] == pytest.approx(engine.mean(), rel=1e-5)


def test_k2_follows_the_gradient_of_the_reverse_kl():
    """Over all tokens of a small vocabulary, weighed by the policy's own probabilities."""
    rng = np.random.default_rng(5)
    logits, reference = rng.normal(size=(2, 7)) * 2
    probability = np.exp(logits) / np.exp(logits).sum()
    log_policy = np.log(probability)
    log_reference = reference - np.log(np.exp(reference).sum())
    distance = log_policy - log_reference
    kl = (probability * distance).sum()
    of_kl = probability * (distance - kl)  # d KL(policy | reference) / d logits

    def penalty(policy_logprob):  # one row per token of the vocabulary, one token long
        on_policy, ones = jax.lax.stop_gradient(policy_logprob)[:, None], jnp.ones((7, 1), int)
        case = {
            "policy_logprob": policy_logprob[:, None],
            "reference_logprob": jnp.asarray(log_reference, jnp.float32)[:, None],
            "behavior_logprob": on_policy,
            "engine_logprob": on_policy,
            "advantage": jnp.zeros((7, 1)),
            "loss_mask": ones > 0,
            "segment_ids": ones,
        }
        with_, without = (
            objectives.policy_loss(
                dataclasses.replace(GRPO, kl=objectives.K2KL(beta=beta)), **case, num_groups=1
            )[0]
            for beta in (1.0, 0.0)
        )
        return with_ - without

    per_token = jax.grad(penalty)(jnp.asarray(log_policy, jnp.float32))
    scale = per_token / distance  # the same for all: the reduction's share of a token
    assert scale[0] > 0
    assert np.allclose(scale, scale[0], rtol=1e-4)
    score = np.eye(7) - probability  # d log policy(token) / d logits
    of_penalty = ((probability * np.asarray(per_token / scale))[:, None] * score).sum(0)
    assert np.allclose(of_penalty, of_kl, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: objectives.TripletClip(eps_neg_high=0.5),
        lambda: objectives.TripletClip(eps_neg_low=1.5),
        lambda: objectives.SymmetricClip(eps=-0.1),
        lambda: objectives.TripletClip(eps_pos_high=math.nan),
        lambda: objectives.TripletClip(eps_neg_high=math.nan),
        lambda: objectives.AsymmetricClip(eps_high=math.nan),
        lambda: objectives.K3KL(beta=math.nan),
        lambda: objectives.K2KL(beta=math.inf),
        lambda: objectives.LinearBound(end=-0.1, num_steps=4),
        lambda: objectives.LinearBound(end=0.1, num_steps=0),
        lambda: objectives.LinearBound(end=math.nan, num_steps=3),
        lambda: objectives.SteppedBound(steps=(1,), values=(math.nan,)),
        lambda: objectives.SteppedBound(steps=(), values=()),
        lambda: objectives.SteppedBound(steps=(0,), values=(0.1,)),
        lambda: objectives.SteppedBound(steps=(5, 5), values=(0.1, 0.2)),
        lambda: objectives.SteppedBound(steps=(5, 6), values=(0.1,)),
        lambda: objectives.SteppedBound(steps=(5,), values=(-0.1,)),
        lambda: objectives.AsymmetricClip(eps_low=1.2),
        lambda: objectives.DetachedClip(high=0.5),
        lambda: objectives.Band(low=2.0, high=1.0),
        lambda: objectives.EngineTrust(veto_below=1.0),
        lambda: objectives.EngineTrust(sequence_cap=0.0),
        lambda: dataclasses.replace(LONGCAT, engine=objectives.EngineTrust(sequence_cap=2.0)),
        lambda: objectives.K2KL(beta=-1.0),
        lambda: objectives.K3KL(beta=-1.0),
        lambda: objectives.TokenRatio(engine_cap=0.0),
        lambda: objectives.TokenRatio(max_log_ratio=100.0),
        lambda: objectives.TokenSumOverConstant(group_size=0, max_response_tokens=1),
        lambda: objectives.MeanOfSequenceMeans(group_size=0),
        lambda: rewards.GroupNormalised(eps=0.0),
    ],
)
def test_settings_outside_their_rule_are_refused(make):
    with pytest.raises(ConfigError):
        make()
