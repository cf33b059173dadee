"""Decoding with drafts: up to two tokens a step, and the very tokens that plain decoding draws.

The drafting head guesses the token after the one in hand, the model looks at both at once, and a
draft that is the token which plain decoding draws there brings a second one with it. Since the
noise of a token is that of its stream and position, plain decoding's token can be had from the
model's own logits, and the draft is drawn from the head's with the same noise, so that both mostly
fall alike. What comes out therefore does not depend on the head at all, except by rounding: a draft
costs or saves time and changes no sample. Source: arXiv:2408.07978 (a draft drawn with
shared noise is right with a probability of at least (1 - d) / (1 + d), d the total variation; the
rejection of arXiv:2211.17192 keeps 1 - d, but its tokens depend on the drafts).

Row i of the head's cache joins the state after token i with token i + 1, so that a token in hand at
position p is looked at in row p - 1, when it is known. Rows before the last two of a sample are
never written again; where a prompt began with pages of another one, the last row of these may be
that of another next token, and drafts there are a little worse.
"""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models.moe.attention import AXES, Latent, LatentCache
from loong_jax.models.moe.config import MoEConfig
from loong_jax.sharding import ShardingRules

Columns = TypeVar("Columns")  # a tree of arrays [B, N]
Model = Any  # with `extend`, `draft` and `draft_extend` as `loong_jax.models.moe.LongcatFlash`

TOKENS_PER_STEP = 2  # at most


class DraftedCache(NamedTuple):
    """The caches of the model and of its drafting head; all arrays are [*, *, B, S, *]."""

    main: LatentCache
    draft: Latent  # [1, 1, B, S, *]

    @classmethod
    def zeros(
        cls, config: MoEConfig, batch: int, capacity: int, rules: ShardingRules | None = None
    ) -> "DraftedCache":
        lead = (1, 1, batch, capacity)
        spec = (rules or ShardingRules()).spec_of(lead, *AXES)

        def empty(width):
            return jnp.zeros((*lead, width), config.dtype, device=spec)

        draft = Latent(empty(config.kv_lora_rank), empty(config.qk_rope_head_dim))
        return cls(LatentCache.zeros(config, batch, capacity, rules), draft)


class Drafting(NamedTuple):
    """The inputs of the next draft beside the token in hand at position p."""

    previous: Int[Array, "B"]  # the token at p - 1
    hidden: Float[Array, "B 2 D"]  # the model's states after tokens p - 2 and p - 1

    @classmethod
    def zeros(cls, batch: int, like: jax.ShapeDtypeStruct) -> "Drafting":
        """The state of samples of which nothing was read; `like` is one state, [D]."""
        hidden = jnp.zeros((batch, 2, *like.shape), like.dtype)
        return cls(jnp.zeros(batch, jnp.int32), hidden)


def read_whole(
    model: Model,
    cache: LatentCache,
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    num_tokens: Int[Array, "B"],
) -> tuple[DraftedCache, Drafting]:
    """The head's part of a prefill, whose `cache` and `hidden` are given."""
    mask_BT = jnp.arange(tokens.shape[1])[None] < num_tokens[:, None]
    _, rows = model.draft(hidden, _following(tokens, num_tokens, None), mask=mask_BT)
    like = jax.ShapeDtypeStruct(hidden.shape[2:], hidden.dtype)
    none = Drafting.zeros(len(tokens), like)
    draft = Latent(*(a[None, None] for a in rows))
    return DraftedCache(cache, draft), advance(none, hidden, tokens, num_tokens)


def read_chunk(
    model: Model,
    cache: DraftedCache,
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    start: Int[Array, "B"],
    num_new: Int[Array, "B"],
    following: Int[Array, "B"],
    drafting: Drafting,
) -> tuple[DraftedCache, Drafting]:
    """Reads the next tokens of prompts, as `read_whole`; `following` is the token after these."""
    rows = Latent(*(a[0, 0] for a in cache.draft))
    next_BT = _following(tokens, num_new, following)
    _, rows = model.draft_extend(hidden, next_BT, start, rows)
    draft = Latent(*(a[None, None] for a in rows))
    return DraftedCache(cache.main, draft), advance(drafting, hidden, tokens, num_new)


def draft_logits(
    model: Model,
    draft: Latent,
    drafting: Drafting,
    token: Int[Array, "B"],
    position: Int[Array, "B"],
) -> tuple[Float[Array, "B V"], Latent]:
    """The logits of the token behind the one in hand, which stands at `position`."""
    pair_B2 = jnp.stack([drafting.previous, token], axis=1)
    rows = Latent(*(a[0, 0] for a in draft))
    logits, rows = model.draft_extend(drafting.hidden, pair_B2, position - 2, rows)
    return logits[:, 1], Latent(*(a[None, None] for a in rows))


def advance(
    drafting: Drafting,
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    num_read: Int[Array, "B"],
) -> Drafting:
    """After the first `num_read` of these tokens were read, which left the states `hidden`."""
    both = jnp.concatenate([drafting.hidden, hidden], axis=1)
    index_B2 = num_read[:, None] + jnp.arange(2)[None]
    last = jnp.concatenate([drafting.previous[:, None], tokens], axis=1)
    return Drafting(
        jnp.take_along_axis(last, num_read[:, None], axis=1)[:, 0],
        jnp.take_along_axis(both, index_B2[..., None], axis=1),
    )


def compact(valid: Bool[Array, "B N"], columns: Columns) -> Columns:
    """The columns with the valid entries of each row first, in their order."""
    order_BN = jnp.argsort(~valid, axis=1, stable=True)
    return jax.tree.map(lambda a: jnp.take_along_axis(a, order_BN, axis=1), columns)


def _following(tokens, num_tokens, following):
    """The token after each one; that after the last is `following`, or 0 where it is not known."""
    is_last = jnp.arange(tokens.shape[1])[None] == num_tokens[:, None] - 1
    shifted = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
    last = jnp.zeros_like(num_tokens) if following is None else following
    return jnp.where(is_last, last[:, None], shifted)
