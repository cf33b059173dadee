import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.rollout import slots

LOGITS = np.array([2.0, 0.5, -1.0, 1.2, 0.0], np.float32)
NUM_DRAWS = 200_000
CRITICAL = 18.47  # chi-square, 4 degrees of freedom, alpha = 0.001


def probabilities(temperature: float) -> np.ndarray:
    scaled = LOGITS.astype(np.float64) / temperature
    return np.exp(scaled) / np.exp(scaled).sum()


def draw_many(temperature: float, greedy: bool = False) -> slots.Drawn:
    numbers = jnp.arange(NUM_DRAWS, dtype=jnp.uint32)
    ones = jnp.ones_like(numbers)
    key = slots.stream_keys(jnp.stack([3 * ones, ones, ones, ones, numbers], axis=1))
    return slots.draw(
        jnp.broadcast_to(jnp.asarray(LOGITS)[None], (NUM_DRAWS, 5)),
        key,
        jnp.full(NUM_DRAWS, 7),
        drawing(jnp.full(NUM_DRAWS, temperature, jnp.float32), greedy),
    )


def drawing(temperature, greedy=False, truncation=None):
    """Without tokens that end a sample."""
    stops = jnp.zeros((len(temperature), 0), int)
    return slots.Drawing(temperature, jnp.full(len(temperature), greedy), stops, truncation)


def kept_by_hand(logits, top_k, top_p, min_p) -> list[int]:
    """Tokens that may be drawn, in plain Python: k, then p of those, then min-p."""
    share = np.exp(logits.astype(np.float64) - logits.max())
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if top_k:
        order = order[:top_k]
    if top_p < 1:
        total, nucleus = 0.0, []
        for token in order:
            if total >= top_p * share[order].sum():
                break
            nucleus.append(token)
            total += share[token]
        order = nucleus
    return sorted(token for token in order if share[token] >= min_p or token == order[0])


TRUNCATIONS = [
    (0, 1.0, 0.0),
    (3, 1.0, 0.0),
    (0, 0.8, 0.0),
    (0, 1.0, 0.3),
    (4, 0.9, 0.1),
    (1, 1.0, 0.0),
    (0, 1e-6, 1.0),
]


def test_truncation_keeps_what_counting_by_hand_keeps():
    random = np.random.default_rng(0)
    rows = np.concatenate([random.normal(size=(6, 9)), np.round(random.normal(size=(6, 9)))])
    rows = rows.astype(np.float32)  # the rounded ones have ties
    for settings in TRUNCATIONS:
        full = [np.full(len(rows), value) for value in settings]
        arrays = [jnp.asarray(full[0], jnp.int32), *(jnp.asarray(f, jnp.float32) for f in full[1:])]
        cut = np.asarray(slots.truncate(jnp.asarray(rows), slots.Truncation(*arrays)))
        for row, found in zip(rows, cut, strict=True):
            kept = kept_by_hand(row, *settings)
            assert np.flatnonzero(np.isfinite(found)).tolist() == kept
            np.testing.assert_array_equal(found[kept], row[kept])


def test_rows_are_truncated_each_as_it_asks():
    rows = np.tile(LOGITS, (len(TRUNCATIONS), 1))
    top_k, top_p, min_p = (np.array(column) for column in zip(*TRUNCATIONS, strict=True))
    cut = slots.truncate(
        jnp.asarray(rows),
        slots.Truncation(
            jnp.asarray(top_k, jnp.int32),
            jnp.asarray(top_p, jnp.float32),
            jnp.asarray(min_p, jnp.float32),
        ),
    )
    for found, settings in zip(np.asarray(cut), TRUNCATIONS, strict=True):
        assert np.flatnonzero(np.isfinite(found)).tolist() == kept_by_hand(LOGITS, *settings)


def test_truncated_draws_follow_what_is_left_and_say_so():
    """n = 200,000, alpha = 0.001, over the three tokens that top-k 3 leaves; 2 degrees."""
    ones = jnp.ones(NUM_DRAWS, jnp.float32)
    truncation = slots.Truncation(jnp.full(NUM_DRAWS, 3), ones, 0 * ones)
    numbers = jnp.arange(NUM_DRAWS, dtype=jnp.uint32)
    stream = jnp.stack([numbers * 0 + 5, *[numbers * 0] * 3, numbers], axis=1)
    drawn = slots.draw(
        jnp.broadcast_to(jnp.asarray(LOGITS)[None], (NUM_DRAWS, 5)),
        slots.stream_keys(stream),
        jnp.full(NUM_DRAWS, 7),
        drawing(0.7 * ones, truncation=truncation),
    )
    tokens, kept = np.asarray(drawn.token), [0, 1, 3]
    assert set(tokens) == set(kept)

    def statistic(temperature):
        share = probabilities(temperature)[kept]
        expected = share / share.sum() * NUM_DRAWS
        return float(((np.bincount(tokens)[kept] - expected) ** 2 / expected).sum())

    assert statistic(0.7) < 13.82
    assert statistic(0.7 * 1.02) > 13.82
    share = probabilities(0.7) / probabilities(0.7)[kept].sum()
    np.testing.assert_allclose(drawn.log_prob[:50], np.log(share[tokens[:50]]), atol=1e-5)


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
    keys = slots.stream_keys(jnp.asarray(stream))
    for numbers, key_data in zip(stream, keys, strict=True):
        key = jax.random.key(numbers[0])
        for number in numbers[1:]:
            key = jax.random.fold_in(key, number)
        assert (jax.random.key_data(key) == key_data).all()


def test_positions_and_attempts_draw_independently():
    """Neighbouring positions, and neighbouring attempts, agree as often as chance has it."""
    numbers = jnp.arange(20_000, dtype=jnp.uint32)
    ones = jnp.ones_like(numbers)
    key = slots.stream_keys(jnp.stack([ones, ones, ones, ones, numbers], axis=1))
    logits = jnp.zeros((20_000, 4))

    @jax.jit
    def at(position):
        where = jnp.full(20_000, position)
        return slots.draw(logits, key, where, drawing(jnp.ones(20_000))).token

    one, other = np.asarray(at(4)), np.asarray(at(5))
    assert abs((one == other).mean() - 0.25) < 0.012  # four standard errors
    assert abs((one[1:] == one[:-1]).mean() - 0.25) < 0.012


def test_tokens_of_many_blocks_follow_the_distribution_and_none_without_weight_is_drawn():
    """600 words, so blocks of 256, 256 and 88, and the second without weight but for one word."""
    scores = np.random.default_rng(0).normal(size=600).astype(np.float32)
    scores[256:511] = -np.inf
    numbers = jnp.arange(20_000, dtype=jnp.uint32)
    key = slots.stream_keys(jnp.stack([numbers * 0 + 2, *[numbers * 0] * 3, numbers], axis=1))
    drawn = jax.jit(slots.draw)(
        jnp.broadcast_to(jnp.asarray(scores), (20_000, 600)),
        key,
        jnp.full(20_000, 3),
        drawing(jnp.ones(20_000)),
    )
    share = np.exp(scores.astype(np.float64)) / np.exp(scores.astype(np.float64)).sum()
    tokens, kept = np.asarray(drawn.token), share > 0
    counts = np.bincount(tokens, minlength=600)
    assert counts[~kept].sum() == 0
    assert counts[511] > 0
    expected = share[kept] * 20_000
    assert float(((counts[kept] - expected) ** 2 / expected).sum()) < 432  # 344 degrees, 0.001
    np.testing.assert_allclose(drawn.log_prob, np.log(share[tokens]), atol=1e-5)
    ones = jnp.ones(1)
    likeliest = slots.draw(
        jnp.asarray(scores)[None], key[:1], ones.astype(int), drawing(0.5 * ones, greedy=True)
    )
    assert likeliest.token == scores.argmax()
