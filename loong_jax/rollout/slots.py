"""The slots of an engine: what each holds, how samples enter and leave them, how tokens are drawn.

All are arrays with one row per slot or per sample; the functions are meant to be compiled. The key
of a token is fold_in(run seed, problem, issue, attempt, position), so it depends on nothing else:
not on the slot, the batch, the replica or the time.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from loong_jax.rollout.speculation import Drafting

Cache = Any  # arrays [*, *, B, S, *]
BLOCK = 256  # tokens of which one block is chosen before one of them is


class Truncation(NamedTuple):
    """The truncation of the distribution, per row; applied after the temperature, in this order."""

    top_k: Int[Array, "B"]  # the k likeliest; 0 for all
    top_p: Float[Array, "B"]  # the fewest of those that make up this share of them
    min_p: Float[Array, "B"]  # at least this times as likely as the likeliest

    @classmethod
    def none(cls, batch: int) -> "Truncation":
        ones = jnp.ones(batch, jnp.float32)
        return cls(jnp.zeros(batch, jnp.int32), ones, jnp.zeros_like(ones))


class Drawing(NamedTuple):
    """The way in which tokens are drawn, per row, and the tokens that end a sample."""

    temperature: Float[Array, "B"]
    greedy: Bool[Array, "B"]
    stops: Int[Array, "B stops"]  # or -1
    truncation: Truncation | None = None  # where the engine can truncate


class SlotState(NamedTuple):
    """One sample per row. `position` is that of `token`, the last one written, from 0."""

    token: Int[Array, "B"]
    position: Int[Array, "B"]
    prompt_length: Int[Array, "B"]
    last_position: Int[Array, "B"]  # where the length limit ends the sample
    active: Bool[Array, "B"]
    key: UInt32[Array, "B 2"]
    drawing: Drawing
    history: Int[Array, "B before"] | None = None  # tokens before `token`, where the model asks
    drafting: Drafting | None = None  # where the engine decodes with drafts


class Prefix(NamedTuple):
    """Caches of prompts, and samples that each continue one of them, for slots."""

    cache: Cache
    row: Int[Array, "members"]  # whose cache a member continues
    slot: SlotState


class DecodeState(NamedTuple):
    cache: Cache
    slot: SlotState
    num_drafts: Int[Array, "2"] | None = None  # proposed, kept; where there are drafts


def empty(
    batch: int,
    num_before: int = 0,
    *,
    truncation: bool = False,
    num_stops: int = 1,
    hidden: jax.ShapeDtypeStruct | None = None,
) -> SlotState:
    """Slots that hold nothing. No two arrays share memory, so all may be donated.

    `num_before` is how many tokens before the last one the model looks at beside its cache;
    `hidden`, of one state, is given where there are drafts.
    """
    numbers = jnp.zeros(batch, jnp.int32)
    return SlotState(
        token=numbers,
        position=jnp.zeros_like(numbers),
        prompt_length=jnp.ones_like(numbers),
        last_position=jnp.zeros_like(numbers),
        active=jnp.zeros(batch, bool),
        key=jnp.zeros((batch, 2), jnp.uint32),
        drawing=Drawing(
            jnp.ones(batch, jnp.float32),
            jnp.zeros(batch, bool),
            jnp.full((batch, num_stops), -1, jnp.int32),
            Truncation.none(batch) if truncation else None,
        ),
        history=jnp.zeros((batch, num_before), jnp.int32) if num_before else None,
        drafting=None if hidden is None else Drafting.zeros(batch, hidden),
    )


def take(slot: SlotState, slots: Int[Array, "W"]) -> SlotState:
    """The rows of `slots`; a number past the last slot gives a row that is not active."""
    exists = slots < slot.active.shape[0]
    part = jax.tree.map(lambda a: a.at[slots].get(mode="clip"), slot)
    return part._replace(active=part.active & exists)


def put(state: DecodeState, cache: Cache, slot: SlotState, slots: Int[Array, "W"]) -> DecodeState:
    """Writes rows into slots; a short cache fills the front, numbers past the last are dropped."""
    cache = jax.tree.map(
        lambda old, new: old.at[:, :, slots, : new.shape[3]].set(new, mode="drop"),
        state.cache,
        cache,
    )
    return state._replace(cache=cache, slot=put_slots(state.slot, slot, slots))


def put_slots(slots_now: SlotState, slot: SlotState, slots: Int[Array, "W"]) -> SlotState:
    """Writes rows into slots; numbers past the last are dropped."""
    return jax.tree.map(lambda old, new: old.at[slots].set(new, mode="drop"), slots_now, slot)


def insert(prefix: Prefix, state: DecodeState, slots: Int[Array, "members"]) -> DecodeState:
    """Puts every member of the prefix into its slot."""
    rows = jax.tree.map(lambda a: a[:, :, prefix.row], prefix.cache)
    return put(state, rows, prefix.slot, slots)


def extract(state: DecodeState, slot: Int[Array, ""]) -> Prefix:
    """The sample of a slot as a prefix of one member: the inverse of `insert`."""
    cache = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, slot, 1, axis=2), state.cache)
    one = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, slot, 1), state.slot)
    return Prefix(cache, jnp.zeros(1, jnp.int32), one)


def cancel(state: DecodeState, ended: Bool[Array, "B"]) -> DecodeState:
    """Slots under `ended` write nothing more."""
    return state._replace(slot=state.slot._replace(active=state.slot.active & ~ended))


# ---- drawing tokens ------------------------------------------------------------------------------


class Drawn(NamedTuple):
    token: Int[Array, "B"]
    log_prob: Float[Array, "B"]  # nats, under what was drawn from


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
    drawing: Drawing,
) -> Drawn:
    """One token per row from softmax(logits / temperature), or the likeliest where `greedy`.

    With a truncation, from what it leaves of that distribution, and the log-probability is that
    among what it leaves.

    `position` is that of the drawn token, counted from the start of the prompt. Gumbel-max in
    float32: the largest of logits / temperature + Gumbel noise, where there are more than `BLOCK`
    tokens first among the weights of blocks and then within the block: noise for every word would
    take longer than the logits. The log-probability is that of the token under
    softmax(logits / temperature), for greedy tokens too.
    """
    scaled_BV = logits.astype(jnp.float32) / drawing.temperature[:, None]
    if drawing.truncation is not None:
        scaled_BV = truncate(scaled_BV, drawing.truncation)
    num_rows, num_words = scaled_BV.shape
    num_blocks, width = -(-num_words // BLOCK), min(num_words, BLOCK)
    num_noise = width if num_blocks == 1 else num_blocks + width
    # Kept whole: fused into the search for the largest, noise is made number by number.
    noise = jax.lax.optimization_barrier(gumbel(key, position, num_noise))
    noise = jnp.where(drawing.greedy[:, None], 0.0, noise)
    if num_blocks == 1:
        token_B = _likeliest(scaled_BV + noise)
        return Drawn(token_B, _log_prob(scaled_BV, token_B))
    padded = ((0, 0), (0, num_blocks * BLOCK - num_words))
    scaled_BNb = jnp.pad(scaled_BV, padded, constant_values=-jnp.inf)
    scaled_BNb = scaled_BNb.reshape(num_rows, num_blocks, BLOCK)
    largest_BN = jnp.max(scaled_BNb, axis=2)
    fixed_BN = jnp.where(largest_BN == -jnp.inf, 0.0, largest_BN)  # a block of no token
    weight_BN = jnp.log(jnp.sum(jnp.exp(scaled_BNb - fixed_BN[..., None]), axis=2)) + fixed_BN
    score_BN = jnp.where(drawing.greedy[:, None], largest_BN, weight_BN + noise[:, :num_blocks])
    block_B = _likeliest(score_BN)
    chosen_Bb = jnp.take_along_axis(scaled_BNb, block_B[:, None, None], axis=1)[:, 0]
    place_B = _likeliest(chosen_Bb + noise[:, num_blocks:])
    token_B = jnp.minimum(block_B * BLOCK + place_B, num_words - 1)  # where all is NaN
    chosen_B = jnp.take_along_axis(chosen_Bb, place_B[:, None], axis=1)[:, 0]
    return Drawn(token_B, chosen_B - jax.nn.logsumexp(weight_BN, axis=1))


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
