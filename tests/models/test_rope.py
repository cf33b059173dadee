"""Rotary positions and YaRN, against NumPy written from the papers."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models import decoder, rope
from loong_jax.models.moe import YarnScaling
from tests.doubles import tiny
from tests.models.dense import reference

YARN = YarnScaling(factor=10.0, original_max_position=32_768, mscale=1.0, mscale_all_dim=1.0)


# What transformers 5.23 makes; it rounds every step to float32.
PUBLISHED = [
    (
        (16, 1e7, None),
        [
            *(1.0, 0.1333521455526352, 0.017782794311642647, 0.0023713738191872835),
            *(0.0003162277862429619, 4.216965317027643e-05, 5.62341347176698e-06),
            7.498942409256415e-07,
        ],
    ),
    (
        (8, 50.0, YarnScaling(factor=8.0, original_max_position=32)),
        [1.0, 0.21153391897678375, 0.01767767034471035, 0.006647869944572449],
    ),
]


@pytest.mark.parametrize(("how", "expected"), PUBLISHED)
def test_frequencies_are_rounded_as_where_published_weights_were_trained(how, expected):
    """A turn that is more exact by one rounding is another angle at position 100,000."""
    np.testing.assert_array_equal(rope.frequencies(*how), np.float32(expected))


@pytest.mark.parametrize(("width", "theta", "length"), [(64, 5e6, 32_768), (16, 1e4, 512)])
def test_yarn_blends_frequencies_pair_by_pair(width, theta, length):
    yarn = dataclasses.replace(YARN, original_max_position=length)
    scaling = {"rope_type": "yarn", "factor": 10.0, "original_max_position_embeddings": length}
    scaling |= {"beta_fast": 32, "beta_slow": 1, "attention_factor": 1.0}
    config = {"head_dim": width, "rope_theta": theta, "rope_scaling": scaling}
    expected = np.array([turn for turn, _ in reference.turns(config)])
    np.testing.assert_allclose(rope.frequencies(width, theta, yarn), expected, rtol=3e-7)
    plain = rope.frequencies(width, theta)
    assert expected[0] == plain[0]  # turns often: kept
    assert expected[-1] == pytest.approx(plain[-1] / 10)  # turns rarely: stretched


def test_lengths_too_short_to_turn_follow_the_released_code():
    """The first pair that is not kept may come at or before the last one that is."""
    together = dataclasses.replace(YARN, original_max_position=4)
    plain = rope.frequencies(8, 1e4)
    expected = plain / [1, 10, 10, 10]
    np.testing.assert_allclose(rope.frequencies(8, 1e4, together), expected, rtol=3e-7)
    before = dataclasses.replace(YARN, original_max_position=1)
    np.testing.assert_array_equal(rope.frequencies(8, 10.0, before), rope.frequencies(8, 10.0))


def test_mscale_is_squared_into_scores_and_cancels_in_the_rotation():
    m = 0.1 * math.log(10) + 1
    config = tiny.smallest_config(yarn=YARN)
    plain = tiny.smallest_config().attention_scale
    assert config.attention_scale == pytest.approx(plain * m * m)
    assert YARN.pair_scale == 1
    assert dataclasses.replace(YARN, mscale_all_dim=0.0).pair_scale == pytest.approx(m)
    assert dataclasses.replace(YARN, rotary_scale=0.5).pair_scale == 0.5


def test_pairs_are_neighbours():
    """A turn by 90 degrees takes (x0, x1) to (-x1, x0); the result holds first components first."""
    x = np.arange(1.0, 5.0, dtype=np.float32).reshape(1, 1, 4)
    quarter = dataclasses.replace(YARN, factor=1.0, rotary_scale=2.0)
    position = jnp.ones((1, 1), jnp.int32)
    angles = rope.frequencies(4, 1e4)
    pairs = x.reshape(2, 2)
    turned = [
        pairs[:, 0] * np.cos(angles) - pairs[:, 1] * np.sin(angles),
        pairs[:, 1] * np.cos(angles) + pairs[:, 0] * np.sin(angles),
    ]
    found = rope.rotate(jnp.asarray(x), position, 1e4)
    np.testing.assert_allclose(found[0, 0], np.concatenate(turned), rtol=1e-6)
    doubled = rope.rotate(jnp.asarray(x), position, 1e4, quarter)
    np.testing.assert_allclose(doubled, 2 * found, rtol=1e-6)


def test_refuses_what_is_not_positive():
    with pytest.raises(ConfigError, match="factor"):
        YarnScaling(factor=0.0, original_max_position=1)


def test_positions_restart_with_every_segment():
    segments = jnp.array([[1, 1, 2, 2, 2, 0], [0, 0, 1, 1, 1, 3]])
    np.testing.assert_array_equal(
        decoder.restarting_positions(segments), [[0, 1, 0, 1, 2, 0], [0, 1, 0, 1, 2, 0]]
    )
