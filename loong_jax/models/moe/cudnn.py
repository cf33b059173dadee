"""Attention by cuDNN's fused kernels, over keys and values that are expanded whole.

They take rows of one sequence each, padded on the right if at all; which rows came is known only
when they are there, so the program holds both ways and takes blocks for all others.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from loong_jax.models.moe import blockwise
from loong_jax.models.moe.blockwise import Blockwise
from loong_jax.models.moe.sight import Operands, Sight

# What `MoEConfig.remat` calls what goes into the kernels, and what comes out.
EXPANDED, KEPT_AS = "expanded", "attention"

Kernel: TypeAlias = Callable[[Array, Array, Array], Array]  # queries, keys, values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cudnn:
    """For NVIDIA GPUs, in bfloat16 or float16; `others` is for rows that the kernels do not take.

    Under it padding may see tokens before it. No token sees padding.
    """

    others: Blockwise = Blockwise()


def fits(
    capability: tuple[int, int] | None, dtype: DTypeLike, head_width: int, value_width: int
) -> bool:
    """Whether a device of this compute capability has the kernels for heads of H + R and U."""
    if capability is None or jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float16):
        return False
    widest = 256 if capability >= (9, 0) else 128 if capability >= (8, 0) else 0
    return value_width <= head_width <= widest and head_width % 8 == value_width % 8 == 0


def is_forward_kernel(primitive: Any, *_: Any, **__: Any) -> bool:
    """A checkpoint policy that keeps what a kernel made, its residuals too; they have no name."""
    return primitive.name.startswith("dot_product_attention_fwd")


def attend(
    operands: Operands,
    sight: Sight,
    sizes: Cudnn,
    kernel: Kernel | None = None,
) -> Float[Array, "B T N U"]:
    """softmax(query key) value for every query and head."""
    if sight.query_index.shape != sight.key_index.shape:
        return blockwise.attend(operands, sight, sizes.others)
    return jax.lax.cond(
        one_sequence_each(sight),
        lambda operands: _fused(operands, kernel or causal_attention),
        lambda operands: blockwise.attend(operands, sight, sizes.others),
        operands,
    )


def one_sequence_each(sight: Sight) -> Bool[Array, ""]:
    """Whether every row is one sequence in its order, with padding on its right or none."""
    index_1T = jnp.arange(sight.key_index.shape[1])[None]
    segment_BT = sight.query_segment
    goes_on = segment_BT[:, 1:] == segment_BT[:, :-1]
    return (
        jnp.all(goes_on | (segment_BT[:, 1:] == 0))
        & jnp.all(segment_BT == sight.key_segment)
        & jnp.all(sight.query_index == index_1T)
        & jnp.all(sight.key_index == index_1T)
    )


def _fused(operands: Operands, kernel: Kernel) -> Float[Array, "B T N U"]:
    key_BSNh, value_BSNU = operands.expanded()
    num_tokens = key_BSNh.shape[1]
    # There is no gradient of odd lengths; no token sees the one that is added at the end.
    arguments = (
        jnp.pad(a, [(0, 0), (0, num_tokens % 2), (0, 0), (0, 0)])
        for a in (operands.query, key_BSNh, value_BSNU)
    )
    return kernel(*(checkpoint_name(a, EXPANDED) for a in arguments))[:, :num_tokens]


def causal_attention(
    query_BTNh: Float[Array, "B T N h"],
    key_BSNh: Float[Array, "B S N h"],
    value_BSNU: Float[Array, "B S N U"],
) -> Float[Array, "B T N U"]:
    """The kernel.

    JAX's public function wants values as wide as keys. Filled up with zeros from 128 to 192 they
    take 1.5 times as long on an H200, forward and back, so the function behind it is called where
    it is there.
    """
    width, head = value_BSNU.shape[-1], query_BTNh.shape[-1]
    private = None if width == head else _private_kernel()
    if private is not None:
        return private(query_BTNh, key_BSNh, value_BSNU)
    value_BSNh = jnp.pad(value_BSNU, [(0, 0)] * 3 + [(0, head - width)])
    mixed_BTNh = jax.nn.dot_product_attention(
        query_BTNh, key_BSNh, value_BSNh, scale=1.0, is_causal=True, implementation="cudnn"
    )
    return mixed_BTNh[..., :width]


def _private_kernel() -> Any:
    try:
        from jax._src.cudnn import fused_attention_stablehlo as fused
    except ImportError:
        return None
    return functools.partial(
        fused.dot_product_attention,
        scale=1.0,
        mask_type=fused.MaskType.CAUSAL,
        qkv_layout="BTNH",
    )
