import dataclasses
import re
import types

import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.problems import verdict as verdicts
from loong_jax.rl import rewards
from tests.doubles.toy_policy import toy_group

RULE = rewards.RewardRule(
    correct=1.0,
    wrong=0.1,
    malformed=-0.2,
    repetitive=-0.5,
    repetition=rewards.RepetitionDetector(threshold=3.0, window=200, min_length=20),
)
ROLLOUT = dataclasses.replace(toy_group(0, (1.0,)).rollouts[0], verdict=None, reward=None)
PLAIN = "the sum of 17 and 25 is 42, so carry one and write two; then 9 times 8"


def reward_of(rule=RULE, **changes):
    return rewards.rollout_reward(dataclasses.replace(ROLLOUT, **changes), rule)


@pytest.mark.parametrize(
    ("verdict", "changes", "reward"),
    [
        (verdicts.correct(), {}, 1.0),
        (verdicts.wrong("value"), {}, 0.1),
        (verdicts.wrong("format"), {}, -0.2),
        (verdicts.ungradable("timeout"), {}, None),
        (None, {}, None),
        (verdicts.correct(), {"finish_reason": "cancelled"}, None),
        (verdicts.correct(), {"failure": "lost"}, None),
    ],
)
def test_what_a_verdict_is_worth_where_a_rollout_finished(verdict, changes, reward):
    assert reward_of(verdict=verdict, **changes) == reward


def test_truncated_is_masked_unless_it_repeats_itself():
    cut = {"finish_reason": "length", "verdict": verdicts.wrong("format")}
    assert reward_of(text=PLAIN, **cut) is None
    assert reward_of(text=PLAIN[:20] + "and so on " * 20, **cut) == -0.5
    assert reward_of(text="abab", **cut) is None  # too short to be called repetitive


def test_truncated_has_the_value_that_the_rule_gives_it():
    cut = {"finish_reason": "length", "verdict": verdicts.correct()}
    rule = dataclasses.replace(RULE, truncated=-0.25)
    assert reward_of(rule, text=PLAIN, **cut) == -0.25
    assert reward_of(rule, text=PLAIN[:20] + "and so on " * 20, **cut) == rule.repetitive
    with pytest.raises(ConfigError, match=r"must exceed .*truncated=2"):
        dataclasses.replace(RULE, truncated=2.0)


def test_truncated_has_the_worth_of_its_verdict_where_the_rule_judges_it():
    rule = dataclasses.replace(RULE, truncated=-0.25, judges_truncated=True)
    for verdict, reward in ((verdicts.correct(), 1.0), (verdicts.wrong("value"), 0.1)):
        assert reward_of(rule, verdict=verdict, finish_reason="length") == reward
    assert reward_of(rule, verdict=None, finish_reason="length") is None


def test_compression_ratio_orders_texts():
    assert rewards.compression_ratio("") == 1.0
    assert rewards.compression_ratio("ab" * 400) > 10 > 3 > rewards.compression_ratio(PLAIN)


def test_bad_rules_are_refused():
    with pytest.raises(ConfigError, match="must exceed"):
        rewards.RewardRule(correct=0.0)
    with pytest.raises(ConfigError, match=r"is not in \(-inf, inf\)"):
        rewards.RewardRule(wrong=float("nan"))
    with pytest.raises(ConfigError, match="threshold"):
        rewards.RepetitionDetector(threshold=0.5)


def judged(number):
    return toy_group(number, (1.0, 0.0, 0.0, None, 1.0, 0.0, 0.0, 0.0))


def test_noise_keeps_mean_variance_masks_and_fate_of_each_group():
    noise = rewards.NoiseReward(seed=3)
    for number in range(50):
        true = [r.reward for r in rewards.reward_group(judged(number), noise.rule).rollouts]
        dealt = [r.reward for r in rewards.reward_group(judged(number), noise).rollouts]
        assert sorted(true, key=str) == sorted(dealt, key=str)
        assert dealt[3] is None
        assert rewards.group_signal(dealt) == rewards.group_signal(true)


def test_noise_is_a_function_of_seed_and_ticket_and_knows_nothing_of_the_answer():
    def dealt(seed, number):
        group = rewards.reward_group(judged(number), rewards.NoiseReward(seed=seed))
        return [r.reward for r in group.rollouts]

    assert dealt(1, 5) == dealt(1, 5)
    seeds = [dealt(1, n) for n in range(400)]
    assert seeds != [dealt(2, n) for n in range(400)]
    share = np.mean([[r is not None and r > 0 for r in row] for row in seeds], axis=0)
    np.testing.assert_allclose(share[[0, 1, 2, 4, 5, 6, 7]], 2 / 7, atol=0.08)


# ---- advantages ----

NORMALISED, MEAN = rewards.GroupNormalised(eps=1e-6), rewards.MeanOnly()


def test_against_a_loop():
    given = [0.3, 1.0, 0.0, 0.3, 0.9]
    mean = sum(given) / 5
    deviation = (sum((r - mean) ** 2 for r in given) / 5) ** 0.5
    np.testing.assert_allclose(
        rewards.group_advantages(given, NORMALISED),
        [(r - mean) / (deviation + 1e-6) for r in given],
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        rewards.group_advantages(given, MEAN), [r - mean for r in given], rtol=1e-5
    )


@pytest.mark.parametrize("estimator", [NORMALISED, MEAN])
def test_masked_rollouts_leave_the_baseline(estimator):
    masked = rewards.group_advantages([1.0, None, 0.0, 0.0, None], estimator)
    without = rewards.group_advantages([1.0, 0.0, 0.0], estimator)
    np.testing.assert_array_equal(masked[[0, 2, 3]], without)
    np.testing.assert_array_equal(masked[[1, 4]], 0)


@pytest.mark.parametrize("estimator", [NORMALISED, MEAN])
def test_equal_rewards_teach_nothing(estimator):
    np.testing.assert_array_equal(rewards.group_advantages([0.1] * 7, estimator), 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros(7), r"7 numbers of shape \(7,\), for 8 rewards"),
        (np.full(8, np.nan), "nan"),
        (None, "None"),
        (["a"] * 8, "0 numbers"),
        ([[1.0], [1.0, 2.0]], "0 numbers"),
    ],
)
def test_advantages_that_are_none_are_refused(given, said):
    estimator = types.SimpleNamespace(advantages=lambda rewards: given)
    rule = r"Namespace: `advantages` gave [^\n]*Return one finite number for each, in the shape "
    with pytest.raises(ConfigError, match=rule + r"\(8,\)\.$") as refused:
        rewards.group_advantages([1.0, *[0.0] * 7], estimator)
    assert re.search(said, str(refused.value))


@pytest.mark.parametrize(
    ("given", "signal"),
    [
        ([1.0, 0.0], "keep"),
        ([1.0, 0.0, None], "keep"),
        ([1.0, 1.0, None], "filtered"),
        ([0.0, 0.0], "filtered"),
        ([1.0, None], "ungradable"),
        ([None, None], "ungradable"),
        ([], "ungradable"),
    ],
)
def test_what_becomes_of_a_group(given, signal):
    assert rewards.group_signal(given) == signal
    if signal != "keep":
        np.testing.assert_array_equal(rewards.group_advantages(given, NORMALISED), 0)
