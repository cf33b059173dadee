"""Attention by cuDNN's fused kernels, over keys and values that are expanded whole.

They take rows of one sequence each, padded on the right if at all, and rows of a few sequences,
padded anywhere. Which rows came is known only when they are there, so the program holds all ways
and takes blocks for all others.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.errors import ConfigError
from loong_jax.models.moe.kernels import blockwise, cudnn_kernels
from loong_jax.models.moe.kernels.blockwise import Blockwise
from loong_jax.models.moe.kernels.cudnn_kernels import (
    Kernel,
    PackedKernel,
    recomputed,
    sequences_of,
)
from loong_jax.models.moe.mask import AttentionMask, Operands

# Names in `MoEConfig.remat` of the kernels' operands and results.
EXPANDED, KEPT_AS = "expanded", "attention"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cudnn:
    """Attention by cuDNN in bfloat16 or float16; `others` is for rows that its kernels do not take.

    `packed` says how many sequences a row may hold, once for each program there is to be: one for
    more takes longer for few (0.17 ms on an H200 for one more, 65,536 tokens and 16 heads, where
    all of it takes 6 to 26 ms), and blocks take three to six times as long
    (docs/measurements/gpu.md). GPUs from 9.0 on (Hopper) have kernels for them, older ones not.

    Under it padding may see tokens before it. No token sees padding. JAX has no `vmap` of these
    kernels: use `jax.lax.map`, or `others`.
    """

    others: Blockwise = Blockwise()
    packed: tuple[int, ...] = (8, 32)
    narrow: bool = True  # values may be narrower than keys; else they are filled up with zeros

    def __post_init__(self):
        if list(self.packed) != sorted({most for most in self.packed if most > 1}):
            raise ConfigError(
                f"packed={self.packed} must be numbers of sequences above 1 in rising order, as in "
                "(8, 32)."
            )

    def on(self, capability: tuple[int, int] | None) -> "Cudnn":
        """The same without the kernels that a device of this compute capability lacks."""
        if capability is None or capability < (9, 0):
            return dataclasses.replace(self, packed=(), narrow=False)
        version = cudnn_kernels.version()
        return dataclasses.replace(
            self, packed=self.packed if version else (), narrow=self.narrow and version >= 91000
        )


def fits(
    capability: tuple[int, int] | None, dtype: DTypeLike, head_width: int, value_width: int
) -> bool:
    """True if a device of this compute capability has the kernels for heads of H + R and U."""
    if capability is None or jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float16):
        return False
    widest = 256 if capability >= (9, 0) else 128 if capability >= (8, 0) else 0
    return value_width <= head_width <= widest and head_width % 8 == value_width % 8 == 0


def is_forward_kernel(primitive: Any, *_: Any, **__: Any) -> bool:
    """A checkpoint policy that keeps what a kernel made, its residuals too; they have no name."""
    return primitive.name.startswith("dot_product_attention_fwd")


def attend(
    operands: Operands,
    mask: AttentionMask,
    sizes: Cudnn,
    kernel: Kernel | None = None,
    packed_kernel: PackedKernel | None = None,
) -> Float[Array, "B T N U"]:
    """softmax(query key) value for every query and head."""
    if mask.query_index.shape != mask.key_index.shape:
        return blockwise.attend(operands, mask, sizes.others)
    whole = kernel or functools.partial(cudnn_kernels.causal_attention, narrow=sizes.narrow)
    packed = packed_kernel or cudnn_kernels.packed_attention

    def of_packed(most: int) -> Callable[[Operands], Float[Array, "B T N U"]]:
        packed_kernel = recomputed(packed, sequences_of(_even(mask.query_segment), most))
        return lambda operands: checkpoint_name(_fused(operands, packed_kernel), KEPT_AS)

    ways = [
        lambda operands: _fused(operands, whole),
        *(of_packed(most) for most in sizes.packed),
        lambda operands: blockwise.attend(operands, mask, sizes.others),
    ]
    return jax.lax.switch(way_of(mask, sizes), ways, operands)


def way_of(mask: AttentionMask, sizes: Cudnn) -> Int[Array, ""]:
    """0 for rows of one sequence each, 1 + i for those that `packed[i]` takes, else one more."""
    way = jnp.int32(1 + len(sizes.packed))
    for i, most in reversed(list(enumerate(sizes.packed))):
        way = jnp.where(few_sequences_each(mask, most), 1 + i, way)
    return jnp.where(one_sequence_each(mask), 0, way)


def one_sequence_each(mask: AttentionMask) -> Bool[Array, ""]:
    """True if every row is one sequence in order, with padding on its right or none."""
    segment_BT = mask.query_segment
    goes_on = segment_BT[:, 1:] == segment_BT[:, :-1]
    return jnp.all(goes_on | (segment_BT[:, 1:] == 0)) & _in_order(mask)


def few_sequences_each(mask: AttentionMask, most: int) -> Bool[Array, ""]:
    """True if every row is at most `most` sequences in order, with padding anywhere."""
    segment_BT = mask.query_segment
    _, start_BM, length_BM = sequences_of(segment_BT, most)
    all_in = jnp.all(jnp.sum(length_BM, axis=1) == jnp.sum(segment_BT > 0, axis=1))
    # Where a segment goes on after a hole, its tokens see those before it.
    segment_BM = jnp.take_along_axis(segment_BT, start_BM, axis=1, mode="clip")
    in_row_BM = jnp.sum(segment_BT[..., None] == segment_BM[:, None], axis=1)
    in_one_piece = jnp.all((in_row_BM == length_BM) | (length_BM == 0))
    return all_in & in_one_piece & _in_order(mask)


def _in_order(mask: AttentionMask) -> Bool[Array, ""]:
    index_1T = jnp.arange(mask.key_index.shape[1])[None]
    return (
        jnp.all(mask.query_segment == mask.key_segment)
        & jnp.all(mask.query_index == index_1T)
        & jnp.all(mask.key_index == index_1T)
    )


def _fused(operands: Operands, kernel: Kernel) -> Float[Array, "B T N U"]:
    key_BSNh, value_BSNU = operands.expanded()
    arguments = (_even(a) for a in (operands.query, key_BSNh, value_BSNU))
    mixed = kernel(*(checkpoint_name(a, EXPANDED) for a in arguments))
    return mixed[:, : key_BSNh.shape[1]]


def _even(a: Shaped[Array, "B T ..."]) -> Shaped[Array, "B evenT ..."]:
    """There is no gradient of odd lengths; no token sees the one that is added at the end."""
    return jnp.pad(a, [(0, 0), (0, a.shape[1] % 2)] + [(0, 0)] * (a.ndim - 2))
