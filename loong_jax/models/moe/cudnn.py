"""Attention by cuDNN's fused kernels, over keys and values that are expanded whole.

They take rows of one sequence each, padded on the right if at all, and rows of a few sequences,
padded anywhere. Which rows came is known only when they are there, so the program holds all ways
and takes blocks for all others.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.errors import ConfigError
from loong_jax.models.moe import blockwise
from loong_jax.models.moe.blockwise import Blockwise
from loong_jax.models.moe.sight import Operands, Sight

# What `MoEConfig.remat` calls what goes into the kernels, and what comes out.
EXPANDED, KEPT_AS = "expanded", "attention"

Kernel: TypeAlias = Callable[[Array, Array, Array], Array]  # queries, keys, values
PackedKernel: TypeAlias = Callable[[Array, Array, Array, "Sequences"], Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cudnn:
    """For NVIDIA GPUs, in bfloat16 or float16; `others` is for rows that the kernels do not take.

    `packed` says how many sequences a row may hold, once for each program there is to be: one for
    more takes longer for few (0.17 ms on an H200 for one more, 65,536 tokens and 16 heads, where
    the kernels themselves take 6 to 20), and blocks take several times as long as either. Hopper
    has kernels for them, older GPUs have not.

    Under it padding may see tokens before it. No token sees padding.
    """

    others: Blockwise = Blockwise()
    packed: tuple[int, ...] = (8, 32)

    def __post_init__(self):
        if list(self.packed) != sorted({most for most in self.packed if most > 1}):
            raise ConfigError(
                f"packed={self.packed} must hold numbers of sequences above 1, in rising order."
            )

    def on(self, capability: tuple[int, int] | None) -> "Cudnn":
        """The same without the kernels that a device of this compute capability lacks."""
        if (
            capability is not None
            and capability >= (9, 0)
            and _private_kernel("PADDING_CAUSAL") is not None
        ):
            return self
        return dataclasses.replace(self, packed=())


class Sequences(NamedTuple):
    """The runs of equal segments in rows, of which row b has the first length.count_nonzero(1)."""

    segment: Int[Array, "B T"]
    start: Int[Array, "B M"]  # T where there is none
    length: Int[Array, "B M"]  # in tokens; 0 where there is none


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
    packed_kernel: PackedKernel | None = None,
) -> Float[Array, "B T N U"]:
    """softmax(query key) value for every query and head."""
    if sight.query_index.shape != sight.key_index.shape:
        return blockwise.attend(operands, sight, sizes.others)
    whole, packed = kernel or causal_attention, packed_kernel or packed_attention

    def of_packed(most):
        sequences = sequences_of(_even(sight.query_segment), most)
        return lambda operands: _fused(operands, _recomputed(packed, sequences))

    ways = [
        lambda operands: _fused(operands, whole),
        *(of_packed(most) for most in sizes.packed),
        lambda operands: blockwise.attend(operands, sight, sizes.others),
    ]
    return jax.lax.switch(way_of(sight, sizes), ways, operands)


def way_of(sight: Sight, sizes: Cudnn) -> Int[Array, ""]:
    """0 for rows of one sequence each, 1 + i for those that `packed[i]` takes, else one more."""
    way = jnp.int32(1 + len(sizes.packed))
    for i, most in reversed(list(enumerate(sizes.packed))):
        way = jnp.where(few_sequences_each(sight, most), 1 + i, way)
    return jnp.where(one_sequence_each(sight), 0, way)


def one_sequence_each(sight: Sight) -> Bool[Array, ""]:
    """Whether every row is one sequence in its order, with padding on its right or none."""
    segment_BT = sight.query_segment
    goes_on = segment_BT[:, 1:] == segment_BT[:, :-1]
    return jnp.all(goes_on | (segment_BT[:, 1:] == 0)) & _in_order(sight)


def few_sequences_each(sight: Sight, most: int) -> Bool[Array, ""]:
    """Whether every row is at most so many sequences in their order, with padding anywhere."""
    segment_BT = sight.query_segment
    _, start_BM, length_BM = sequences_of(segment_BT, most)
    all_in = jnp.all(jnp.sum(length_BM, axis=1) == jnp.sum(segment_BT > 0, axis=1))
    # Where a segment goes on after a hole, its tokens see those before it.
    segment_BM = jnp.take_along_axis(segment_BT, start_BM, axis=1, mode="clip")
    in_row_BM = jnp.sum(segment_BT[..., None] == segment_BM[:, None], axis=1)
    in_one_piece = jnp.all((in_row_BM == length_BM) | (length_BM == 0))
    return all_in & in_one_piece & _in_order(sight)


def _in_order(sight: Sight) -> Bool[Array, ""]:
    index_1T = jnp.arange(sight.key_index.shape[1])[None]
    return (
        jnp.all(sight.query_segment == sight.key_segment)
        & jnp.all(sight.query_index == index_1T)
        & jnp.all(sight.key_index == index_1T)
    )


def sequences_of(segment_BT: Int[Array, "B T"], most: int) -> Sequences:
    """The first `most` runs of every row; segment 0 is padding."""
    is_token_BT = segment_BT > 0
    before_BT = jnp.pad(segment_BT[:, :-1], [(0, 0), (1, 0)])
    starts_BT = is_token_BT & (segment_BT != before_BT)
    begun_BT1 = jnp.cumsum(starts_BT, axis=1, dtype=jnp.int32)[..., None]
    number_11M = 1 + jnp.arange(most)[None, None]
    is_of_BTM = (begun_BT1 == number_11M) & is_token_BT[..., None]
    count = functools.partial(jnp.sum, axis=1, dtype=jnp.int32)
    return Sequences(segment_BT, start=count(begun_BT1 < number_11M), length=count(is_of_BTM))


def _fused(operands: Operands, kernel: Kernel) -> Float[Array, "B T N U"]:
    key_BSNh, value_BSNU = operands.expanded()
    arguments = (_even(a) for a in (operands.query, key_BSNh, value_BSNU))
    mixed = kernel(*(checkpoint_name(a, EXPANDED) for a in arguments))
    return mixed[:, : key_BSNh.shape[1]]


def _even(a: Shaped[Array, "B T ..."]) -> Shaped[Array, "B evenT ..."]:
    """There is no gradient of odd lengths; no token sees the one that is added at the end."""
    return jnp.pad(a, [(0, 0), (0, a.shape[1] % 2)] + [(0, 0)] * (a.ndim - 2))


def _recomputed(packed: PackedKernel, sequences: Sequences) -> Kernel:
    """A kernel that keeps nothing but its arguments, and makes zeros of padding.

    What `packed` would keep has a number per head for every token and each of the M sequences, be
    they there or not. To run forward again takes a sixth of its time there and back.
    """

    def at_tokens(a_BTNw, sequences):
        return jnp.where((sequences.segment > 0)[..., None, None], a_BTNw, 0)

    @jax.custom_vjp
    def run(query, key, value, sequences):
        return at_tokens(packed(query, key, value, sequences), sequences)

    def forward(*arguments):
        return run(*arguments), arguments

    def backward(arguments, grad):
        *taken, sequences = arguments
        _, pull_back = jax.vjp(lambda *a: packed(*a, sequences), *taken)
        return *(at_tokens(a, sequences) for a in pull_back(grad)), None

    run.defvjp(forward, backward)
    return lambda query, key, value: run(query, key, value, sequences)


def causal_attention(
    query_BTNh: Float[Array, "B T N h"],
    key_BSNh: Float[Array, "B S N h"],
    value_BSNU: Float[Array, "B S N U"],
) -> Float[Array, "B T N U"]:
    """The kernel for rows of one sequence.

    JAX's public function wants values as wide as keys. Filled up with zeros from 128 to 192 they
    take 1.5 times as long on an H200, forward and back, so the function behind it is called where
    it is there.
    """
    width, head = value_BSNU.shape[-1], query_BTNh.shape[-1]
    private = None if width == head else _private_kernel("CAUSAL")
    if private is not None:
        return private(query_BTNh, key_BSNh, value_BSNU)
    mixed_BTNh = jax.nn.dot_product_attention(
        query_BTNh,
        key_BSNh,
        _as_wide(value_BSNU, head),
        scale=1.0,
        is_causal=True,
        implementation="cudnn",
    )
    return mixed_BTNh[..., :width]


def packed_attention(
    query_BTNh: Float[Array, "B T N h"],
    key_BTNh: Float[Array, "B T N h"],
    value_BTNU: Float[Array, "B T N U"],
    sequences: Sequences,
) -> Float[Array, "B T N U"]:
    """The kernel for rows of several sequences; what it makes of padding is not defined.

    It looks for values where it finds keys, so they are filled up to the same width: XLA hands it
    one offset for both.
    """
    is_none_BM = sequences.length == 0
    length_BM, start_BM = (
        jnp.where(is_none_BM, -1, a) for a in (sequences.length, sequences.start)
    )
    offset_BM = jnp.pad(start_BM, [(0, 0), (0, 1)], constant_values=-1)
    mixed_BTNh = _private_kernel("PADDING_CAUSAL")(
        query_BTNh,
        key_BTNh,
        _as_wide(value_BTNU, query_BTNh.shape[-1]),
        q_seqlen=length_BM,
        kv_seqlen=length_BM,
        q_offsets=offset_BM,
        kv_offsets=offset_BM,
    )
    return mixed_BTNh[..., : value_BTNU.shape[-1]]


def _as_wide(value_BSNU: Float[Array, "B S N U"], head: int) -> Float[Array, "B S N h"]:
    return jnp.pad(value_BSNU, [(0, 0)] * 3 + [(0, head - value_BSNU.shape[-1])])


def _private_kernel(mask: str) -> Any:
    """JAX's own function for one of cuDNN's masks; None in a version that has it no longer."""
    try:
        from jax._src.cudnn import fused_attention_stablehlo as fused
    except ImportError:
        return None
    return functools.partial(
        fused.dot_product_attention,
        scale=1.0,
        mask_type=fused.MaskType[mask],
        qkv_layout="BTNH",
    )
