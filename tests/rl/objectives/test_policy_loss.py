import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.rl import objectives, rewards

ROWS, LENGTH, GROUPS, GROUP_SIZE, T_MAX = 5, 24, 2, 4, 10


def make_case(seed=0, rows=ROWS):
    """Packed rows with two segments each, prompts in front, and padding behind."""
    random = np.random.default_rng(seed)
    segment_ids = np.zeros((rows, LENGTH), np.int32)
    loss_mask = np.zeros((rows, LENGTH), bool)
    for row in range(rows):
        start = 0
        for segment in (1, 2):
            length = int(random.integers(6, 12))
            segment_ids[row, start : start + length] = segment
            loss_mask[row, start + 3 : start + length] = True
            start += length
    behavior = -3 * random.random((rows, LENGTH))
    case = {
        "policy_logprob": behavior + 0.6 * random.normal(size=behavior.shape),
        "behavior_logprob": behavior,
        "engine_logprob": behavior + 0.4 * random.normal(size=behavior.shape),
        "advantage": np.where(loss_mask, random.normal(size=behavior.shape), 0.0),
        "loss_mask": loss_mask,
        "segment_ids": segment_ids,
        "reference_logprob": behavior + 0.3 * random.normal(size=behavior.shape),
        "version_lag": random.integers(0, 3, size=behavior.shape).astype(np.int32),
    }
    return {
        name: value.astype(np.float32) if value.dtype == np.float64 else value
        for name, value in case.items()
    }


def longcat(**changes):
    return dataclasses.replace(
        objectives.longcat_objective(group_size=GROUP_SIZE, max_response_tokens=T_MAX), **changes
    )


def grpo():
    return objectives.grpo_objective(group_size=GROUP_SIZE, beta=0.05)


policy_loss = jax.jit(
    objectives.policy_loss, static_argnames=("objective", "num_groups", "num_lags")
)


def loss_of(objective, case, num_groups=GROUPS, num_lags=3):
    return policy_loss(objective, num_groups=num_groups, num_lags=num_lags, **case)


def gradient_of(objective, case, **kwargs):
    def loss(policy_logprob):
        return loss_of(objective, case | {"policy_logprob": policy_logprob}, **kwargs)[0]

    return np.asarray(jax.grad(loss)(jnp.asarray(case["policy_logprob"])))


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
    ("ratio", "advantage", "moves"),
    [
        (0.1, 1.0, True),  # no lower clip for positive advantages
        (1.27, 1.0, True),
        (1.29, 1.0, False),
        (0.79, -1.0, False),
        (0.81, -1.0, True),
        (2.9, -1.0, True),
        (3.1, -1.0, False),
        (5.0, 0.0, True),
    ],
)
def test_where_the_triplet_clip_stops_a_token(ratio, advantage, moves):
    clip = objectives.TripletClip()
    gradient = jax.grad(lambda r: objectives.clipped_gain(r, jnp.array(advantage), clip)[0])(ratio)
    _, is_clipped = objectives.clipped_gain(jnp.array(ratio), jnp.array(advantage), clip)
    assert bool(is_clipped) != moves
    np.testing.assert_allclose(gradient, advantage if moves else 0.0, atol=1e-6)


def test_huge_log_ratios_stay_finite():
    case = make_case(8)
    case["policy_logprob"] = case["behavior_logprob"] + np.float32(500)
    loss, _ = loss_of(longcat(), case)
    assert np.isfinite(loss)
    assert np.isfinite(gradient_of(longcat(), case)).all()


def test_engine_ratio_is_detached_and_capped():
    case = make_case(9)
    case["engine_logprob"] = case["behavior_logprob"] - np.float32(3)
    capped = case | {"engine_logprob": case["behavior_logprob"] - np.float32(math.log(2))}
    np.testing.assert_allclose(
        loss_of(longcat(), case)[0], loss_of(longcat(), capped)[0], rtol=1e-5
    )

    def loss(engine_logprob):
        return loss_of(longcat(), case | {"engine_logprob": engine_logprob})[0]

    np.testing.assert_array_equal(jax.grad(loss)(jnp.asarray(case["engine_logprob"])), 0)


def test_metrics_by_lag():
    case = make_case(11)
    case["version_lag"][0] = 7  # beyond the last lag: counted there
    _, sums = loss_of(longcat(), case)
    metrics = objectives.summarise(sums)
    ratio = np.exp(case["policy_logprob"] - case["behavior_logprob"])
    positive = case["advantage"] > 0
    clipped = np.where(positive, ratio > 1.28, (ratio < 0.8) | (ratio > 3.0))
    for lag in range(3):
        here = case["loss_mask"] & (np.minimum(case["version_lag"], 2) == lag)
        assert metrics["tokens_by_lag"][str(lag)] == here.sum()
        assert metrics["ratio/mean_by_lag"][str(lag)] == pytest.approx(ratio[here].mean(), rel=1e-5)
        assert metrics["clip/fraction_by_lag"][str(lag)] == pytest.approx(
            clipped[here].mean(), rel=1e-5
        )
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
        case = {
            "policy_logprob": policy_logprob[:, None],
            "reference_logprob": jnp.asarray(log_reference, jnp.float32)[:, None],
        }
        ones = jnp.ones((7, 1), jnp.float32)
        objective = dataclasses.replace(grpo(), kl=objectives.K2KL(beta=1.0))
        plain = dataclasses.replace(grpo(), kl=objectives.K2KL(beta=0.0))
        rest = {
            "behavior_logprob": jax.lax.stop_gradient(policy_logprob)[:, None],
            "engine_logprob": jax.lax.stop_gradient(policy_logprob)[:, None],
            "advantage": ones * 0,
            "loss_mask": jnp.ones((7, 1), bool),
            "segment_ids": jnp.ones((7, 1), jnp.int32),
        }
        with_, without = (
            objectives.policy_loss(**case, **rest, num_groups=1, objective=one, num_lags=1)[0]
            for one in (objective, plain)
        )
        return with_ - without

    per_token = jax.grad(penalty)(jnp.asarray(log_policy, jnp.float32))
    scale = per_token / distance  # the same for all: the reduction's share of a token
    assert scale[0] > 0
    assert np.allclose(scale, scale[0], rtol=1e-4)
    score = np.eye(7) - probability  # d log policy(token) / d logits
    of_penalty = ((probability * np.asarray(per_token / scale))[:, None] * score).sum(0)
    assert np.allclose(of_penalty, of_kl, rtol=1e-4, atol=1e-6)


def test_kl_without_a_reference_is_refused():
    case = make_case() | {"reference_logprob": None}
    with pytest.raises(ValueError, match="reference_logprob"):
        loss_of(grpo(), case)


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
        lambda: objectives.LinearBound(end=math.nan, num_steps=3),
        lambda: objectives.SteppedBound(steps=(1,), values=(math.nan,)),
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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["engine_logprob", "behavior_logprob", "policy_logprob"])
def test_a_ratio_that_is_not_finite_weighs_nothing(name, bad):
    case = make_case(7)
    row, token = np.argwhere(case["loss_mask"])[3]
    spoiled = case | {name: case[name].copy()}
    without = case | {"loss_mask": case["loss_mask"].copy()}
    spoiled[name][row, token], without["loss_mask"][row, token] = bad, False
    loss, sums = loss_of(longcat(), spoiled)
    np.testing.assert_allclose(loss, loss_of(longcat(), without)[0], rtol=1e-6)
    np.testing.assert_allclose(gradient_of(longcat(), spoiled), gradient_of(longcat(), without))
    assert float(sums.num_dropped) == 1
