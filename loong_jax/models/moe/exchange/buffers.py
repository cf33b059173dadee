"""All-to-all buffers: rows, gates and experts in one array, which one exchange carries."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped, UInt8

from loong_jax.models.moe.exchange.dispatch import Rows


@dataclasses.dataclass(frozen=True)
class BufferLayout:
    """The layout of a buffer: rows, their gates and their experts.

    Each of `num_blocks` blocks of `stride` rows ends in `number_rows` rows that hold the numbers of
    the others, cut into whole numbers so small that every dtype of rows holds them exactly. Nothing
    is copied to make room: the rows are gathered with those last ones already there.
    """

    num_blocks: int
    stride: int
    number_rows: int
    width: int  # D
    choices_per_row: int  # J
    dispatch_dtype: str | None

    @classmethod
    def fitting(
        cls,
        num_blocks: int,
        rows: int,
        width: int,
        choices_per_row: int,
        dispatch_dtype: str | None,
    ) -> "BufferLayout":
        """A layout with room for at least `rows` rows per block; blocks are whole tiles.

        A tile of TPU memory has 8 rows, and those of eight bits are packed by two tiles.
        """
        numbers = cls._numbers_per_row(choices_per_row, dispatch_dtype)
        tile = 8 if dispatch_dtype is None else 16
        stride = round_up(rows + -(-rows * numbers // width), tile)
        number_rows = -(-stride * numbers // (width + numbers))
        return cls(num_blocks, stride, number_rows, width, choices_per_row, dispatch_dtype)

    @staticmethod
    def _numbers_per_row(choices_per_row: int, dispatch_dtype: str | None) -> int:
        """Bytes of gates and experts; with eight-bit rows also of the scale, in halves."""
        num_bytes = 6 * choices_per_row
        return num_bytes if dispatch_dtype is None else 2 * (num_bytes + 4)

    @property
    def rows(self) -> int:
        """Rows of a block that may carry a token."""
        return self.stride - self.number_rows

    def pack(self, x: Float[Array, "R D"], *numbers: Array) -> Float[Array, "blocks stride D"]:
        """`numbers`, each [R, ...], take the places that rows past the first `rows` had."""
        digits = jnp.concatenate([_bytes_of(a.reshape(len(a), -1)) for a in numbers], axis=1)
        if x.dtype.itemsize == 1:
            digits = jnp.concatenate([digits >> 4, digits & 15], axis=1)
        digits = digits.reshape(self.num_blocks, self.stride, -1)[:, : self.rows]
        digits = digits.reshape(self.num_blocks, -1).astype(jnp.float32).astype(x.dtype)
        room = self.number_rows * self.width - digits.shape[1]
        digits = jnp.pad(digits, ((0, 0), (0, room)))
        digits = digits.reshape(self.num_blocks, self.number_rows, self.width)
        blocks = x.reshape(self.num_blocks, self.stride, self.width)
        return jax.lax.dynamic_update_slice_in_dim(blocks, digits, self.rows, axis=1)

    def unpack(
        self, packed: Float[Array, "blocks stride D"], *dtypes_and_widths: tuple[DTypeLike, int]
    ) -> tuple[Shaped[Array, "R ..."], ...]:
        """The rows and the numbers again; numbers of the last rows are zero."""
        halves = packed.dtype.itemsize == 1
        sizes = [jnp.dtype(dtype).itemsize * width for dtype, width in dtypes_and_widths]
        num_digits = sum(sizes) * (2 if halves else 1)
        lines = packed.reshape(-1, self.width)
        # By their places: to slice every block, TPU would first move all rows to suit the slice.
        at = np.arange(len(lines)).reshape(self.num_blocks, self.stride)[:, self.rows :]
        digits = lines.at[at.reshape(-1)].get(mode="promise_in_bounds")
        digits = digits.reshape(self.num_blocks, -1)[:, : self.rows * num_digits]
        digits = digits.astype(jnp.float32).astype(jnp.uint8)
        digits = digits.reshape(self.num_blocks, self.rows, num_digits)
        digits = jnp.pad(digits, ((0, 0), (0, self.number_rows), (0, 0))).reshape(-1, num_digits)
        if halves:
            high, low = jnp.split(digits, 2, axis=1)
            digits = (high << 4) | low
        ends, numbers = np.cumsum(sizes), []
        for end, size, (dtype, width) in zip(ends, sizes, dtypes_and_widths, strict=True):
            numbers.append(_numbers_of(digits[:, end - size : end], dtype, width))
        return lines, *numbers

    def pack_rows(
        self, rows: Rows, *scales: Float[Array, "R 1"]
    ) -> Float[Array, "blocks stride D"]:
        """Rows with their gates and experts; with `scales` those of rows of eight bits."""
        return self.pack(rows.x, rows.gate, (rows.expert + 1).astype(jnp.int16), *scales)

    def unpack_rows(self, packed: Float[Array, "blocks stride D"], dtype: DTypeLike) -> Rows:
        """The rows that `pack_rows` packed, in `dtype` if they had eight bits."""
        kinds = [(jnp.float32, self.choices_per_row), (jnp.int16, self.choices_per_row)]
        if self.dispatch_dtype is None:
            x, gate, expert = self.unpack(packed, *kinds)
        else:
            x, gate, expert, scale = self.unpack(packed, *kinds, (jnp.float32, 1))
            x = (x.astype(jnp.float32) * scale).astype(dtype)
        return Rows(x, gate, expert.astype(jnp.int32) - 1)


def _bytes_of(a: Shaped[Array, "R width"]) -> UInt8[Array, "R bytes"]:
    return jax.lax.bitcast_convert_type(a, jnp.uint8).reshape(len(a), -1)


def _numbers_of(
    digits: UInt8[Array, "R bytes"], dtype: DTypeLike, width: int
) -> Shaped[Array, "R width"]:
    return jax.lax.bitcast_convert_type(digits.reshape(len(digits), width, -1), dtype)


def to_eight_bits(
    x: Float[Array, "R D"], dtype: DTypeLike
) -> tuple[Float[Array, "R D"], Float[Array, "R 1"]]:
    """Rows over their scale, and the float32 scale that brings the largest value to the limit."""
    largest = jnp.max(jnp.abs(x), axis=1, keepdims=True).astype(jnp.float32)
    limit = float(jnp.finfo(dtype).max)
    tiny = float(jnp.finfo(jnp.float32).tiny)  # a scale below it would be flushed to 0
    scale = jnp.where(largest > limit * tiny, largest / limit, 1.0)
    return (x.astype(jnp.float32) / scale).astype(dtype), scale


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
