import numpy as np
import pytest

from loong_jax.rl import advantages

NORMALISED, MEAN = advantages.GroupNormalised(eps=1e-6), advantages.MeanOnly()


def test_half_right_gives_plus_and_minus_one():
    found = advantages.group_advantages([1.0, 0.0, 0.0, 1.0], NORMALISED)
    np.testing.assert_allclose(found, [1, -1, -1, 1], rtol=1e-5)


def test_against_a_loop():
    rewards = [0.3, 1.0, 0.0, 0.3, 0.9]
    mean = sum(rewards) / 5
    deviation = (sum((r - mean) ** 2 for r in rewards) / 5) ** 0.5
    np.testing.assert_allclose(
        advantages.group_advantages(rewards, NORMALISED),
        [(r - mean) / (deviation + 1e-6) for r in rewards],
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        advantages.group_advantages(rewards, MEAN), [r - mean for r in rewards], rtol=1e-5
    )


@pytest.mark.parametrize("estimator", [NORMALISED, MEAN])
def test_masked_rollouts_leave_the_baseline(estimator):
    masked = advantages.group_advantages([1.0, None, 0.0, 0.0, None], estimator)
    without = advantages.group_advantages([1.0, 0.0, 0.0], estimator)
    np.testing.assert_array_equal(masked[[0, 2, 3]], without)
    np.testing.assert_array_equal(masked[[1, 4]], 0)


@pytest.mark.parametrize("estimator", [NORMALISED, MEAN])
def test_equal_rewards_teach_nothing(estimator):
    np.testing.assert_array_equal(advantages.group_advantages([0.1] * 7, estimator), 0)


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ([1.0, 0.0], "trains"),
        ([1.0, 0.0, None], "trains"),
        ([1.0, 1.0, None], "filtered"),
        ([0.0, 0.0], "filtered"),
        ([1.0, None], "ungradable"),
        ([None, None], "ungradable"),
        ([], "ungradable"),
    ],
)
def test_what_becomes_of_a_group(rewards, signal):
    assert advantages.group_signal(rewards) == signal
    if signal != "trains":
        np.testing.assert_array_equal(advantages.group_advantages(rewards, NORMALISED), 0)
