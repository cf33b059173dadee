"""Layers whose weights are stacked on their first axis, called one after the other."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

Cut = tuple[Any, ...]  # the weights of each layer


def cut(layers: nnx.Module, num_layers: int) -> Cut:
    """The weights of each layer, taken out of the stack."""
    _, stacked = nnx.split(layers, graph=False)
    return tuple(
        jax.tree.map(lambda a, index=index: a[index], stacked) for index in range(num_layers)
    )


def scan(
    step: Callable[[Any, Any, Int[Array, ""]], tuple[Any, Any]],
    carry: Any,
    stacked: Any,
    num_layers: int,
    *,
    cut: Cut | None = None,
    remat: Callable[[Any], Any] = lambda body: body,
    unroll: bool = False,
) -> tuple[Any, Any]:
    """`step(carry, weights, index)` over the layers: the last carry, and what steps return.

    Over the weights that are `cut` apart, if they are. `remat` wraps the step for going back.
    """
    body = remat(lambda carry, slices: step(carry, *slices))
    if cut is not None:
        made = []
        for index, weights in enumerate(cut):
            carry, out = body(carry, (weights, jnp.int32(index)))
            made.append(out)
        return carry, jax.tree.map(lambda *a: jnp.stack(a), *made)
    return jax.lax.scan(body, carry, (stacked, jnp.arange(num_layers)), unroll=unroll)


def restarting_positions(segment_ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Positions that count from the first token of each run of equal segment ids."""
    index_1T = jnp.arange(segment_ids.shape[1])[None]
    before = jnp.concatenate([segment_ids[:, :1], segment_ids[:, :-1]], axis=1)
    start = jax.lax.cummax(jnp.where(segment_ids != before, index_1T, 0), axis=1)
    return index_1T - start
