import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.rollout import draw

LOGITS = np.array([2.0, 0.5, -1.0, 1.2, 0.0], np.float32)
NUM_DRAWS = 200_000
CRITICAL = 18.47  # chi-square, 4 degrees of freedom, alpha = 0.001


def probabilities(temperature: float) -> np.ndarray:
    scaled = LOGITS.astype(np.float64) / temperature
    return np.exp(scaled) / np.exp(scaled).sum()


def draw_many(temperature: float, greedy: bool = False) -> draw.Drawn:
    numbers = jnp.arange(NUM_DRAWS, dtype=jnp.uint32)
    ones = jnp.ones_like(numbers)
    key = draw.stream_keys(jnp.stack([3 * ones, ones, ones, ones, numbers], axis=1))
    return draw.draw(
        jnp.broadcast_to(jnp.asarray(LOGITS)[None], (NUM_DRAWS, 5)),
        key,
        jnp.full(NUM_DRAWS, 7),
        jnp.full(NUM_DRAWS, temperature, jnp.float32),
        jnp.full(NUM_DRAWS, greedy),
    )


def chi_square(tokens: np.ndarray, temperature: float) -> float:
    expected = probabilities(temperature) * len(tokens)
    return float(((np.bincount(tokens, minlength=5) - expected) ** 2 / expected).sum())


def test_draws_follow_the_distribution_and_a_temperature_2_percent_off_is_caught():
    tokens = np.asarray(jax.jit(draw_many)(0.7).token)
    assert chi_square(tokens, 0.7) < CRITICAL
    assert chi_square(tokens, 0.7 * 1.02) > CRITICAL
    assert chi_square(tokens, 0.7 / 1.02) > CRITICAL


def test_log_prob_is_that_of_the_sampled_distribution():
    drawn = jax.jit(draw_many)(0.7)
    expected = np.log(probabilities(0.7))[np.asarray(drawn.token)]
    np.testing.assert_allclose(drawn.log_prob, expected, atol=1e-6)


def test_greedy_takes_the_likeliest_and_reports_it_under_the_temperature():
    drawn = jax.jit(draw_many, static_argnums=1)(2.0, True)
    assert set(np.asarray(drawn.token)) == {0}
    np.testing.assert_allclose(drawn.log_prob, np.log(probabilities(2.0))[0], atol=1e-6)


def test_keys_are_the_seed_folded_with_the_stream():
    stream = np.array([[5, 4_000_000_000, 7, 0, 2], [5, 4_000_000_000, 7, 0, 3]], np.uint32)
    keys = draw.stream_keys(jnp.asarray(stream))
    for numbers, key_data in zip(stream, keys, strict=True):
        key = jax.random.key(numbers[0])
        for number in numbers[1:]:
            key = jax.random.fold_in(key, number)
        assert (jax.random.key_data(key) == key_data).all()


def test_positions_and_attempts_draw_independently():
    """Neighbouring positions, and neighbouring attempts, agree as often as chance has it."""
    numbers = jnp.arange(20_000, dtype=jnp.uint32)
    ones = jnp.ones_like(numbers)
    key = draw.stream_keys(jnp.stack([ones, ones, ones, ones, numbers], axis=1))
    logits = jnp.zeros((20_000, 4))

    @jax.jit
    def at(position):
        where = jnp.full(20_000, position)
        return draw.draw(logits, key, where, jnp.ones(20_000), jnp.zeros(20_000, bool)).token

    one, other = np.asarray(at(4)), np.asarray(at(5))
    assert abs((one == other).mean() - 0.25) < 0.012  # four standard errors
    assert abs((one[1:] == one[:-1]).mean() - 0.25) < 0.012
