"""Drawing tokens: one random stream per sample, and the log-probability of what was drawn.

The key of a token is fold_in(run seed, problem, issue, attempt, position), so it depends on nothing
else: not on the slot, the batch, the replica or the time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

BLOCK = 256  # tokens whose weights are summed before any is chosen


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

    `position` is that of the drawn token, counted from the start of the prompt. Two numbers of its
    stream choose, one a block of `BLOCK` tokens by the blocks' shares, one a token of that block by
    its share of it; noise for every token would take longer than the logits. The log-probability is
    that of the token under softmax(logits / temperature), for greedy tokens too.
    """
    scaled_BV = logits.astype(jnp.float32) / temperature[:, None]
    if truncation is not None:
        scaled_BV = truncate(scaled_BV, truncation)
    num_rows, num_words = scaled_BV.shape
    largest_B1 = jnp.max(scaled_BV, axis=1, keepdims=True)
    weight_BV = jnp.exp(scaled_BV - largest_B1)
    weight_BV = jnp.pad(weight_BV, ((0, 0), (0, -num_words % BLOCK)))
    weight_BNb = weight_BV.reshape(num_rows, -1, BLOCK)
    until_BN = jnp.cumsum(jnp.sum(weight_BNb, axis=2), axis=1)
    block_choice_B, token_choice_B = uniforms(key, position).T
    block_B = _first_beyond(until_BN, block_choice_B)
    weight_Bb = jnp.take_along_axis(weight_BNb, block_B[:, None, None], axis=1)[:, 0]
    token_B = block_B * BLOCK + _first_beyond(jnp.cumsum(weight_Bb, axis=1), token_choice_B)
    token_B = jnp.minimum(token_B, num_words - 1)  # where NaN is beyond nothing
    token_B = jnp.where(greedy, _likeliest(scaled_BV), token_B)
    chosen_B1 = jnp.take_along_axis(scaled_BV, token_B[:, None], axis=1)
    log_prob_B = (chosen_B1 - largest_B1)[:, 0] - jnp.log(until_BN[:, -1])
    if not raw:
        return Drawn(token_B, log_prob_B)
    return Drawn(token_B, log_prob_B, _log_prob(logits.astype(jnp.float32), token_B))


def uniforms(key: UInt32[Array, "B 2"], position: Int[Array, "B"]) -> Float[Array, "B 2"]:
    """The numbers in [0, 1) that choose block and token at `position` of every sample."""

    def of_one(key_data, position):
        token_key = jax.random.fold_in(jax.random.wrap_key_data(key_data), position)
        return jax.random.uniform(token_key, (2,), jnp.float32)

    return jax.vmap(of_one)(key, position)


def _first_beyond(until: Float[Array, "B N"], choice: Float[Array, "B"]) -> Int[Array, "B"]:
    """The first place whose cumulated weight is beyond `choice` times the whole.

    Rounded down, the product stays below the whole: a place without weight is never found.
    """
    return jnp.sum(until <= (choice * until[:, -1])[:, None], axis=1, dtype=jnp.int32)


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
