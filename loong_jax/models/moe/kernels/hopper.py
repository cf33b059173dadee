"""The grouped product on NVIDIA's Hopper, by the kernels that come with JAX.

XLA multiplies every row with the weights of every group on GPU, so its own `ragged_dot` takes E
times the operations and memory for E copies of the rows. These kernels multiply each row once; the
gradient of the weights is a product of its own, whose sums run along the rows of a group.
Source: jax.experimental.pallas.ops.gpu.ragged_dot_mgpu and transposed_ragged_dot_mgpu.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

_WIDTH = 64  # of the narrowest block
_ROWS = 128  # of every block
_In: TypeAlias = Float[Array, "R width"]
_Out: TypeAlias = Float[Array, "R out"]
_Weight: TypeAlias = Float[Array, "E width out"]
_Size: TypeAlias = Int[Array, "E"]


def fits(capability: tuple[int, int] | None, dtype: DTypeLike, *widths: int) -> bool:
    """True if a device of this compute capability has the kernels for matrices of these widths."""
    return (
        capability is not None
        and capability[0] == 9
        and jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)
        and all(width % _WIDTH == 0 for width in widths)
    )


@jax.custom_vjp
def ragged_dot(x: _In, weight: _Weight, size: _Size) -> _Out:
    """`jax.lax.ragged_dot`; rows past the last group are zero, in the backward pass as well.

    On a mesh, inside `shard_map`, all three must vary along the same axes.
    """
    return _within(_product(x, weight, size, transposed=False), size)


_Operands: TypeAlias = tuple[_In, _Weight, _Size]


def _forward(x: _In, weight: _Weight, size: _Size) -> tuple[_Out, _Operands]:
    return ragged_dot(x, weight, size), (x, weight, size)


def _backward(saved: _Operands, grad: _Out) -> tuple[_In, _Weight, None]:
    x, weight, size = saved
    grad = _within(grad.astype(x.dtype), size)
    grad_x = _within(_product(grad, weight, size, transposed=True), size)
    return grad_x, _weight_gradient(x, grad, size), None


ragged_dot.defvjp(_forward, _backward)


def _within(rows: _In, size: _Size) -> _In:
    """Zeros where there is no group, instead of what memory held."""
    is_used_R = jnp.arange(len(rows)) < jnp.sum(size)
    return jnp.where(is_used_R[:, None], rows, 0)


def _product(
    x: Float[Array, "R _"], weight: _Weight, size: _Size, *, transposed: bool
) -> Float[Array, "R _"]:
    from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu

    width = weight.shape[1 if transposed else 2]
    columns = _block(width)
    made = ragged_dot_mgpu.ragged_dot(
        _filled(x),
        weight,
        group_sizes=size,
        block_m=_ROWS,
        block_n=columns,
        block_k=_WIDTH,
        max_concurrent_steps=4,
        grid_block_n=min(width // columns, 16),  # blocks side by side that read the same rows
        transpose_rhs=transposed,
    )
    return _varying_like(x, made[: len(x)])


def _weight_gradient(x: _In, grad: _Out, size: _Size) -> _Weight:
    from jax.experimental.pallas.ops.gpu import transposed_ragged_dot_mgpu

    made = transposed_ragged_dot_mgpu.transposed_ragged_dot(
        _filled(x),
        _filled(grad),
        group_sizes=size,
        block_m=128 if x.shape[1] % 128 == 0 else _WIDTH,
        block_n=_block(grad.shape[1]),
        block_k=_WIDTH,
        max_concurrent_steps=4,
        grid_block_n=1,
    )
    return _varying_like(x, made)


def _filled(rows: _In) -> Float[Array, "r width"]:
    """At least a block of rows, and whole tiles of 8."""
    wanted = max(_ROWS, -(-len(rows) // 8) * 8)
    return jnp.pad(rows, [(0, wanted - len(rows)), (0, 0)])


def _varying_like(x: Array, made: Array) -> Array:
    """Marks a kernel's result as varying along the mesh axes of x, which kernels do not do."""
    missing = jax.typeof(x).mat.varying - jax.typeof(made).mat.varying
    return jax.lax.pcast(made, tuple(sorted(missing)), to="varying") if missing else made


def _block(width: int) -> int:
    """Columns of a block; 256 of them no longer fit into registers, at a sixth of the speed."""
    return max((columns for columns in (192, 128) if width % columns == 0), default=_WIDTH)
