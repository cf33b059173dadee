import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.rollout import slots

LOGITS = np.array([2.0, 0.5, -1.0, 1.2, 0.0], np.float32)
NUM_DRAWS = 200_000
CRITICAL = 18.47  # chi-square, 4 degrees of freedom, alpha = 0.001


def probabilities(temperature: float, scores=LOGITS) -> np.ndarray:
    scaled = scores.astype(np.float64) / temperature
    return np.exp(scaled) / np.exp(scaled).sum()


def keys(count: int, seed: int) -> jax.Array:
    """Of as many attempts at one problem."""
    streams = np.full((count, 5), seed, np.uint32)
    streams[:, 4] = np.arange(count)
    return slots.stream_keys(jnp.asarray(streams))


def drawn(
    temperature=1.0, *, scores=LOGITS, count=NUM_DRAWS, seed=3, position=7, greedy=False, top_k=0
):
    """One token of each attempt, by a settings that no token ends."""
    ones = jnp.ones(count, jnp.float32)
    truncation = slots.Truncation(jnp.full(count, top_k), ones, 0 * ones) if top_k else None
    stops = jnp.zeros((count, 0), int)
    settings = slots.Drawing(temperature * ones, jnp.full(count, greedy), stops, truncation)
    logits = jnp.broadcast_to(jnp.asarray(scores)[None], (count, len(scores)))
    found = jax.jit(slots.draw)(logits, keys(count, seed), jnp.full(count, position), settings)
    return np.asarray(found.token), np.asarray(found.log_prob)


def chi_square(tokens, share) -> float:
    """Of the tokens that have a share; no other is there."""
    counts, kept = np.bincount(tokens, minlength=len(share)), share > 0
    assert counts[~kept].sum() == 0
    expected = share[kept] / share[kept].sum() * len(tokens)
    return float(((counts[kept] - expected) ** 2 / expected).sum())


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


def test_truncation_keeps_what_counting_by_hand_keeps_and_rows_are_cut_each_as_it_asks():
    random = np.random.default_rng(0)
    rows = np.concatenate([random.normal(size=(6, 9)), np.round(random.normal(size=(6, 9)))])
    rows = np.repeat(rows, len(TRUNCATIONS), axis=0)  # the rounded ones have ties
    rows, settings = rows.astype(np.float32), TRUNCATIONS * 12
    top_k, top_p, min_p = (np.array(column) for column in zip(*settings, strict=True))
    truncation = slots.Truncation(
        jnp.asarray(top_k, jnp.int32),
        jnp.asarray(top_p, jnp.float32),
        jnp.asarray(min_p, jnp.float32),
    )
    cut = np.asarray(slots.truncate(jnp.asarray(rows), truncation))
    for row, found, of_row in zip(rows, cut, settings, strict=True):
        kept = kept_by_hand(row, *of_row)
        assert np.flatnonzero(np.isfinite(found)).tolist() == kept
        np.testing.assert_array_equal(found[kept], row[kept])


def test_truncated_draws_follow_what_is_left_and_say_so():
    """n = 200,000, alpha = 0.001, over the three tokens that top-k 3 leaves; 2 degrees."""
    tokens, log_prob = drawn(0.7, top_k=3, seed=5)
    left = np.isin(np.arange(5), [0, 1, 3])
    share = probabilities(0.7) * left
    assert chi_square(tokens, share) < 13.82
    assert chi_square(tokens, probabilities(0.7 * 1.02) * left) > 13.82
    np.testing.assert_allclose(log_prob, np.log((share / share.sum())[tokens]), atol=1e-5)


def test_draws_follow_the_distribution_and_a_temperature_2_percent_off_is_caught():
    tokens, log_prob = drawn(0.7)
    assert chi_square(tokens, probabilities(0.7)) < CRITICAL
    assert chi_square(tokens, probabilities(0.7 * 1.02)) > CRITICAL
    assert chi_square(tokens, probabilities(0.7 / 1.02)) > CRITICAL
    np.testing.assert_allclose(log_prob, np.log(probabilities(0.7))[tokens], atol=1e-6)


def test_greedy_takes_the_likeliest_and_reports_it_under_the_temperature():
    tokens, log_prob = drawn(2.0, greedy=True)
    assert set(tokens) == {0}
    np.testing.assert_allclose(log_prob, np.log(probabilities(2.0))[0], atol=1e-6)


def test_keys_are_the_seed_folded_with_the_stream():
    stream = np.array([[5, 4_000_000_000, 7, 0, 2], [5, 4_000_000_000, 7, 0, 3]], np.uint32)
    for numbers, key_data in zip(stream, slots.stream_keys(jnp.asarray(stream)), strict=True):
        key = jax.random.key(numbers[0])
        for number in numbers[1:]:
            key = jax.random.fold_in(key, number)
        assert (jax.random.key_data(key) == key_data).all()


def test_positions_and_attempts_draw_independently():
    """Neighbouring positions, and neighbouring attempts, agree as often as chance has it."""
    scores = np.zeros(4, np.float32)
    one, other = (drawn(scores=scores, count=20_000, seed=1, position=p)[0] for p in (4, 5))
    assert abs((one == other).mean() - 0.25) < 0.012  # four standard errors
    assert abs((one[1:] == one[:-1]).mean() - 0.25) < 0.012


def test_tokens_of_many_blocks_follow_the_distribution_and_none_without_weight_is_drawn():
    """600 words, so blocks of 256, 256 and 88, and the second without weight but for one word."""
    scores = np.random.default_rng(0).normal(size=600).astype(np.float32)
    scores[256:511] = -np.inf
    share = probabilities(1.0, scores)
    tokens, log_prob = drawn(scores=scores, count=20_000, seed=2, position=3)
    assert 511 in tokens
    assert chi_square(tokens, share) < 432  # 344 degrees, 0.001
    np.testing.assert_allclose(log_prob, np.log(share[tokens]), atol=1e-5)
    assert drawn(0.5, scores=scores, count=1, greedy=True)[0] == scores.argmax()
