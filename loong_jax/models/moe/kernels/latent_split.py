"""Attention of a few new tokens over the latent cache, as one Pallas kernel for NVIDIA GPUs.

As `latent_kernel` for TPU it reads every latent once, from the caches of all layers, and stops at
the last entry that a sequence may see. A sequence is cut into splits so that a small batch keeps
all processors busy; each split leaves its own softmax, and they are joined afterwards.

Source: arXiv:2405.04434, section 2.1.2 (absorbed form); arXiv:2205.14135 (running softmax); the
splits are those of Flash-Decoding (pytorch.org/blog/flash-decoding).
"""

import functools
import importlib.util
import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

from loong_jax.models.products import product_of_blocks

_TRITON = "jax.experimental.pallas.triton"  # which JAX means to remove
_BLOCK = 64  # entries that are read at a time; half of it where that alone divides the capacity
_MOST_BYTES = 1152  # of an entry, in 99 KiB of shared memory; Hopper and large Blackwells have 227
_ROWS = 16  # queries of a program, heads and tokens together; no product has fewer rows
# The fastest of 15 on an H200 (64 sequences of 8192 entries; in a whole step it reads 4.1 of
# 4.8 TB/s): groups of 32 threads, blocks on their way, and programs, two for each processor.
_WARPS, _STAGES, _PROGRAMS = 4, 2, 264
_HIDDEN = -1e30  # finite, so that differences of hidden scores are


def fits(
    capability: tuple[int, int] | None,
    dtype: DTypeLike,
    capacity: int,
    kv_lora_rank: int,
    rope_width: int,
) -> bool:
    """True if a device of this compute capability runs the kernel for entries of these widths.

    Entries must come in multiples of 32, widths be powers of two, and blocks on their way fit into
    the memory that a processor has for itself.
    """
    if capability is None or capability < (8, 0):
        return False
    entry = (kv_lora_rank + rope_width) * jnp.dtype(dtype).itemsize
    if entry > _MOST_BYTES * (2 if capability[0] in (9, 10) else 1):
        return False
    if importlib.util.find_spec(_TRITON) is None:
        return False
    widths = kv_lora_rank, rope_width
    return capacity % (_BLOCK // 2) == 0 and all(w >= 16 and w & (w - 1) == 0 for w in widths)


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
    from jax.experimental.pallas import triton

    batch, heads, num_tokens, rank = query.shape
    capacity, rope = rope_key.shape[3:]
    rows = heads * num_tokens
    groups = pl.cdiv(rows, _ROWS)
    block = _BLOCK if capacity % _BLOCK == 0 else _BLOCK // 2
    split = _split_length(capacity, block, batch * groups)
    splits = capacity // split

    def filled(a: Shaped[Array, "B rows ..."], fill: int = 0) -> Shaped[Array, "B all_rows ..."]:
        widths = [(0, 0), (0, groups * _ROWS - rows)] + [(0, 0)] * (a.ndim - 2)
        return jnp.pad(a, widths, constant_values=fill)

    def of_rows(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, _ROWS, *shape), lambda g, b, s: (b, g, *(0 for _ in shape)))

    def of_splits(*shape: int) -> pl.BlockSpec:
        spec = (1, 1, _ROWS, *shape)
        return pl.BlockSpec(spec, lambda g, b, s: (b, s, g, *(0 for _ in shape)))

    def whole(a: Shaped[Array, "..."]) -> pl.BlockSpec:
        return pl.BlockSpec(a.shape, lambda *_: (0,) * a.ndim)

    last_B = jnp.clip(position[:, -1], 0, capacity - 1)
    layer_1 = layer.reshape(1)
    lead = batch, splits, groups * _ROWS
    mixed, largest, total = pl.pallas_call(
        functools.partial(_kernel, split=split, block=block, sub_layer=sub_layer),
        grid=(groups, batch, splits),  # the rows of a sequence side by side: they read the same
        in_specs=[
            whole(layer_1),
            whole(last_B),
            of_rows(),
            of_rows(rank),
            of_rows(rope),
            whole(latent),
            whole(rope_key),
        ],
        out_specs=[of_splits(rank), of_splits(), of_splits()],
        out_shape=[
            jax.ShapeDtypeStruct((*lead, rank), jnp.float32),
            jax.ShapeDtypeStruct(lead, jnp.float32),
            jax.ShapeDtypeStruct(lead, jnp.float32),
        ],
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=_STAGES),
        name="latent_attention",
        interpret=interpret,
    )(
        layer_1,
        last_B,
        filled(jnp.tile(position, (1, heads))),
        filled(query.reshape(batch, rows, rank)),
        filled(rope_query.reshape(batch, rows, rope)),
        latent,
        rope_key,
    )
    share = jnp.exp(largest - jnp.max(largest, axis=1, keepdims=True))
    mixed = jnp.sum(mixed * share[..., None], axis=1) / jnp.sum(total * share, axis=1)[..., None]
    return mixed[:, :rows].astype(query.dtype).reshape(query.shape)


def _split_length(capacity: int, block: int, num_programs: int) -> int:
    """Entries of a split: whole blocks that divide the capacity."""
    blocks = capacity // block
    wanted = math.ceil(_PROGRAMS / num_programs)
    return block * min(d for d in range(1, blocks + 1) if blocks % d == 0 and blocks <= wanted * d)


# The softmax of rows so far: the largest score, the total, and the mixed latents.
_Running: TypeAlias = tuple[Float[Array, "rows"], Float[Array, "rows"], Float[Array, "rows C"]]


def _kernel(
    layer_ref: jax.Ref,  # [1]
    last_ref: jax.Ref,  # [B]
    position_ref: jax.Ref,  # [1, rows]
    query_ref: jax.Ref,  # [1, rows, C]
    rope_query_ref: jax.Ref,  # [1, rows, R]
    latent_ref: jax.Ref,  # [L, attentions, B, S, C]
    rope_key_ref: jax.Ref,  # [L, attentions, B, S, R]
    mixed_ref: jax.Ref,  # [1, 1, rows, C], float32 as the next two
    largest_ref: jax.Ref,  # [1, 1, rows]
    total_ref: jax.Ref,  # [1, 1, rows]
    *,
    split: int,
    block: int,
    sub_layer: int,
):
    b, start = pl.program_id(1), pl.program_id(2) * split
    layer = layer_ref[0]
    query, rope_query, position = query_ref[0], rope_query_ref[0], position_ref[0]

    def add_block(i: Int[Array, ""], running: _Running) -> _Running:
        largest, total, mixed = running
        at = pl.ds(start + i * block, block)
        latent = latent_ref[layer, sub_layer, b, at, :]
        rope_key = rope_key_ref[layer, sub_layer, b, at, :]
        score = product_of_blocks(query, latent, 1) + product_of_blocks(rope_query, rope_key, 1)
        entry = start + i * block + jax.lax.broadcasted_iota(jnp.int32, score.shape, 1)
        score = jnp.where(entry <= position[:, None], score, _HIDDEN)
        highest = jnp.maximum(largest, jnp.max(score, axis=1))
        shrink, weight = jnp.exp(largest - highest), jnp.exp(score - highest[:, None])
        total = shrink * total + jnp.sum(weight, axis=1)
        mixed = shrink[:, None] * mixed + product_of_blocks(weight.astype(latent.dtype), latent, 0)
        return highest, total, mixed

    rows, rank = query.shape
    none = jnp.full((rows,), _HIDDEN, jnp.float32)
    zeros = jnp.zeros((rows,), jnp.float32), jnp.zeros((rows, rank), jnp.float32)
    seen = jnp.clip(last_ref[b] + 1 - start, 0, split)
    largest, total, mixed = jax.lax.fori_loop(0, pl.cdiv(seen, block), add_block, (none, *zeros))
    mixed_ref[0, 0], largest_ref[0, 0], total_ref[0, 0] = mixed, largest, total
