"""Drawing tokens: one random stream per sample, and the log-probability of what was drawn.

The key of a token is fold_in(run seed, problem, issue, attempt, position), so it depends on nothing
else: not on the slot, the batch, the replica or the time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

BLOCK = 256  # tokens of which one block is chosen before one of them is


class Drawn(NamedTuple):
    token: Int[Array, "B"]
    log_prob: Float[Array, "B"]  # nats, under what was drawn from
    raw_log_prob: Float[Array, "B"] | None = None  # under softmax(logits), where asked for


class Truncation(NamedTuple):
    """Which tokens may be drawn, per row; applied after the temperature, in this order."""

    top_k: Int[Array, "B"]  # the k likeliest; 0 for all
    top_p: Float[Array, "B"]  # the fewest of those that make up this share of them
    min_p: Float[Array, "B"]  # at least this times as likely as the likeliest

    @classmethod
    def none(cls, batch: int) -> "Truncation":
        ones = jnp.ones(batch, jnp.float32)
        return cls(jnp.zeros(batch, jnp.int32), ones, jnp.zeros_like(ones))


def stream_keys(stream: UInt32[Array, "B 5"]) -> UInt32[Array, "B 2"]:
    """Key data of every sample: the first number is the seed, the others are folded into it."""

    def one(stream_5):
        key = jax.random.key(stream_5[0])
        for number in stream_5[1:]:
            key = jax.random.fold_in(key, number)
        return jax.random.key_data(key)

    return jax.vmap(one)(stream)


def draw(
    logits: Float[Array, "B V"],
    key: UInt32[Array, "B 2"],
    position: Int[Array, "B"],
    temperature: Float[Array, "B"],
    greedy: Bool[Array, "B"],
    truncation: Truncation | None = None,
    *,
    raw: bool = False,
) -> Drawn:
    """One token per row from softmax(logits / temperature), or the likeliest where `greedy`.

    With a `truncation`, from what it leaves of that distribution, and the log-probability is that
    among what it leaves. With `raw` also the log-probability under softmax(logits).

    `position` is that of the drawn token, counted from the start of the prompt. Gumbel-max in
    float32: the largest of logits / temperature + Gumbel noise, where there are more than `BLOCK`
    tokens first among the weights of blocks and then within the block: noise for every word would
    take longer than the logits. The log-probability is that of the token under
    softmax(logits / temperature), for greedy tokens too.
    """
    scaled_BV = logits.astype(jnp.float32) / temperature[:, None]
    if truncation is not None:
        scaled_BV = truncate(scaled_BV, truncation)
    token_B, log_prob_B = _drawn(scaled_BV, key, position, greedy)
    if not raw:
        return Drawn(token_B, log_prob_B)
    return Drawn(token_B, log_prob_B, _log_prob(logits.astype(jnp.float32), token_B))


def _drawn(scaled_BV, key, position, greedy):
    """A token of softmax(scaled), or the likeliest, and its log-probability."""
    num_rows, num_words = scaled_BV.shape
    num_blocks, width = -(-num_words // BLOCK), min(num_words, BLOCK)
    num_noise = width if num_blocks == 1 else num_blocks + width
    # Kept whole: fused into the search for the largest, noise is made number by number.
    noise = jax.lax.optimization_barrier(gumbel(key, position, num_noise))
    noise = jnp.where(greedy[:, None], 0.0, noise)
    if num_blocks == 1:
        token_B = _likeliest(scaled_BV + noise)
        return token_B, _log_prob(scaled_BV, token_B)
    padded = ((0, 0), (0, num_blocks * BLOCK - num_words))
    scaled_BNb = jnp.pad(scaled_BV, padded, constant_values=-jnp.inf)
    scaled_BNb = scaled_BNb.reshape(num_rows, num_blocks, BLOCK)
    largest_BN = jnp.max(scaled_BNb, axis=2)
    fixed_BN = jnp.where(largest_BN == -jnp.inf, 0.0, largest_BN)  # a block of no token
    weight_BN = jnp.log(jnp.sum(jnp.exp(scaled_BNb - fixed_BN[..., None]), axis=2)) + fixed_BN
    score_BN = jnp.where(greedy[:, None], largest_BN, weight_BN + noise[:, :num_blocks])
    block_B = _likeliest(score_BN)
    chosen_Bb = jnp.take_along_axis(scaled_BNb, block_B[:, None, None], axis=1)[:, 0]
    place_B = _likeliest(chosen_Bb + noise[:, num_blocks:])
    token_B = jnp.minimum(block_B * BLOCK + place_B, num_words - 1)  # where all is NaN
    chosen_B = jnp.take_along_axis(chosen_Bb, place_B[:, None], axis=1)[:, 0]
    return token_B, chosen_B - jax.nn.logsumexp(weight_BN, axis=1)


def gumbel(
    key: UInt32[Array, "B 2"], position: Int[Array, "B"], count: int
) -> Float[Array, "B {count}"]:
    """So much noise of the token at `position` of every sample."""

    def of_one(key_data, position):
        token_key = jax.random.fold_in(jax.random.wrap_key_data(key_data), position)
        return jax.random.gumbel(token_key, (count,), jnp.float32)

    return jax.vmap(of_one)(key, position)


def _likeliest(score: Float[Array, "B V"]) -> Int[Array, "B"]:
    """The first of the largest entries. Two plain reductions, which XLA turns into vector code for
    CPU, unlike the one of pairs that argmax is.
    """
    index_1V = jnp.arange(score.shape[1], dtype=jnp.int32)[None]
    is_largest = score == jnp.max(score, axis=1, keepdims=True)
    found_B = jnp.min(jnp.where(is_largest, index_1V, score.shape[1]), axis=1)
    return jnp.minimum(found_B, score.shape[1] - 1)  # where NaN equals nothing


def _log_prob(score: Float[Array, "B V"], token: Int[Array, "B"]) -> Float[Array, "B"]:
    """log_softmax of the scores at `token`, without the others."""
    largest_B1 = jnp.max(score, axis=1, keepdims=True)
    log_total_B = jnp.log(jnp.sum(jnp.exp(score - largest_B1), axis=1))
    chosen_B1 = jnp.take_along_axis(score, token[:, None], axis=1)
    return (chosen_B1 - largest_B1)[:, 0] - log_total_B


def truncate(scaled: Float[Array, "B V"], truncation: Truncation) -> Float[Array, "B V"]:
    """Scaled logits with -inf where a token may not be drawn; the likeliest always may.

    Among equal logits the lower token number counts as the likelier. Costs a sort, but only in a
    step in which some row asks for it.
    """
    top_k, top_p, min_p = truncation
    asks_B = (top_k > 0) | (top_p < 1) | (min_p > 0)

    def cut(scaled):
        order_BV = jnp.argsort(-scaled, axis=-1, stable=True)
        sorted_BV = jnp.take_along_axis(scaled, order_BV, axis=-1)
        rank_1V = jnp.arange(scaled.shape[-1])[None]
        kept = (top_k[:, None] == 0) | (rank_1V < top_k[:, None])
        weight_BV = jnp.where(kept, jnp.exp(sorted_BV - sorted_BV[:, :1]), 0.0)
        above_BV = jnp.cumsum(weight_BV, axis=-1) - weight_BV
        total_B1 = jnp.sum(weight_BV, axis=-1, keepdims=True)
        # Rounding of the sum must not cut the tail of a row that keeps every token.
        kept &= (top_p[:, None] >= 1) | (above_BV < top_p[:, None] * total_B1)
        kept &= weight_BV >= min_p[:, None]
        kept |= rank_1V == 0
        row_B1 = jnp.arange(scaled.shape[0])[:, None]
        allowed = jnp.zeros_like(kept).at[row_B1, order_BV].set(kept)
        return jnp.where(allowed, scaled, -jnp.inf)

    return jax.lax.cond(jnp.any(asks_B), cut, lambda scaled: scaled, scaled)
