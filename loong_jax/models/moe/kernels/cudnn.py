"""Attention by cuDNN's fused kernels, over keys and values that are expanded whole.

They take rows of one sequence each, padded on the right if at all, and rows of a few sequences,
padded anywhere. Which rows came is known only when they are there, so the program holds all ways
and takes blocks for all others.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.errors import ConfigError
from loong_jax.models.moe.kernels import AttentionMask, Operands, blockwise
from loong_jax.models.moe.kernels.blockwise import Blockwise

# Names in `MoEConfig.remat` of the kernels' operands and results.
EXPANDED, KEPT_AS = "expanded", "attention"

Kernel: TypeAlias = Callable[[Array, Array, Array], Array]  # queries, keys, values
PackedKernel: TypeAlias = Callable[[Array, Array, Array, "Sequences"], Array]

# Bytes. Going back, cuDNN adds up gradients of queries in float32, in an array that has room for
# each of M sequences as if it were as long as its row, so rows are taken a few at a time: four of
# 4096 tokens, 16 heads and 8 sequences take 1.2 times as long as 16 at once, and one 1.3 times.
_SCRATCH = 2**31
_MOST_NUMBERS = 2**31 - 1  # of queries or keys at once: offsets of sequences are 32 bits
_Heads: TypeAlias = Float[Array, "B T N h"]
_Values: TypeAlias = Float[Array, "B T N U"]


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
        known = version()
        return dataclasses.replace(
            self, packed=self.packed if known else (), narrow=self.narrow and known >= 91000
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
    whole = kernel or functools.partial(causal_attention, narrow=sizes.narrow)
    packed = packed_kernel or packed_attention

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


# ---- the two kernels: for rows of one sequence, and for rows of a few
#
# JAX has a public function for the former alone, and for values as wide as keys. To the latter
# belongs what training asks of it: what it keeps, and in what portions it goes back.


class Sequences(NamedTuple):
    """The runs of equal segments in each row, the first M of them; padding is none."""

    segment: Int[Array, "B T"]
    start: Int[Array, "B M"]  # T where there is none
    length: Int[Array, "B M"]  # in tokens; 0 where there is none


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


def causal_attention(
    query_BTNh: _Heads,
    key_BSNh: Float[Array, "B S N h"],
    value_BSNU: Float[Array, "B S N U"],
    *,
    narrow: bool = True,
) -> _Values:
    """The kernel for rows of one sequence; `narrow` says that it takes values narrower than keys.

    JAX's public function wants values as wide as keys. Filled up with zeros from 128 to 192 they
    take 1.5 times as long on an H200, forward and back, so the function behind it is called where
    that is possible.
    """
    width, head = value_BSNU.shape[-1], query_BTNh.shape[-1]
    if narrow and width < head:
        return _jax_kernel("CAUSAL")(query_BTNh, key_BSNh, value_BSNU)
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
    query_BTNh: _Heads, key_BTNh: _Heads, value_BTNU: _Values, sequences: Sequences
) -> _Values:
    """The kernel for rows of several sequences; what it makes of padding is not defined.

    It looks for values where it finds keys, so they are filled up to the same width: XLA hands it
    one offset for both.
    """
    is_none_BM = sequences.length == 0
    length_BM, start_BM = (
        jnp.where(is_none_BM, -1, a) for a in (sequences.length, sequences.start)
    )
    offset_BM = jnp.pad(start_BM, [(0, 0), (0, 1)], constant_values=-1)
    mixed_BTNh = _jax_kernel("PADDING_CAUSAL")(
        query_BTNh,
        key_BTNh,
        _as_wide(value_BTNU, query_BTNh.shape[-1]),
        q_seqlen=length_BM,
        kv_seqlen=length_BM,
        q_offsets=offset_BM,
        kv_offsets=offset_BM,
    )
    return mixed_BTNh[..., : value_BTNU.shape[-1]]


def recomputed(packed: PackedKernel, sequences: Sequences) -> Kernel:
    """A kernel that keeps nothing but its arguments, and makes zeros of padding.

    What `packed` would keep has a number per head for every token and each of the M sequences, be
    they there or not. To run forward again takes a sixth of its time there and back.
    """

    def there(part: _Part) -> _Values:
        sequences, (query, key, value) = part
        return packed(query, key, value, sequences)

    @jax.custom_vjp
    def run(query: _Heads, key: _Heads, value: _Values, sequences: Sequences) -> _Values:
        num_rows, num_tokens, num_heads, width = query.shape
        sizes = _rows_and_heads(num_rows, num_heads, _MOST_NUMBERS // (num_tokens * width))
        arrays = query, key, value
        mixed = _part_by_part(there, sequences, arrays, sizes)
        return _at_tokens(mixed, sequences)

    def backward(arguments, grad):
        query, key, value, sequences = arguments

        def pull_back(part):
            sequences, (grad, query, key, value) = part
            _, pull = jax.vjp(lambda q, k, v: packed(q, k, v, sequences), query, key, value)
            return pull(grad)

        num_rows, num_tokens, num_heads, width = query.shape
        scratch = 4 * sequences.length.shape[1] * num_tokens * width
        sizes = _rows_and_heads(num_rows, num_heads, _SCRATCH // scratch)
        grads = _part_by_part(pull_back, sequences, (grad, query, key, value), sizes)
        d_query, d_key, d_value = (_at_tokens(a, sequences) for a in grads)
        return d_query, d_key, d_value, None

    run.defvjp(lambda *arguments: (run(*arguments), arguments), backward)
    return lambda query, key, value: run(query, key, value, sequences)


def _at_tokens(a_BTNw: Float[Array, "B T N w"], sequences: Sequences) -> Float[Array, "B T N w"]:
    return jnp.where((sequences.segment > 0)[..., None, None], a_BTNw, 0)


def _rows_and_heads(num_rows: int, num_heads: int, at_once: int) -> tuple[int, int]:
    """Numbers of rows, and of heads of each, to take at once; a single row's heads may be split."""

    def most(number: int, limit: int) -> int:
        return max(size for size in range(1, number + 1) if number % size == 0 and size <= limit)

    if at_once < num_heads:
        return 1, most(num_heads, max(1, at_once))
    return most(num_rows, at_once // num_heads), num_heads


# Some rows and heads of [B, T, N, w], and where the sequences of these rows are.
_Part: TypeAlias = tuple[Sequences, Sequence[Float[Array, "B T N _"]]]
_Made = TypeVar("_Made")  # one or several such arrays


def _part_by_part(
    run: Callable[[_Part], _Made],
    sequences: Sequences,
    arrays: Sequence[Float[Array, "B T N _"]],
    sizes: tuple[int, int],
) -> _Made:
    """`run((sequences, arrays))` of arrays [B, T, N, w], so many rows and heads at a time."""
    rows, heads = sizes
    if arrays[0].shape[0] == rows and arrays[0].shape[2] == heads:
        return run((sequences, arrays))
    num_parts = arrays[0].shape[2] // heads

    def of_rows(a: Shaped[Array, "B *rest"]) -> Shaped[Array, "parts rows *rest"]:
        return jnp.repeat(a.reshape(-1, rows, *a.shape[1:]), num_parts, axis=0)

    def of_both(a: Float[Array, "B T N w"]) -> Float[Array, "parts rows T heads w"]:
        parted = a.reshape(-1, rows, a.shape[1], num_parts, heads, a.shape[-1])
        return jnp.moveaxis(parted, 3, 1).reshape(-1, rows, a.shape[1], heads, a.shape[-1])

    def together(a: Float[Array, "parts rows T heads w"]) -> Float[Array, "B T N w"]:
        parted = jnp.moveaxis(a.reshape(-1, num_parts, *a.shape[1:]), 1, 3)
        return parted.reshape(-1, a.shape[2], num_parts * heads, a.shape[-1])

    parts = jax.tree.map(of_rows, sequences), [of_both(a) for a in arrays]
    return jax.tree.map(together, jax.lax.map(run, parts))


def _as_wide(value_BSNU: Float[Array, "B S N U"], head: int) -> Float[Array, "B S N h"]:
    return jnp.pad(value_BSNU, [(0, 0)] * 3 + [(0, head - value_BSNU.shape[-1])])


def version() -> int:
    """The version of cuDNN, 91000 for 9.10, where JAX has its private functions; else 0."""
    fused = _jax_module()
    try:
        return 0 if fused is None else fused.check_cudnn_version()
    except RuntimeError:  # there is no cuDNN
        return 0


def _jax_kernel(mask: str) -> Any:
    """JAX's private function for one of cuDNN's masks."""
    fused: Any = _jax_module()
    return functools.partial(
        fused.dot_product_attention, scale=1.0, mask_type=fused.MaskType[mask], qkv_layout="BTNH"
    )


def _jax_module() -> Any:
    try:
        from jax._src.cudnn import fused_attention_stablehlo as fused
    except ImportError:
        return None
    return fused
