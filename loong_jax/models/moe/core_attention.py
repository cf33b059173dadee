"""The choice of an attention kernel, and its sharding.

Queries stay where they are. Under context parallelism every device holds a part of the sequence
and gathers what it needs of the rest as latents with their rotary keys: C + R values per token
(576 published, 1152 bytes in bfloat16), where the expanded keys and values of all heads would be
N (H + R + U) of them (20,480), 36 times as many. Each device expands what it gathered for its own
heads. The transpose scatters the gradient of the latents back, and it alone.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jaxtyping import Array, Bool, Float, Int

from loong_jax.errors import ConfigError
from loong_jax.models.moe import context
from loong_jax.models.moe.kernels import (
    AttentionMask,
    Operands,
    blockwise,
    cudnn,
    latent_kernel,
    latent_split,
    splash,
)
from loong_jax.models.moe.kernels.blockwise import Blockwise
from loong_jax.models.moe.kernels.cudnn import Cudnn
from loong_jax.models.moe.kernels.splash import Splash
from loong_jax.models.products import accumulate
from loong_jax.sharding import ShardingRules


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeScores:
    """The scores of all pairs at once, T * S per head: quickest for short sequences."""


AttentionKind: TypeAlias = WholeScores | Blockwise | Splash | Cudnn

# From absorbed queries [B, N, T, C] and their rotary parts [B, N, T, R] to mixed latents.
AttendLatents: TypeAlias = Callable[
    [Float[Array, "B N T C"], Float[Array, "B N T R"]], Float[Array, "B N T C"]
]

_MOST_PAIRS = 256 * 256  # of a query and a key, for which whole scores are chosen
_CAUSAL_QUERIES = 72  # at most so many at a time: fewer leave out more keys and take more programs


def choose(num_queries: int, num_keys: int, platform: str, *, fused: bool = False) -> AttentionKind:
    """The kind of attention for these lengths on one device; `fused` where `cudnn.fits`."""
    if num_queries * num_keys <= _MOST_PAIRS:
        return WholeScores()
    if platform == "tpu" and splash.fits(num_queries, num_keys):
        return Splash()
    if fused and num_queries == num_keys:
        return Cudnn()
    if platform == "cpu":  # blocks that stay in a core's cache
        # products of larger blocks are faster, but of short sequences they fill up and mask more
        queries, keys = (256 if num >= 2048 else 128 for num in (num_queries, num_keys))
        return Blockwise(query_block=queries, key_block=keys)
    return Blockwise()


def takes_parents(kind: AttentionKind | None, platform: str) -> bool:
    """True where a mask with parents costs no more than one without: no fused kernel knows them."""
    return isinstance(kind, WholeScores | Blockwise) or (kind is None and platform == "cpu")


def whole(
    operands: Operands, mask: AttentionMask, rules: ShardingRules, kind: AttentionKind | None = None
) -> Float[Array, "B T N U"]:
    """softmax(query key) value among the tokens of whole sequences; `kind` None chooses.

    Tokens stand in the order of `context.order`, and `mask` gives queries in that order and keys
    in the order of the sequence. Under a mask with parents blocks replace the fused kernels.

    Raises:
      ConfigError: see `splash.make_kernel` and `context.order`; cuDNN has no kernel.
    """
    num_tokens, parts = operands.latent.shape[1], rules.parts("act_length")
    platform = rules.platform
    head, width = operands.query.shape[-1], operands.value_up.shape[-1]
    fused = cudnn.fits(rules.compute_capability, operands.query.dtype, head, width)
    chosen = kind is None
    kind = kind or choose(num_tokens // parts, num_tokens, platform, fused=fused)
    if mask.query_parent is not None:
        kind = _without_kernel(kind)
    if chosen and isinstance(kind, WholeScores) and rules.mesh is None and platform == "cpu":
        return causal_scores(operands, mask)
    if isinstance(kind, Cudnn) and not fused:
        raise ConfigError(
            f"attention=Cudnn() with compute capability {rules.compute_capability}, "
            f"{operands.query.dtype} and heads of {head} and {width}: its kernels are for NVIDIA "
            "GPUs from 8.0 on, sixteen bits, and keys in multiples of 8 of up to 128 (256 from 9.0 "
            "on) that are at least as wide as values. Use None, which chooses."
        )
    if isinstance(kind, Cudnn):
        kind = kind.on(rules.compute_capability)
    kernel = None
    if isinstance(kind, Splash):
        kernel = splash.make_kernel(
            kind,
            operands.query.shape[2] // rules.parts("heads"),
            tuple(context.order(num_tokens, rules).tolist()),
            parts,
            interpret=platform != "tpu",
        )
    return _on_mesh(operands, mask, kind, kernel, "act_length", rules)


def cached(
    operands: Operands, mask: AttentionMask, rules: ShardingRules, kind: AttentionKind | None = None
) -> Float[Array, "B T N U"]:
    """The same for queries anywhere over the latents of a cache.

    Splash attention knows the places of queries before it is compiled, so here blocks replace it.
    """
    num_queries, num_keys = operands.query.shape[1], operands.latent.shape[1]
    num_queries = num_queries // rules.parts("act_length")
    kind = _without_kernel(kind or choose(num_queries, num_keys, rules.platform))
    return _on_mesh(operands, mask, kind, None, "act_keys", rules)


def _without_kernel(kind: AttentionKind) -> WholeScores | Blockwise:
    match kind:
        case Splash():
            return Blockwise(query_block=kind.query_block, key_block=kind.key_block)
        case Cudnn():
            return kind.others
    return kind


def over_latents(
    allowed: Bool[Array, "B T S"], latent: Float[Array, "B S C"], rope_key: Float[Array, "B S R"]
) -> AttendLatents:
    """Mixes latents as they are cached; query t of sequence b sees those where `allowed[b, t]`."""

    def attend_latents(
        query_BNTC: Float[Array, "B N T C"], rope_query_BNTR: Float[Array, "B N T R"]
    ) -> Float[Array, "B N T C"]:
        score_BNTS = accumulate("BNTC,BSC->BNTS", query_BNTC, latent)
        score_BNTS += accumulate("BNTR,BSR->BNTS", rope_query_BNTR, rope_key)
        weight_BNTS, total_BNT = attention_weights(score_BNTS, allowed)
        mixed_BNTC = accumulate("BNTS,BSC->BNTC", weight_BNTS.astype(latent.dtype), latent)
        return (mixed_BNTC / total_BNT[..., None]).astype(query_BNTC.dtype)

    return attend_latents


def over_cache(
    latent: Float[Array, "L attentions B S C"],
    rope_key: Float[Array, "L attentions B S R"],
    layer: Int[Array, ""],
    sub_layer: int,
    position: Int[Array, "B T"],
    rules: ShardingRules,
) -> AttendLatents:
    """The same for one attention of a whole cache; queries see entries up to their positions."""
    capacity, rank = latent.shape[3:]
    if rules.platform == "tpu" and latent_kernel.fits(capacity, rank):
        attend = latent_kernel.attend
    elif latent_split.fits(
        rules.compute_capability, latent.dtype, capacity, rank, rope_key.shape[-1]
    ):
        attend = latent_split.attend
    else:
        allowed_BTS = jnp.arange(capacity)[None, None] <= position[..., None]
        return over_latents(allowed_BTS, latent[layer, sub_layer], rope_key[layer, sub_layer])

    queries = rules.partition("act_batch", "heads", None, None)
    caches = rules.partition(None, None, "act_batch", "act_keys", None)
    specs = queries, queries, caches, caches, rules.partition(), rules.partition("act_batch", None)
    # The kernel does not say along which axes its results vary, so it is not checked.
    on_mesh = rules.shard_map(
        lambda query, rope_query, latent, rope_key, layer, at: attend(
            query, rope_query, latent, rope_key, layer, sub_layer, at
        ),
        in_specs=specs,
        out_specs=queries,
        check_vma=False,
    )
    return lambda query, rope_query: on_mesh(query, rope_query, latent, rope_key, layer, position)


def _on_mesh(
    operands: Operands,
    mask: AttentionMask,
    kind: AttentionKind,
    kernel: splash.Kernel | None,
    keys: str,
    rules: ShardingRules,
) -> Float[Array, "B T N U"]:
    """Attention of this kind on every device of the mesh; `kernel` is that of `Splash`.

    `keys` names the logical axis of the keys; those along the length are gathered.
    """

    def attend(
        operands: Operands, mask: AttentionMask, kernel: splash.Kernel | None
    ) -> Float[Array, "B T N U"]:
        if keys == "act_length":
            latent, rope_key = context.gather(operands.latent, operands.rope_key, rules)
            operands = operands._replace(latent=latent, rope_key=rope_key)
        match kind:
            case WholeScores():
                return whole_scores(operands, mask)
            case Blockwise():
                return blockwise.attend(operands, mask, kind)
            case Splash():
                assert kernel is not None
                return splash.attend(operands, mask, kernel)
            case Cudnn():
                return cudnn.attend(operands, mask, kind)

    mesh = rules.mesh
    if mesh is None:
        return attend(operands, mask, kernel)
    queries = rules.partition("act_batch", "act_length", "heads", None)
    latents = rules.partition("act_batch", keys, None)
    up = rules.partition(None, "heads", None)
    per_query, per_key = rules.partition("act_batch", "act_length"), rules.partition("act_batch")
    parents = None if mask.query_parent is None else per_query
    specs = (
        Operands._make((queries, latents, latents, up, up)),
        AttentionMask._make((per_query, per_query, per_key, per_key, parents)),
        splash.specs(kernel, rules),
    )
    arguments = jax.tree.map(
        lambda a, spec: jax.sharding.reshard(a, NamedSharding(mesh, spec)),
        (operands, mask, kernel),
        specs,
    )
    # The splash kernel does not say along which axes its results vary, so it is not checked.
    on_mesh = rules.shard_map(attend, in_specs=specs, out_specs=queries, check_vma=False)
    return on_mesh(*arguments)


def whole_scores(operands: Operands, mask: AttentionMask) -> Float[Array, "B T N U"]:
    """The equation as it stands, with all scores in memory."""
    return _mixed(operands.query, *operands.expanded(), mask.pairs())


def causal_scores(operands: Operands, mask: AttentionMask) -> Float[Array, "B T N U"]:
    """The same for tokens in the order of their sequence, some queries at a time: none of these is
    multiplied with the keys behind all of them, and scores are made again going back.
    """
    key_BSNh, value_BSNU = operands.expanded()
    num_tokens, mix = key_BSNh.shape[1], jax.checkpoint(_mixed)
    size = -(-num_tokens // -(-num_tokens // _CAUSAL_QUERIES))
    mixed = []
    for start in range(0, num_tokens, size):
        end = min(start + size, num_tokens)
        queries, keys = slice(start, end), slice(end)
        here = AttentionMask(
            mask.query_segment[:, queries],
            mask.query_index[:, queries],
            mask.key_segment[:, keys],
            mask.key_index[:, keys],
            None if mask.query_parent is None else mask.query_parent[:, queries],
        )
        query = operands.query[:, queries]
        mixed.append(mix(query, key_BSNh[:, keys], value_BSNU[:, keys], here.pairs()))
    return jnp.concatenate(mixed, axis=1)


def _mixed(
    query: Float[Array, "B T N h"],
    key: Float[Array, "B S N h"],
    value: Float[Array, "B S N U"],
    allowed: Bool[Array, "B T S"],
) -> Float[Array, "B T N U"]:
    score_BNTS = accumulate("BTNh,BSNh->BNTS", query, key)
    weight_BNTS, total_BNT = attention_weights(score_BNTS, allowed)
    weight_BNTS = weight_BNTS.astype(value.dtype)
    mixed_BNTU = accumulate("BNTS,BSNU->BNTU", weight_BNTS, value)
    mixed_BNTU = (mixed_BNTU / total_BNT[..., None]).astype(query.dtype)
    return jnp.moveaxis(mixed_BNTU, 1, 2)


def attention_weights(
    score: Float[Array, "B N T S"], allowed: Bool[Array, "B T S"]
) -> tuple[Float[Array, "B N T S"], Float[Array, "B N T"]]:
    """Softmax over the keys in float32 before its division, and what to divide by.

    The caller divides the mixed values instead of the weights: there are U of them, not S. The
    largest weight of every query is 1; a query that may see nothing has zeros, to divide by 1.
    """
    hidden = jnp.finfo(jnp.float32).min
    score = jnp.where(allowed[:, None], score, hidden)
    largest = jnp.max(score, axis=-1, keepdims=True, initial=hidden / 2)
    weight = jnp.exp(score - jax.lax.stop_gradient(largest))
    total = jnp.sum(weight, axis=-1)
    return weight, jnp.where(total > 0, total, 1)
