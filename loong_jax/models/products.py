"""Products with dense weights, norms, and chunks that let a CPU core work out of its cache."""

import functools
import math
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

Trees = TypeVarTuple("Trees")
Made = TypeVar("Made")


def project(
    x: Float[Array, "..."],
    weight: Float[Array, "..."],
    *,
    num_contracted: int = 1,
    out_sharding: NamedSharding | None = None,
    out_dtype: DTypeLike | None = None,
) -> Float[Array, "..."]:
    """Contracts the last axes of `x` with the first axes of `weight`, as many as asked.

    On a mesh the axes stay as they are, each with its sharding. Without one they are flattened into
    a plain matrix product: XLA's gradient of the general product copies both operands on CPU, which
    nearly doubles the time of a feed-forward net.
    """
    if not jax.typeof(x).sharding.mesh.empty:
        last = tuple(range(x.ndim - num_contracted, x.ndim))
        first = tuple(range(num_contracted))
        axes = (last, first), ((), ())
        return jax.lax.dot_general(
            x, weight, axes, preferred_element_type=out_dtype, out_sharding=out_sharding
        )
    kept, made = x.shape[: x.ndim - num_contracted], weight.shape[num_contracted:]
    width = math.prod(weight.shape[:num_contracted])
    flat = jnp.matmul(
        x.reshape(-1, width), weight.reshape(width, -1), preferred_element_type=out_dtype
    )
    return flat.reshape(*kept, *made)


def project_weight_first(
    x: Float[Array, "..."],
    weight: Float[Array, "..."],
    *,
    num_contracted: int = 1,
    out_sharding: NamedSharding | None = None,
    out_dtype: DTypeLike | None = None,
) -> Float[Array, "..."]:
    """`project`, whose backward pass makes the weight's gradient first, and then that of `x`.

    So it can be scattered beside the rest of the way back. Both are made of one gradient of the
    output, in the dtype of `x`.
    """

    product = functools.partial(project, num_contracted=num_contracted, out_sharding=out_sharding)

    def backward(saved, grad):
        x, weight = saved
        grad = grad.astype(x.dtype)
        _, of_weight = jax.vjp(lambda weight: product(x, weight), weight)
        _, of_x = jax.vjp(lambda x: product(x, weight), x)
        (grad_weight,), grad = jax.lax.optimization_barrier((of_weight(grad), grad))
        return *of_x(grad), grad_weight

    function = jax.custom_vjp(lambda x, weight: product(x, weight, out_dtype=out_dtype))
    function.defvjp(lambda *operands: (function(*operands), operands), backward)
    return function(x, weight)


def together_going_back(*things: *Trees) -> tuple[*Trees]:
    """Trees of arrays as they are, with an optimization barrier over their gradients."""
    function = jax.custom_vjp(lambda *things: things)
    function.defvjp(
        lambda *things: (things, None), lambda _, grads: jax.lax.optimization_barrier(grads)
    )
    return function(*things)


def accumulate(
    equation: str, a: Float[Array, "..."], b: Float[Array, "..."]
) -> Float[Array, "..."]:
    """An einsum that adds up, and returns, float32 whatever the dtype of its operands."""
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def product_of_blocks(
    a: Float[Array, "..."], b: Float[Array, "..."], axis: int
) -> Float[Array, "..."]:
    """A product in kernels: float32 sums over the last axis of a matrix and `axis` of another.

    Operands in float32 are not rounded to fewer bits.
    """
    return jax.lax.dot_general(
        a,
        b,
        (((1,), (axis,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def in_chunks(
    function: Callable[..., Made],
    arrays: tuple[Array, ...],
    rows: int | None,
    *,
    axis: int = 0,
    recompute: bool = True,
) -> Made:
    """`function(*arrays)`, some rows along `axis` at a time, recomputed when going back.

    `function` must treat rows alike and return arrays that have them along the same axis. With
    `rows` None, or no fewer than there are, it is called once and recomputes nothing. Without
    `recompute` it is called for one chunk after the other, and all that they made is kept.
    """
    num_rows = arrays[0].shape[axis]
    if rows is None or rows >= num_rows:
        return function(*arrays)
    if not recompute:
        parts = [
            function(
                *(jax.lax.slice_in_dim(a, i, min(i + rows, num_rows), axis=axis) for a in arrays)
            )
            for i in range(0, num_rows, rows)
        ]
        return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=axis), *parts)
    whole = num_rows - num_rows % rows

    def cut(a: Shaped[Array, "..."]) -> Shaped[Array, "chunks ..."]:
        first = jax.lax.slice_in_dim(a, 0, whole, axis=axis)
        chunks = first.reshape(*a.shape[:axis], -1, rows, *a.shape[axis + 1 :])
        return jnp.moveaxis(chunks, axis, 0)

    def join(a: Shaped[Array, "chunks ..."]) -> Shaped[Array, "..."]:
        joined = jnp.moveaxis(a, 0, axis)
        return joined.reshape(*joined.shape[:axis], whole, *joined.shape[axis + 2 :])

    done = jax.lax.map(
        lambda chunk: jax.checkpoint(function)(*chunk), tuple(cut(a) for a in arrays)
    )
    done = jax.tree.map(join, done)
    if whole == num_rows:
        return done
    rest = function(*(jax.lax.slice_in_dim(a, whole, num_rows, axis=axis) for a in arrays))
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=axis), done, rest)


def rms_norm(
    x: Float[Array, "*batch width"], weight: Float[Array, "width"], eps: float
) -> Float[Array, "*batch width"]:
    """x / sqrt(mean(x^2) + eps) * weight, all in float32 and rounded once to the dtype of x."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    # Straight to the shape of x, so that its gradient is one sum over all other axes. By way of
    # axes of size 1 it is, in a batch of one, a sum over a middle axis: slow on CPU.
    weight = jax.lax.broadcast_in_dim(
        weight.astype(jnp.float32), x.shape, (x.ndim - 1,), out_sharding=jax.typeof(x).sharding
    )
    return (y * weight).astype(x.dtype)


def scaled(weight: Float[Array, "width"], factor: float) -> Float[Array, "width"]:
    """The weight of a norm times a factor, float32.

    A bf16 weight times a Python number would round the number to bf16 first: sqrt(12) by 0.13 %.
    """
    return weight.astype(jnp.float32) * factor
