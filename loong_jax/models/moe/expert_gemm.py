"""The SwiGLU of the experts over rows that chose them, on one device, behind one function.

    blocked     a batched product of padded rows and a loop for the rest: for CPU, where the next
                is dense
    ragged_dot  XLA's grouped product, for TPU and GPU
    tokamax     the same product by tokamax's kernels, which must be installed

All multiply the gate in before the product with `down`, so summing rows needs no weights.
"""

import importlib
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from loong_jax.errors import ConfigError
from loong_jax.models.moe import grouped
from loong_jax.models.moe.rows import later_rounds, sum_rows, take_rows

ExpertGemm: TypeAlias = Literal["auto", "blocked", "ragged_dot", "tokamax"]


def choose(asked: ExpertGemm, platform: str) -> ExpertGemm:
    """What `auto` means for the platform that a program is compiled for."""
    if asked != "auto":
        return asked
    return "blocked" if platform == "cpu" else "ragged_dot"


def expert_ffn(
    x: Float[Array, "R D"],
    gate: Float[Array, "R K"],
    expert: Int[Array, "R K"],
    gate_up: Float[Array, "E D twice_M"],
    down: Float[Array, "E M D"],
    *,
    gemm: ExpertGemm,
    room: int | None = None,
    mean_rows: float | None = None,
) -> Float[Array, "R D"]:
    """sum over the choices k of gate_k * FFN_{expert_k}(x), float32.

    `gate_up` holds the M columns of every gate, then those of every up projection. An `expert`
    below 0 is no choice. `room` is how many choices the grouped products take at a
    time; more take more rounds, and None makes room for R * K. `mean_rows` is how many choices an
    expert should meet, and None R * K / E: `blocked`, which needs no room, is fastest where it is
    true. The result depends on neither.
    """
    if gemm == "blocked":
        if mean_rows is None:
            mean_rows = expert.size / len(down)
        plan = grouped.arrange(expert, expert >= 0, len(down), grouped.capacity(mean_rows))
        both = gate_up.reshape(*gate_up.shape[:2], 2, -1)
        return grouped.expert_ffn(x, gate, plan, both, down)
    product = jax.lax.ragged_dot if gemm == "ragged_dot" else tokamax_ragged_dot()
    num_choices = expert.size
    room = num_choices if room is None else min(room, num_choices)
    if len(down) == expert.shape[1] == 1 and room == num_choices:
        return _one_expert(x, gate, expert, *(w.reshape(w.shape[1:]) for w in (gate_up, down)))
    is_of_NE = expert.reshape(-1, 1) == jnp.arange(len(down))[None]
    count_E = jnp.sum(is_of_NE, axis=0, dtype=jnp.int32)
    number_N = jax.lax.iota(jnp.int32, num_choices)
    by_expert_N = jnp.where(expert < 0, len(down), expert).reshape(-1)
    _, order_N = jax.lax.sort((by_expert_N, number_N), num_keys=1, is_stable=True)
    _, rank_N = jax.lax.sort((order_N, number_N), num_keys=1)

    def one_round(i, inputs, weights, indices):
        (x, gate), (gate_up, down) = inputs, weights
        order_N, rank_RK, count_E = indices
        choice_r = order_N.at[i * room + jnp.arange(room)].get(mode="clip")
        last_E = jnp.clip(jnp.cumsum(count_E) - i * room, 0, room)
        size_E = last_E - jnp.append(0, last_E[:-1])
        place_RK = rank_RK - i * room
        place_RK = jnp.where((place_RK >= 0) & (place_RK < last_E[-1]), place_RK, room)
        x_rD = take_rows(x, choice_r // expert.shape[1], place_RK)
        gate_r1 = take_rows(gate.reshape(-1, 1), choice_r, place_RK.reshape(-1, 1))
        both = product(x_rD, gate_up, size_E)
        first, second = jnp.split(both, 2, axis=-1)
        hidden = jax.nn.silu(first) * second * gate_r1
        used = jnp.arange(room) < last_E[-1]  # what stands past the last group is not defined
        hidden = jnp.where(used[:, None], hidden, 0).astype(x.dtype)
        return sum_rows(product(hidden, down, size_E), place_RK, choice_r // expert.shape[1])

    inputs, weights = (x, gate), (gate_up, down)
    indices = (order_N, rank_N.reshape(expert.shape), count_E)
    if room == num_choices:
        return one_round(0, inputs, weights, indices)
    num_rounds = -(-jnp.sum(count_E) // room)
    rest, weights = later_rounds(one_round, num_rounds, inputs, weights, indices)
    return one_round(0, inputs, weights, indices) + rest


def _one_expert(
    x: Float[Array, "R D"],
    gate: Float[Array, "R 1"],
    expert: Int[Array, "R 1"],
    gate_up: Float[Array, "D twice_M"],
    down: Float[Array, "M D"],
) -> Float[Array, "R D"]:
    """`expert_ffn` of rows that have one expert to go to: there is nothing to sort.

    A row that is not for it may hold any finite numbers, as exchanges fill it, and its gate may be
    none: what is made of them is put to zero before it is multiplied with, and so is its gradient.
    """
    both = jnp.where(expert < 0, 0, x @ gate_up)
    first, second = jnp.split(both, 2, axis=-1)
    hidden = jax.nn.silu(first) * second * jnp.where(expert < 0, 0, gate)
    return (hidden.astype(x.dtype) @ down).astype(jnp.float32)


def tokamax_ragged_dot():
    """tokamax's grouped product, with the arguments of `jax.lax.ragged_dot`.

    Raises:
      ConfigError: tokamax is not installed.
    """
    try:
        tokamax = importlib.import_module("tokamax")
    except ImportError as error:
        raise ConfigError(
            "expert_gemm='tokamax' needs the package tokamax, which cannot be imported "
            f"({error}). Install it, or use 'ragged_dot' or 'auto'."
        ) from error
    return tokamax.ragged_dot
