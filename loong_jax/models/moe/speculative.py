"""Speculative decoding: one drafted token per step, and the target's distribution unchanged.

The drafting head proposes d ~ q for the token after the one in hand. The model then looks at both
at once and keeps d with probability min(1, p(d) / q(d)); otherwise it draws from what q missed,
max(p - q, 0) normalised. What comes out is distributed as p, whatever q is. A kept draft brings a
second token for free: the model's own draw behind it. Greedy decoding is the case of p and q with
all mass on one token. Source: arXiv:2211.17192, algorithm 1; arXiv:2302.01318.

    state            t_n in hand, its entry not yet in the cache; d_{n+1} drafted from q
    extend           [t_n, d_{n+1}] at n, n+1            -> p_{n+1}, p_{n+2}, h_n, h_{n+1}
    verify           t_{n+1} = d_{n+1} or a new draw;    t_{n+2} ~ p_{n+2} if kept
    draft_extend     (h_n, t_{n+1}), (h_{n+1}, t_{n+2})  -> q of the token after the last one kept

Entries of a rejected token are written again by the next step before anything looks at them, in
both caches.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from loong_jax.errors import ConfigError
from loong_jax.models.moe.attention import Latent
from loong_jax.models.moe.cache import LatentCache
from loong_jax.models.moe.model import LongcatFlash
from loong_jax.models.moe.mtp import shift_left

# What a random number is for; each is drawn once per sequence and position.
_DRAW, _DRAFT, _ACCEPT = 0, 1, 2


class Speculation(NamedTuple):
    """Where the decoding of every sequence stands."""

    token: Int[Array, "B"]  # in hand: drawn, not yet in the cache
    position: Int[Array, "B"]  # of that token
    draft: Int[Array, "B"]  # proposed behind it
    draft_probability: Float[Array, "B V"]  # what the draft was drawn from
    history: Int[Array, "B before"]  # tokens before it, for an n-gram embedding
    cache: LatentCache
    draft_cache: Latent
    num_proposed: Int[Array, "B"]
    num_accepted: Int[Array, "B"]


class Step(NamedTuple):
    """What one step wrote."""

    tokens: Int[Array, "B 2"]  # the second counts where the draft was accepted
    accepted: Bool[Array, "B"]


def begin(
    model: LongcatFlash,
    tokens: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    keys: Key[Array, "B"],
    *,
    capacity: int,
    temperature: float = 1.0,
) -> Speculation:
    """Reads the prompts, draws the token after each and drafts one more.

    `mask` is true where there is a token of a prompt; padding may be on either side, as in
    `prefill`. `capacity` is that of the caches: room for every token in hand and the draft behind
    it. Raises ValueError where `keys` does not hold one for each prompt.
    `temperature` 0 is greedy. Random numbers depend on a sequence's key and the position only.
    """
    ngram = model.config.ngram
    _check_keys(keys, tokens.shape[0])
    tokens, mask, keys = _placed(model, tokens, mask, keys)
    tokens, mask = _from_first(model, tokens, mask)
    length = jnp.sum(mask, axis=-1)
    output, cache = model.prefill(tokens, mask)
    token = _draw(keys, length, _DRAW, distribution(_at(output.logits, length - 1), temperature))
    is_last = jnp.arange(tokens.shape[1])[None] == length[:, None] - 1
    next_tokens = jnp.where(is_last, token[:, None], shift_left(tokens))
    draft_logits, draft_cache = model.draft(output.hidden, next_tokens, mask=mask)
    probability = distribution(_at(draft_logits, length - 1), temperature)
    room = ((0, capacity - tokens.shape[1]), (0, 0))
    none = jnp.zeros_like(length)
    return Speculation(
        token,
        length,
        _draw(keys, length + 1, _DRAFT, probability),
        probability,
        _last(tokens, length, 0 if ngram is None else ngram.max_order - 1),
        LatentCache(*(jnp.pad(a, ((0, 0),) * 3 + room) for a in cache)),
        Latent(*(jnp.pad(a, ((0, 0), *room)) for a in draft_cache)),
        num_proposed=none,
        num_accepted=none,
    )


def speculate(
    model: LongcatFlash,
    state: Speculation,
    keys: Key[Array, "B"],
    *,
    temperature: float = 1.0,
    active: Bool[Array, "B"] | None = None,
) -> tuple[Speculation, Step]:
    """One or two more tokens of every sequence; `keys` and `temperature` are those of `begin`.

    Sequences that are not `active` stay where they are, and their step means nothing.
    """
    position = state.position
    _check_keys(keys, position.shape[0])
    keys, active = _placed(model, keys, jnp.ones_like(position, bool) if active is None else active)
    pair = jnp.stack([state.token, state.draft], axis=1)
    logits, hidden, cache = model.extend(pair, position, state.cache, active, state.history)
    target = distribution(logits, temperature)
    accepted, first = verify(
        target[:, 0],
        state.draft_probability,
        state.draft,
        uniform=_uniform(keys, position + 1),
        draw=lambda p: _draw(keys, position + 1, _DRAW, p),
    )
    second = _draw(keys, position + 2, _DRAW, target[:, 1])
    tokens = jnp.stack([first, second], axis=1)
    draft_logits, draft_cache = model.draft_extend(hidden, tokens, position, state.draft_cache)
    num_new = 1 + accepted.astype(jnp.int32)
    probability = distribution(_at(draft_logits, num_new - 1), temperature)
    before = jnp.concatenate([state.history, state.token[:, None], first[:, None]], axis=1)
    moved = Speculation(
        jnp.where(accepted, second, first),
        position + num_new,
        _draw(keys, position + num_new + 1, _DRAFT, probability),
        probability,
        jnp.where(accepted[:, None], before[:, 2:], before[:, 1:-1]),
        cache,
        draft_cache,
        state.num_proposed + 1,
        state.num_accepted + accepted,
    )
    kept = {
        name: jnp.where(jnp.expand_dims(active, (*range(1, new.ndim),)), new, getattr(state, name))
        for name, new in moved._asdict().items()
        if isinstance(new, jax.Array)
    }
    return moved._replace(**kept), Step(tokens, accepted)


def generate(
    model: LongcatFlash,
    tokens: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    keys: Key[Array, "B"],
    *,
    num_tokens: int,
    temperature: float = 1.0,
) -> tuple[Int[Array, "B num_tokens"], Speculation]:
    """`num_tokens` after each prompt, and the last state, which counts acceptance; see `begin`."""
    state = begin(
        model,
        tokens,
        mask,
        keys,
        capacity=tokens.shape[1] + num_tokens,
        temperature=temperature,
    )
    start, column_1T = state.position, jnp.arange(num_tokens)[None]
    written = jnp.where(column_1T == 0, state.token[:, None], 0)

    def is_short(state):
        return state.position - start + 1 < num_tokens

    def step(carry):
        written, state = carry
        active, column = is_short(state), state.position - start + 1
        state, step = speculate(model, state, keys, temperature=temperature, active=active)
        for i, counts in enumerate((active, active & step.accepted)):
            here = counts[:, None] & (column_1T == column[:, None] + i)
            written = jnp.where(here, step.tokens[:, i : i + 1], written)
        return written, state

    def goes_on(carry):
        return jnp.any(is_short(carry[1]))

    written, state = jax.lax.while_loop(goes_on, step, (written, state))
    return written, state


def distribution(logits: Float[Array, "*batch V"], temperature: float) -> Float[Array, "*batch V"]:
    """Probabilities at a temperature; at 0 all mass is on the first of the largest logits."""
    if not temperature >= 0:
        raise ConfigError(
            f"temperature={temperature} is not >= 0. Use 0 for greedy decoding, 1 for the model's "
            "own distribution."
        )
    if temperature == 0:
        return jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
    return jax.nn.softmax(logits / temperature, axis=-1)


def verify(
    target: Float[Array, "B V"],
    proposal: Float[Array, "B V"],
    draft: Int[Array, "B"],
    *,
    uniform: Float[Array, "B"],
    draw: Callable[[Float[Array, "B V"]], Int[Array, "B"]],
) -> tuple[Bool[Array, "B"], Int[Array, "B"]]:
    """Whether each draft ~ proposal is kept, and the token that stands there: it is ~ target.

    `uniform` lies in [0, 1); `draw(probability)` draws from the residual, which need not sum to 1.
    """
    p, q = (_at(a[..., None], draft)[:, 0] for a in (target, proposal))
    accepted = uniform * q < p
    residual = jnp.maximum(target - proposal, 0.0)
    # Nothing is left where both are equal but for rounding; a rejection is then one too.
    residual = jnp.where(jnp.any(residual > 0, axis=-1, keepdims=True), residual, target)
    return accepted, jnp.where(accepted, draft, draw(residual))


def _draw(keys, position, purpose, probability):
    """One token per sequence from weights that need not sum to 1."""
    noise_BV = jax.vmap(lambda key: jax.random.gumbel(key, probability.shape[-1:]))(
        _fold(keys, position, purpose)
    )
    return jnp.argmax(jnp.log(probability) + noise_BV, axis=-1).astype(jnp.int32)


def _uniform(keys, position):
    return jax.vmap(jax.random.uniform)(_fold(keys, position, _ACCEPT))


def _fold(keys, position, purpose):
    return jax.vmap(lambda key, at: jax.random.fold_in(jax.random.fold_in(key, at), purpose))(
        keys, position
    )


def _check_keys(keys, batch):
    if keys.shape[:1] != (batch,):
        raise ValueError(
            f"keys of shape {keys.shape} are not one for each of {batch} sequences. Pass "
            f"jax.random.split(key, {batch})."
        )


def _from_first(model, tokens, mask):
    """Rows turned around their end until each begins with its first token, and their mask."""

    def turn(tokens, mask):
        width = tokens.shape[1]
        at_BT = (jnp.argmax(mask, axis=1)[:, None] + jnp.arange(width)[None]) % width
        return tuple(jnp.take_along_axis(a, at_BT, axis=1) for a in (tokens, mask))

    batch = model.rules.partition("act_batch")
    return model.rules.shard_map(turn, in_specs=(batch, batch), out_specs=batch)(tokens, mask)


def _at(rows: Float[Array, "B T V"], index: Int[Array, "B"]) -> Float[Array, "B V"]:
    """Row `index` of each sequence, by a masked sum, which any sharding admits."""
    is_wanted_BT = jnp.arange(rows.shape[1])[None] == index[:, None]
    return jnp.sum(jnp.where(is_wanted_BT[..., None], rows, 0.0), axis=1)


def _last(tokens, length, count):
    """The last `count` of the first `length` tokens of each row, 0 in place of those before it."""
    index_1T = jnp.arange(tokens.shape[1])[None]
    columns = [
        jnp.sum(jnp.where(index_1T == length[:, None] - distance, tokens, 0), axis=1)
        for distance in range(count, 0, -1)
    ]
    return jnp.stack(columns, axis=1) if columns else tokens[:, :0]


def _placed(model, *arrays):
    return tuple(model.rules.place(a, "act_batch") for a in arrays)
