"""Rows taken to where they are wanted and summed where they came from, by gathers alone.

`take_rows` and `sum_rows` are each other's transposes. Both directions read at an index, none adds
at one, so nothing depends on the order in which duplicates would be added.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.custom_vjp
def take_rows(
    x: Float[Array, "n D"], source: Int[Array, "rows"], place: Int[Array, "n k"]
) -> Float[Array, "rows D"]:
    """x[source]; a source past the end reads some row of x, which nobody may look at.

    `place` says the same the other way round: the rows that hold x[i], past the end where there
    are fewer than k.
    """
    return x.at[source].get(mode="clip")


@jax.custom_vjp
def sum_rows(
    rows: Float[Array, "rows D"], place: Int[Array, "n k"], source: Int[Array, "rows"]
) -> Float[Array, "n D"]:
    """The float32 sum of rows[place] over k; a place past the end adds nothing.

    `source` is the inverse of `place`, as in `take_rows`.
    """
    first, *others = (
        rows.at[place[:, k]].get(mode="fill", fill_value=0).astype(jnp.float32)
        for k in range(place.shape[1])
    )
    return sum(others, start=first)


def _take_forward(x, source, place):
    return take_rows(x, source, place), (source, place, jnp.zeros((0,), x.dtype))


def _take_backward(saved, grad):
    source, place, like = saved
    return sum_rows(grad, place, source).astype(like.dtype), None, None


def _sum_forward(rows, place, source):
    return sum_rows(rows, place, source), (source, place, jnp.zeros((0,), rows.dtype))


def _sum_backward(saved, grad):
    source, place, like = saved
    return take_rows(grad.astype(like.dtype), source, place), None, None


take_rows.defvjp(_take_forward, _take_backward)
sum_rows.defvjp(_sum_forward, _sum_backward)


def later_rounds(
    one_round: Callable[[Any, Any, Any, Any], Array],
    num_rounds: Int[Array, ""],
    inputs: Any,
    weights: Any,
    indices: Any,
) -> tuple[Array, Any]:
    """The float32 sum of one_round(i, inputs, weights, indices) over 1 <= i < num_rounds.

    For what does not fit into the buffers of round 0, so usually for nothing: a loop that is not
    entered costs nothing, in time or in memory. Round 0 must use the weights returned, not those
    given: their gradient then comes in as the first value of the loop that adds the later rounds'
    to it, in place. Gradients reach `inputs` and `weights`; `indices` holds integers.
    """

    def forward(inputs, weights, indices, num_rounds):
        shape = jax.eval_shape(one_round, jnp.int32(1), inputs, weights, indices)
        zeros = zeros_alike(jax.tree.leaves(inputs)[0], shape.shape, jnp.float32)

        def add(i, total):
            return total + one_round(i, inputs, weights, indices).astype(jnp.float32)

        return jax.lax.fori_loop(1, num_rounds, add, zeros), weights

    def backward(saved, grads):
        inputs, weights, indices, num_rounds = saved
        grad_sum, grad_weights = grads

        def add(i, totals):
            made, pull = jax.vjp(lambda x, w: one_round(i, x, w, indices), inputs, weights)
            return jax.tree.map(jnp.add, totals, pull(grad_sum.astype(made.dtype)))

        zeros = jax.tree.map(lambda a: zeros_alike(a, a.shape, a.dtype), inputs)
        grad_inputs, grad_weights = jax.lax.fori_loop(1, num_rounds, add, (zeros, grad_weights))
        return grad_inputs, grad_weights, None, None

    run = jax.custom_vjp(forward)
    run.defvjp(lambda *operands: (forward(*operands), operands), backward)
    return run(inputs, weights, indices, num_rounds)


def zeros_alike(like: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros that vary over the same mesh axes as `like`, which shard_map checks."""
    return jax.lax.full_like(like, 0, shape=shape, dtype=dtype)
