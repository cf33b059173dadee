"""Attention of a few new tokens over the latent cache, as one Pallas kernel for TPU.

Decoding reads the whole cache of a sequence to write one token, so its time is that of the read.
Scores and mixture as two products read every latent twice; here a block of latents is fetched once,
scored, and mixed under a running softmax. The kernel takes the caches of all layers and fetches
from one of them, so no layer is copied out, and stops at the last entry that a sequence may see.

Rotary keys come with positions along the lanes, as a TPU stores an array this narrow anyway.
Source: arXiv:2405.04434, section 2.1.2 (absorbed form); arXiv:2205.14135 (running softmax).
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from loong_jax.models.products import product_of_blocks

_LANES = 128
_MOST_ENTRIES = 1024  # of a block
_MOST_SCORES = 2**18  # of a block, float32: a MiB of the 16 or more that a core has for itself
_HIDDEN = -1e30  # finite, so that differences of hidden scores are


def fits(capacity: int, kv_lora_rank: int) -> bool:
    """True if capacity and latent rank are multiples of a lane."""
    return capacity % _LANES == 0 and kv_lora_rank % _LANES == 0


def attend(
    query: Float[Array, "B N T C"],
    rope_query: Float[Array, "B N T R"],
    latent: Float[Array, "L attentions B S C"],
    rope_key: Float[Array, "L attentions B S R"],
    layer: Int[Array, ""],
    sub_layer: int,
    position: Int[Array, "B T"],
    *,
    interpret: bool = False,
) -> Float[Array, "B N T C"]:
    """softmax(query latent + rope_query rope_key) latent, in the dtype of `query`.

    Query t of sequence b sees the entries up to `position[b, t]`, which must not fall along t.
    """
    batch, heads, num_tokens, rank = query.shape
    capacity, rope = rope_key.shape[3:]
    rows = heads * num_tokens
    block = _block(capacity, rows)
    last_B = jnp.clip(position[:, -1], 0, capacity - 1)

    def queries(b, s, *_):
        return b, 0, 0

    def seen(b, s, layer, last):  # past the end the same block again, which is not fetched
        return jnp.minimum(s, last[b] // block)

    specs = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2,
        grid=(batch, capacity // block),
        in_specs=[
            pl.BlockSpec((1, rows, 1), queries),
            pl.BlockSpec((1, rows, rank), queries),
            pl.BlockSpec((1, rows, rope), queries),
            pl.BlockSpec(
                (1, 1, 1, block, rank),
                lambda b, s, layer, last: (layer[0], sub_layer, b, seen(b, s, layer, last), 0),
            ),
            pl.BlockSpec(
                (1, 1, 1, rope, block),
                lambda b, s, layer, last: (layer[0], sub_layer, b, 0, seen(b, s, layer, last)),
            ),
        ],
        out_specs=pl.BlockSpec((1, rows, rank), queries),
        scratch_shapes=[
            pltpu.VMEM((rows, _LANES), jnp.float32),
            pltpu.VMEM((rows, _LANES), jnp.float32),
            pltpu.VMEM((rows, rank), jnp.float32),
        ],
    )
    pairs = batch * rows * capacity
    mixed = pl.pallas_call(
        functools.partial(_kernel, block=block),
        grid_spec=specs,
        out_shape=jax.ShapeDtypeStruct((batch, rows, rank), query.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=2 * pairs * (2 * rank + rope),
            transcendentals=pairs,
            bytes_accessed=batch * capacity * (rank + rope) * latent.dtype.itemsize
            + batch * rows * (2 * rank + rope) * query.dtype.itemsize,
        ),
        name="latent_attention",
        interpret=interpret,
    )(
        layer.reshape(1),
        last_B,
        jnp.tile(position, (1, heads))[..., None],
        query.reshape(batch, rows, rank),
        rope_query.reshape(batch, rows, rope),
        latent,
        jnp.swapaxes(rope_key, 3, 4),
    )
    return mixed.reshape(batch, heads, num_tokens, rank)


def _block(capacity: int, rows: int) -> int:
    """Entries per block: a divisor of the capacity in whole lanes."""
    most = max(_LANES, min(_MOST_ENTRIES, _MOST_SCORES // rows // _LANES * _LANES))
    lanes = capacity // _LANES
    return _LANES * max(d for d in range(1, most // _LANES + 1) if lanes % d == 0)


def _kernel(
    layer_ref: jax.Ref,  # in the index maps alone
    last_ref: jax.Ref,  # [B], scalar memory
    position_ref: jax.Ref,  # [1, N T, 1]
    query_ref: jax.Ref,  # [1, N T, C]
    rope_query_ref: jax.Ref,  # [1, N T, R]
    latent_ref: jax.Ref,  # [1, 1, 1, block, C]
    rope_key_ref: jax.Ref,  # [1, 1, 1, R, block]
    mixed_ref: jax.Ref,  # [1, N T, C]
    largest_ref: jax.Ref,  # [N T, 128], every lane alike
    total_ref: jax.Ref,  # likewise
    sum_ref: jax.Ref,  # [N T, C]
    *,
    block: int,
):
    b, s = pl.program_id(0), pl.program_id(1)

    @pl.when(s == 0)
    def start():
        largest_ref[...] = jnp.full(largest_ref.shape, _HIDDEN, largest_ref.dtype)
        total_ref[...] = jnp.zeros(total_ref.shape, total_ref.dtype)
        sum_ref[...] = jnp.zeros(sum_ref.shape, sum_ref.dtype)

    @pl.when(s * block <= last_ref[b])
    def add_block():
        latent = latent_ref[0, 0, 0]
        score = product_of_blocks(query_ref[0], latent, 1)
        score += product_of_blocks(rope_query_ref[0], rope_key_ref[0, 0, 0], 0)
        entry = s * block + jax.lax.broadcasted_iota(jnp.int32, score.shape, 1)
        score = jnp.where(entry <= position_ref[0], score, _HIDDEN)
        before = largest_ref[:, :1]
        largest = jnp.maximum(before, jnp.max(score, axis=1, keepdims=True))
        shrink, weight = jnp.exp(before - largest), jnp.exp(score - largest)
        total = shrink * total_ref[:, :1] + jnp.sum(weight, axis=1, keepdims=True)
        added = product_of_blocks(weight.astype(latent.dtype), latent, 0)
        sum_ref[...] = shrink * sum_ref[...] + added
        largest_ref[...] = jnp.broadcast_to(largest, largest_ref.shape)
        total_ref[...] = jnp.broadcast_to(total, total_ref.shape)

    @pl.when(s == pl.num_programs(1) - 1)
    def finish():
        mixed_ref[0] = (sum_ref[...] / total_ref[:, :1]).astype(mixed_ref.dtype)
