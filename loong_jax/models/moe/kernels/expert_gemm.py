"""The SwiGLU of the experts over rows that chose them, on one device, behind one function.

    blocked     a batched product of padded rows and a loop for the rest: for CPU and GPU, where the
                next is dense
    ragged_dot  XLA's grouped product, for TPU
    hopper      the same product by JAX's kernels for NVIDIA's Hopper
    every       every expert over every row, as one dense FFN: on TPU where there is one expert, and
                for few rows, as in decoding
    each        the same as a product per expert: for few rows on GPU, where the former copies the
                weights

All multiply the gate in before the product with `down`, so summing rows needs no weights. R rows of
K choices each make N = R K choices; r of them are multiplied in one round.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from loong_jax.models.moe.exchange.dispatch import later_rounds, sum_rows, take_rows
from loong_jax.models.moe.kernels import grouped, hopper
from loong_jax.models.products import accumulate

PRODUCTS = "experts"  # the name under which a checkpoint policy finds those of gate and up

# The M columns of every gate and those of every up projection, side by side or apart.
GateUp: TypeAlias = (
    Float[Array, "E D twice_M"] | tuple[Float[Array, "E D M"], Float[Array, "E D M"]]
)
ExpertGemm: TypeAlias = Literal["auto", "blocked", "ragged_dot", "hopper", "every", "each"]
_Rows: TypeAlias = Float[Array, "R D"]
_Gates: TypeAlias = Float[Array, "R K"]
_Chosen: TypeAlias = Int[Array, "R K"]
_Down: TypeAlias = Float[Array, "E M D"]


# Products of a row with experts that it did not choose, up to which `every` is chosen: they take
# less time than to sort the rows and to copy out the weights for a kernel. In the time in which a
# weight is read v6e makes 525 products with it, other chips 115 to 480.
_MOST_WASTED = 1024

# On GPU `each` is chosen for up to so many rows: a kernel multiplies as many per expert at least,
# and in the time in which a weight is read an H100 makes 295 products with it.
_ROWS_OF_A_TILE = 128


def choose(
    asked: ExpertGemm,
    platform: str,
    *,
    num_rows: int,
    num_experts: int,
    num_choices: int,
    on_hopper: bool = False,
) -> ExpertGemm:
    """The kernel that `auto` stands for, by platform, rows, experts and choices.

    `on_hopper` says that `hopper.fits`.
    """
    if asked != "auto":
        return asked
    if platform == "cpu":
        return "blocked"
    if platform == "gpu":
        if num_rows <= _ROWS_OF_A_TILE and (num_choices >= num_experts or not on_hopper):
            return "each"
        return "hopper" if on_hopper else "blocked"
    wasted = num_rows * num_experts - num_choices
    return "every" if wasted <= _MOST_WASTED else "ragged_dot"


def expert_ffn(
    x: _Rows,
    gate: _Gates,
    expert: _Chosen,
    gate_up: GateUp,
    down: _Down,
    *,
    gemm: ExpertGemm,
    room: int | None = None,
    mean_rows: float | None = None,
) -> _Rows:
    """sum over the choices k of gate_k * FFN_{expert_k}(x), float32.

    An `expert` below 0 is no choice. `room` is how many choices the grouped products take at a
    time; more take more rounds, and None makes room for R * K. `mean_rows` is how many choices an
    expert should meet, and None R * K / E: `blocked`, which needs no room, is fastest where it is
    true. The result depends on neither, and `every` and `each` need neither.
    """
    if gemm == "blocked":
        if mean_rows is None:
            mean_rows = expert.size / len(down)
        plan = grouped.arrange(expert, expert >= 0, len(down), grouped.capacity(mean_rows))
        if isinstance(gate_up, tuple):
            both = jnp.stack(gate_up, axis=2)
        else:
            both = gate_up.reshape(*gate_up.shape[:2], 2, -1)
        return grouped.expert_ffn(x, gate, plan, both, down)
    if gemm in ("every", "each") and len(down) == expert.shape[1] == 1:
        return _one_expert(x, gate, expert, gate_up, down)
    if gemm == "every":
        return _every_expert(x, gate, expert, gate_up, down)
    if gemm == "each":
        return _each_expert(x, gate, expert, gate_up, down)
    product = hopper.ragged_dot if gemm == "hopper" else jax.lax.ragged_dot
    num_choices = expert.size
    room = num_choices if room is None else min(room, num_choices)
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

        def project(weight: Float[Array, "E D m"]) -> Float[Array, "r m"]:
            return checkpoint_name(product(x_rD, weight, size_E), PRODUCTS)

        first, second = _halves(project, gate_up)
        hidden = jax.nn.silu(first) * second * gate_r1
        used = jnp.arange(room) < last_E[-1]  # values past the last group are undefined
        hidden = jnp.where(used[:, None], hidden, 0).astype(x.dtype)
        return sum_rows(product(hidden, down, size_E), place_RK, choice_r // expert.shape[1])

    inputs, weights = (x, gate), (gate_up, down)
    indices = (order_N, rank_N.reshape(expert.shape), count_E)
    if room == num_choices:
        return one_round(0, inputs, weights, indices)
    num_rounds = -(-jnp.sum(count_E) // room)
    rest, weights = later_rounds(one_round, num_rounds, inputs, weights, indices)
    return one_round(0, inputs, weights, indices) + rest


def _halves(product: Callable[[Array], Array], gate_up: GateUp) -> tuple[Array, Array]:
    """The products with the gate and the up projections, in one call of `product` where joined."""
    if isinstance(gate_up, tuple):
        return product(gate_up[0]), product(gate_up[1])
    first, second = jnp.split(product(gate_up), 2, axis=-1)
    return first, second


def _one_expert(x: _Rows, gate: _Gates, expert: _Chosen, gate_up: GateUp, down: _Down) -> _Rows:
    """`_every_expert` where there is one: what is left is a plain FFN."""
    is_none = expert < 0
    first, second = _halves(lambda weight: jnp.where(is_none, 0, x @ weight[0]), gate_up)
    hidden = jax.nn.silu(first) * second * jnp.where(is_none, 0, gate)
    return (hidden.astype(x.dtype) @ down[0]).astype(jnp.float32)


def _every_expert(x: _Rows, gate: _Gates, expert: _Chosen, gate_up: GateUp, down: _Down) -> _Rows:
    """`expert_ffn` as one dense FFN of all experts, whose gates are zero where a row chose others.

    A row that is for none may hold any finite numbers, as exchanges fill it, and its gate may be
    none: what is made of them is put to zero before it is multiplied with, and so is its gradient.
    """
    is_of_RKE = expert[..., None] == jnp.arange(len(down))[None, None]
    gate_RE1 = jnp.sum(jnp.where(is_of_RKE, gate[..., None], 0), axis=1)[..., None]
    chosen_RE1 = jnp.any(is_of_RKE, axis=1)[..., None]
    first, second = _halves(lambda weight: jnp.einsum("RD,EDm->REm", x, weight), gate_up)
    first, second = (jnp.where(chosen_RE1, a, 0) for a in (first, second))
    hidden = jax.nn.silu(first) * second * gate_RE1
    made = hidden.astype(x.dtype).reshape(len(x), -1) @ down.reshape(-1, down.shape[-1])
    return made.astype(jnp.float32)


def _each_expert(x: _Rows, gate: _Gates, expert: _Chosen, gate_up: GateUp, down: _Down) -> _Rows:
    """`_every_expert` with experts in front, where their weights have them."""
    is_of_ERK = expert[None] == jnp.arange(len(down))[:, None, None]
    gate_ER1 = jnp.sum(jnp.where(is_of_ERK, gate[None], 0), axis=2)[..., None]
    chosen_ER1 = jnp.any(is_of_ERK, axis=2)[..., None]
    x_ERD = jnp.broadcast_to(x[None], (len(down), *x.shape))
    first, second = _halves(lambda weight: jnp.einsum("ERD,EDm->ERm", x_ERD, weight), gate_up)
    first, second = (jnp.where(chosen_ER1, a, 0) for a in (first, second))
    hidden_ERM = (jax.nn.silu(first) * second * gate_ER1).astype(x.dtype)
    return accumulate("ERM,EMD->RD", hidden_ERM, down)
