"""Attention block by block: memory grows with the length, not with its square.

Scores exist for one block of queries against one block of keys. The softmax is kept as a running
maximum and a running sum, and the backward pass computes every block of scores again. Latents are
expanded into keys and values a block at a time as well, once in either pass. Blocks that cannot
see each other (the future, other segments, the unwritten rest of a cache) are passed over.
Source: arXiv:1805.02867; arXiv:2205.14135.

Below, T and S are the tokens of one block; I and J count the blocks of queries and of keys.
"""

import dataclasses
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.errors import refuse_outside
from loong_jax.models.moe.kernels import AttentionMask, Operands, expand
from loong_jax.models.products import accumulate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blockwise:
    """Plain XLA, on any platform; the sizes of blocks change nothing but rounding and speed."""

    query_block: int = 512
    key_block: int = 512

    def __post_init__(self):
        refuse_outside(self, "(0, inf]", "query_block", "key_block")


class _Queries(NamedTuple):
    query: Float[Array, "*I B N T h"]
    segment: Int[Array, "*I B T"]
    index: Int[Array, "*I B T"]
    parent: Int[Array, "*I B T"] | None


class _Keys(NamedTuple):
    latent: Float[Array, "*J B S C"]
    rope_key: Float[Array, "*J B S R"]
    segment: Int[Array, "*J B S"]
    index: Int[Array, "*J B S"]


class _Running(NamedTuple):
    """The softmax of queries over the keys met so far, float32."""

    largest: Float[Array, "*I B N T"]  # of the scores; _NONE if nothing was seen
    total: Float[Array, "*I B N T"]  # sum of exp(score - largest)
    mixed: Float[Array, "*I B N T U"]  # sum of exp(score - largest) * value


_Mixed: TypeAlias = Float[Array, "B T N U"]
_Sums: TypeAlias = Float[Array, "I B N size"]
_Query: TypeAlias = Float[Array, "B N T h"]
_Pairs: TypeAlias = Bool[Array, "B T S"]

_HIDDEN = float(jnp.finfo(jnp.float32).min)  # the score of a pair that may not meet
_NONE = _HIDDEN / 2  # exp(_HIDDEN - _NONE) is 0


def attend(operands: Operands, mask: AttentionMask, sizes: Blockwise) -> _Mixed:
    """softmax(query key) value for every query and head, accumulated in float32."""
    return _whole_softmax(operands, mask, sizes)[0]


def _forward(operands: Operands, mask: AttentionMask, sizes: Blockwise) -> tuple[_Mixed, _Sums]:
    """The result and the logarithm of what each softmax divided by, which has no gradient."""
    queries_I, keys_J = _cut(operands, mask, sizes)
    shape = queries_I.query.shape[:-1]
    none = _Running(
        jnp.full(shape, _NONE, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, operands.value_up.shape[-1]), jnp.float32),
    )

    def meet_all(keys: _Keys, running_I: _Running) -> _Running:
        key_BNSh, value_BNSU = expand(
            keys.latent, keys.rope_key, operands.key_up, operands.value_up
        )

        def meet(running, query_BNTh, pair_BTS):
            score_BNTS = _scores(query_BNTh, key_BNSh, pair_BTS)
            largest = jnp.maximum(running.largest, jnp.max(score_BNTS, axis=-1))
            weight_BNTS = jnp.exp(score_BNTS - largest[..., None])
            shrink = jnp.exp(running.largest - largest)
            mixed = accumulate("BNTS,BNSU->BNTU", weight_BNTS.astype(value_BNSU.dtype), value_BNSU)
            return _Running(
                largest,
                running.total * shrink + jnp.sum(weight_BNTS, axis=-1),
                running.mixed * shrink[..., None] + mixed,
            )

        def step(_, block):
            running, queries = block
            here = _mask_of(queries, keys)
            met = jax.lax.cond(
                here.any_pair(), lambda: meet(running, queries.query, here.pairs()), lambda: running
            )
            return None, met

        return jax.lax.scan(step, None, (running_I, queries_I))[1]

    def step(running_I: _Running, keys: _Keys) -> tuple[_Running, None]:
        seen = mask._replace(key_segment=keys.segment, key_index=keys.index).any_pair()
        return jax.lax.cond(seen, lambda: meet_all(keys, running_I), lambda: running_I), None

    running_I, _ = jax.lax.scan(step, none, keys_J)
    seen = running_I.total > 0
    total_IBNT = jnp.where(seen, running_I.total, 1)
    mixed_IBNTU = (running_I.mixed / total_IBNT[..., None]).astype(operands.query.dtype)
    log_total_IBNT = jnp.where(seen, running_I.largest + jnp.log(total_IBNT), 0)
    return _join(mixed_IBNTU, operands.query.shape[1]), log_total_IBNT


# The operands and the mask, and the two results of `_forward`.
_Residuals: TypeAlias = tuple[Operands, AttentionMask, _Mixed, _Sums]


def _forward_and_residuals(
    operands: Operands, mask: AttentionMask, sizes: Blockwise
) -> tuple[tuple[_Mixed, _Sums], _Residuals]:
    # Called with its rule and all, it stays one equation. Written out here, a scan over layers
    # would make all masks before it, which are the same in each layer: T * S of them.
    mixed, log_total_IBNT = _whole_softmax(operands, mask, sizes)
    return (mixed, log_total_IBNT), (operands, mask, mixed, log_total_IBNT)


def _backward(
    sizes: Blockwise, residuals: _Residuals, grads: tuple[_Mixed, _Sums]
) -> tuple[Operands, None]:
    """With weight = softmax(score), d_score = weight (d_weight - sum of weight d_weight).

    Scores stand key by query here, [S, T], so that of the three products they enter only that of
    d_query contracts their rows, which is slow on CPU.
    """
    operands, mask, mixed, log_total_IBNT = residuals
    d_mixed, _ = grads
    queries_I, keys_J = _cut(operands, mask, sizes)
    product_BTN = d_mixed.astype(jnp.float32) * mixed.astype(jnp.float32)
    drift_BTN = jnp.sum(product_BTN, axis=-1)  # sum of weight d_weight over all keys
    drift_IBNT = jnp.swapaxes(_split(drift_BTN, sizes.query_block), 2, 3)
    d_mixed_IBNTU = jnp.swapaxes(_split(d_mixed, sizes.query_block), 2, 3)

    def meet_all(keys, d_query_I, d_up):
        expanded, pull_back = jax.vjp(
            expand, keys.latent, keys.rope_key, operands.key_up, operands.value_up
        )
        key_BNSh, value_BNSU = expanded

        def meet(sums, queries, d_mixed_BNTU, log_total_BNT, drift_BNT, d_query, pair_BTS):
            d_key, d_value = sums
            score_BNST = _scores(key_BNSh, queries.query, jnp.swapaxes(pair_BTS, 1, 2))
            weight_BNST = jnp.exp(score_BNST - log_total_BNT[:, :, None])
            d_weight_BNST = accumulate("BNSU,BNTU->BNST", value_BNSU, d_mixed_BNTU)
            d_score_BNST = weight_BNST * (d_weight_BNST - drift_BNT[:, :, None])
            weight_BNST, d_score_BNST = (
                a.astype(key_BNSh.dtype) for a in (weight_BNST, d_score_BNST)
            )
            d_value += accumulate("BNST,BNTU->BNSU", weight_BNST, d_mixed_BNTU)
            d_key += accumulate("BNST,BNTh->BNSh", d_score_BNST, queries.query)
            d_query += accumulate("BNST,BNSh->BNTh", d_score_BNST, key_BNSh)
            return (d_key, d_value), d_query

        def step(sums, block):
            queries, d_mixed, log_total, drift, d_query = block
            here = _mask_of(queries, keys)
            return jax.lax.cond(
                here.any_pair(),
                lambda: meet(sums, queries, d_mixed, log_total, drift, d_query, here.pairs()),
                lambda: (sums, d_query),
            )

        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.float32), expanded)
        blocks = (queries_I, d_mixed_IBNTU, log_total_IBNT, drift_IBNT, d_query_I)
        sums, d_query_I = jax.lax.scan(step, zeros, blocks)
        sums = jax.tree.map(lambda total, a: total.astype(a.dtype), sums, expanded)
        d_latent, d_rope_key, *more = pull_back(sums)
        d_up = jax.tree.map(lambda total, a: total + a.astype(jnp.float32), d_up, tuple(more))
        return (d_query_I, d_up), (d_latent, d_rope_key)

    def step(carry, keys):
        seen = mask._replace(key_segment=keys.segment, key_index=keys.index).any_pair()
        nothing = jnp.zeros_like(keys.latent), jnp.zeros_like(keys.rope_key)
        return jax.lax.cond(seen, lambda: meet_all(keys, *carry), lambda: (carry, nothing))

    up = operands.key_up, operands.value_up
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.float32), (queries_I.query, up))
    (d_query_I, d_up), (d_latent_J, d_rope_key_J) = jax.lax.scan(step, zeros, keys_J)
    num_queries, num_keys = operands.query.shape[1], operands.latent.shape[1]
    sums = Operands(
        _join(d_query_I, num_queries),
        _whole(d_latent_J, num_keys),
        _whole(d_rope_key_J, num_keys),
        *d_up,
    )
    return jax.tree.map(lambda total, a: total.astype(a.dtype), sums, operands), None


_whole_softmax = jax.custom_vjp(_forward, nondiff_argnums=(2,))
_whole_softmax.defvjp(_forward_and_residuals, _backward)


def _scores(
    row_BNTh: _Query, column_BNSh: Float[Array, "B N S h"], pair_BTS: _Pairs
) -> Float[Array, "B N T S"]:
    """Scores of queries by keys, or of keys by queries; pairs that may not meet are hidden."""
    score_BNTS = accumulate("BNTh,BNSh->BNTS", row_BNTh, column_BNSh)
    return jnp.where(pair_BTS[:, None], score_BNTS, _HIDDEN)


def _mask_of(queries: _Queries, keys: _Keys) -> AttentionMask:
    return AttentionMask(queries.segment, queries.index, keys.segment, keys.index, queries.parent)


def _cut(operands: Operands, mask: AttentionMask, sizes: Blockwise) -> tuple[_Queries, _Keys]:
    """All blocks; what fills up the last ones stands before all keys and after all queries."""
    num_rows, num_keys = sizes.query_block, sizes.key_block
    queries = _Queries(
        jnp.swapaxes(_split(operands.query, num_rows), 2, 3),
        _split(mask.query_segment, num_rows),
        _split(mask.query_index, num_rows, fill=-1),
        None if mask.query_parent is None else _split(mask.query_parent, num_rows),
    )
    keys = _Keys(
        _split(operands.latent, num_keys),
        _split(operands.rope_key, num_keys),
        _split(mask.key_segment, num_keys),
        _split(mask.key_index, num_keys, fill=jnp.iinfo(jnp.int32).max),
    )
    return queries, keys


def _split(a: Shaped[Array, "B T ..."], size: int, fill: int = 0) -> Shaped[Array, "I B size ..."]:
    """Blocks of `size` tokens, the last one filled up."""
    batch, num_tokens = a.shape[:2]
    missing = -num_tokens % size
    padded = jnp.pad(a, [(0, 0), (0, missing)] + [(0, 0)] * (a.ndim - 2), constant_values=fill)
    return jnp.moveaxis(padded.reshape(batch, -1, size, *a.shape[2:]), 1, 0)


def _whole(a: Shaped[Array, "I B size ..."], num_tokens: int) -> Shaped[Array, "B T ..."]:
    """Undoes `_split`."""
    a = jnp.moveaxis(a, 0, 1)
    return a.reshape(a.shape[0], -1, *a.shape[3:])[:, :num_tokens]


def _join(a: Shaped[Array, "I B N size ..."], num_tokens: int) -> Shaped[Array, "B T N ..."]:
    return _whole(jnp.swapaxes(a, 2, 3), num_tokens)
