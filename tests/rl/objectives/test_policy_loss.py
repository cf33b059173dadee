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


def eq4_by_hand(case, *, cap=2.0, neg_low=0.2, neg_high=3.0, pos_high=0.28):
    """Loss and gradient of eq. 4 in float64, token by token, by the sign of the advantage."""
    total, gradient = 0.0, np.zeros((len(case["loss_mask"]), LENGTH))
    for b, t in zip(*np.nonzero(case["loss_mask"]), strict=True):
        new, old, sampled, gain = (
            float(case[name][b, t])
            for name in ("policy_logprob", "behavior_logprob", "engine_logprob", "advantage")
        )
        ratio, weight = math.exp(new - old), min(math.exp(old - sampled), cap)
        if gain > 0:
            kept = min(ratio, 1 + pos_high)
            moves = ratio < 1 + pos_high
        else:
            kept = min(max(ratio, 1 - neg_low), neg_high)
            moves = 1 - neg_low < ratio < neg_high
        total += weight * kept * gain
        gradient[b, t] = weight * gain * ratio if moves else 0.0
    denominator = GROUPS * GROUP_SIZE * T_MAX
    return -total / denominator, -gradient / denominator


def eq3_by_hand(case, *, eps=0.2, beta=0.05):
    total = 0.0
    for b in range(len(case["loss_mask"])):
        for segment in range(1, LENGTH + 1):
            tokens = np.nonzero((case["segment_ids"][b] == segment) & case["loss_mask"][b])[0]
            mean = 0.0
            for t in tokens:
                new, old, reference, gain = (
                    float(case[name][b, t])
                    for name in (
                        "policy_logprob",
                        "behavior_logprob",
                        "reference_logprob",
                        "advantage",
                    )
                )
                ratio = math.exp(new - old)
                clipped = min(max(ratio, 1 - eps), 1 + eps)
                k3 = math.exp(reference - new) - (reference - new) - 1
                mean += (min(ratio * gain, clipped * gain) - beta * k3) / len(tokens)
            total += mean
    return -total / (GROUPS * GROUP_SIZE)


def test_eq4_and_its_gradient_equal_the_loop_over_tokens():
    case = make_case()
    expected, gradient = eq4_by_hand(case)
    loss, _ = loss_of(longcat(), case)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient_of(longcat(), case), gradient, rtol=2e-5, atol=1e-9)


def test_eq4_reads_every_setting():
    case = make_case(1)
    objective = longcat(
        ratio=objectives.TokenRatio(engine_cap=1.1),
        clip=objectives.TripletClip(eps_neg_low=0.4, eps_neg_high=1.3, eps_pos_high=0.1),
    )
    expected, gradient = eq4_by_hand(case, cap=1.1, neg_low=0.4, neg_high=1.3, pos_high=0.1)
    np.testing.assert_allclose(loss_of(objective, case)[0], expected, rtol=1e-5)
    np.testing.assert_allclose(gradient_of(objective, case), gradient, rtol=2e-5, atol=1e-9)


def test_eq3_equals_the_loop_over_responses_and_finite_differences():
    case = make_case(2)
    np.testing.assert_allclose(loss_of(grpo(), case)[0], eq3_by_hand(case), rtol=5e-6)
    gradient = gradient_of(grpo(), case)
    step = 1e-5
    for b, t in list(zip(*np.nonzero(case["loss_mask"]), strict=True))[::7]:
        sides = []
        for sign in (1, -1):
            moved = case["policy_logprob"].astype(np.float64)
            moved[b, t] += sign * step
            sides.append(eq3_by_hand(case | {"policy_logprob": moved}))
        np.testing.assert_allclose(
            gradient[b, t], (sides[0] - sides[1]) / (2 * step), rtol=1e-3, atol=1e-7
        )


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


@pytest.mark.parametrize("objective", [longcat(), grpo()], ids=["eq4", "eq3"])
def test_on_policy_gradient_is_reinforce(objective):
    """Ratios of 1: the gradient of -sum(advantage * log pi) with the objective's weights."""
    case = make_case(3)
    case["policy_logprob"] = case["behavior_logprob"] = case["engine_logprob"]
    case["reference_logprob"] = case["policy_logprob"]
    if isinstance(objective.reduction, objectives.TokenSumOverConstant):
        weight = np.full((ROWS, LENGTH), 1 / (GROUPS * GROUP_SIZE * T_MAX))
    else:
        length = np.array(
            [
                [max(1, np.sum(m & (s == s[t]))) for t in range(LENGTH)]
                for m, s in zip(case["loss_mask"], case["segment_ids"], strict=True)
            ]
        )
        weight = 1 / (GROUPS * GROUP_SIZE * length)
    expected = -np.where(case["loss_mask"], case["advantage"] * weight, 0)
    np.testing.assert_allclose(gradient_of(objective, case), expected, rtol=1e-6, atol=1e-9)
    _, sums = loss_of(objective, case)
    metrics = objectives.summarise(sums)
    assert all(value == pytest.approx(1) for value in metrics["ratio/mean_by_lag"].values())
    assert metrics["engine_ratio/max"] == pytest.approx(1)


@pytest.mark.parametrize("objective", [longcat(), grpo()], ids=["eq4", "eq3"])
def test_microbatches_and_order_of_rows_change_nothing(objective):
    case = make_case(4, rows=6)
    whole, sums = loss_of(objective, case)
    parts = [
        loss_of(objective, {name: value[rows] for name, value in case.items()})
        for rows in ([4, 0], [3, 1], [5, 2])
    ]
    np.testing.assert_allclose(sum(loss for loss, _ in parts), whole, rtol=1e-5)
    added = parts[0][1].add(parts[1][1]).add(parts[2][1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), added, sums)
    empty = {name: np.zeros_like(value[:2]) for name, value in case.items()}
    padded = {name: np.concatenate([value, empty[name]]) for name, value in case.items()}
    np.testing.assert_allclose(loss_of(objective, padded)[0], whole, rtol=1e-6)


@pytest.mark.parametrize("objective", [longcat(), grpo()], ids=["eq4", "eq3"])
def test_packing_changes_nothing(objective):
    case = make_case(5)
    rows = []
    for b in range(ROWS):  # one segment per row, shifted to its start
        for segment in (1, 2):
            here = case["segment_ids"][b] == segment
            rows.append(
                {
                    name: np.concatenate(
                        [value[b][here], np.zeros(LENGTH - here.sum(), value.dtype)]
                    )
                    for name, value in case.items()
                }
            )
            rows[-1]["segment_ids"] = (rows[-1]["segment_ids"] > 0).astype(np.int32)
    apart = {name: np.stack([row[name] for row in rows]) for name in case}
    np.testing.assert_allclose(loss_of(objective, apart)[0], loss_of(objective, case)[0], rtol=1e-5)


@pytest.mark.parametrize("objective", [longcat(), grpo()], ids=["eq4", "eq3"])
def test_all_masked_is_zero_with_a_zero_gradient(objective):
    case = make_case(6) | {"loss_mask": np.zeros((ROWS, LENGTH), bool)}
    case["policy_logprob"] = np.full_like(case["policy_logprob"], np.nan)
    loss, sums = loss_of(objective, case)
    assert float(loss) == 0
    np.testing.assert_array_equal(gradient_of(objective, case), 0)
    assert objectives.summarise(sums)["ratio/mean_by_lag"] == {}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["engine_logprob", "behavior_logprob", "policy_logprob"])
def test_a_ratio_that_is_not_finite_weighs_nothing(name, bad):
    case = make_case(7)
    b, t = np.argwhere(case["loss_mask"])[3]
    spoiled = case | {name: case[name].copy()}
    spoiled[name][b, t] = bad
    without = case | {"loss_mask": case["loss_mask"].copy()}
    without["loss_mask"][b, t] = False
    loss, sums = loss_of(longcat(), spoiled)
    np.testing.assert_allclose(loss, loss_of(longcat(), without)[0], rtol=1e-6)
    np.testing.assert_allclose(gradient_of(longcat(), spoiled), gradient_of(longcat(), without))
    assert float(sums.num_dropped) == 1


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


def test_masked_rollouts_stay_in_the_denominator():
    case = make_case(10)
    fewer = case | {"loss_mask": case["loss_mask"] & (case["segment_ids"] == 1)}
    expected, _ = eq4_by_hand(fewer)  # its denominator is the constant one
    np.testing.assert_allclose(loss_of(longcat(), fewer)[0], expected, rtol=1e-5)


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
