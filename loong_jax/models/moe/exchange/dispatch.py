"""Dispatch: the destination and round of each choice, and the rows that are sent.

Everything is written for one device. Choices are sorted by the device they go to, by gathers and
sorts, without a scatter. T tokens make N = T K choices for P devices; a round sends R rows (`sent`)
of J lanes, one for each choice.

`take_rows` and `sum_rows` are each other's transposes. Both directions read at an index, none adds
at one, so nothing depends on the order in which duplicates would be added.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int
from jaxtyping import PyTree as Tree  # of arrays

Tokens: TypeAlias = Float[Array, "T D"]  # those of one device
Gates: TypeAlias = Float[Array, "T K"]
Targets: TypeAlias = Int[Array, "T K"]
Number: TypeAlias = Int[Array, ""] | int


class Rows(NamedTuple):
    """Rows where they are: on the device that sends or on the one that received them."""

    x: Float[Array, "rows D"]
    gate: Float[Array, "rows J"]  # float32
    expert: Int[Array, "rows J"]  # among those of the destination; below 0 where there is none


class DispatchPlan(NamedTuple):
    """All choices of one device, sorted by destination: what the rounds are cut from.

    Choices of one token for one destination share rows, J to each.
    """

    choice: Int[Array, "N"]  # t * K + k, by destination, then by t * K + k
    row: Int[Array, "N"]  # the row of each, counted over all destinations
    first: Int[Array, "P"]  # row of each destination
    count: Int[Array, "P"]  # of rows
    expert: Int[Array, "T K"]  # among those of the destination; below 0 where there is none
    destination: Int[Array, "T K"]  # P where there is none
    rank: Int[Array, "T K"]  # of the row within the destination
    lane: Int[Array, "T K"]  # which of the J choices in its row


class Round(NamedTuple):
    """The rows of one round, and the choices in each; on the sending device."""

    choice: Int[Array, "sent J"]  # t * K + k; T * K where there is none
    place: Int[Array, "T K"]  # the row of each choice; past the end where in none
    first_place: Int[Array, "T K"]  # the same for the first choice of each row only


def plan_dispatch(
    target: Targets,
    kept: Bool[Array, "T K"],
    num_local: int,
    num_devices: int,
    choices_per_row: int,
) -> DispatchPlan:
    """`target` is an expert where `kept`; device p has experts p * num_local and following."""
    num_choices, per_token = target.size, target.shape[1]
    destination_TK = jnp.where(kept, target // num_local, num_devices)
    number_N = jax.lax.iota(jnp.int32, num_choices)
    operands = (destination_TK.reshape(-1), number_N)
    sorted_N, choice_N = jax.lax.sort(operands, num_keys=1, is_stable=True)
    token_N = choice_N // per_token
    starts_N = (jnp.diff(sorted_N, prepend=-1) != 0) | (jnp.diff(token_N, prepend=-1) != 0)
    since_start_N = number_N - jax.lax.cummax(jnp.where(starts_N, number_N, 0))
    lane_N = since_start_N % choices_per_row
    leads_N = lane_N == 0
    row_N = jnp.cumsum(leads_N, dtype=jnp.int32) - 1
    is_for_NP = (sorted_N[:, None] == jnp.arange(num_devices)[None]) & leads_N[:, None]
    count_P = jnp.sum(is_for_NP, axis=0, dtype=jnp.int32)
    first_P = jnp.cumsum(count_P) - count_P
    rank_N = row_N - first_P.at[sorted_N].get(mode="clip")
    _, rank_N, lane_N = jax.lax.sort((choice_N, rank_N, lane_N), num_keys=1)
    expert_TK = jnp.where(kept, target % num_local, -1)
    rank_TK, lane_TK = rank_N.reshape(target.shape), lane_N.reshape(target.shape)
    return DispatchPlan(
        choice_N, row_N, first_P, count_P, expert_TK, destination_TK, rank_TK, lane_TK
    )


def make_round(
    plan: DispatchPlan, row: Int[Array, "sent"], place: Targets, choices_per_row: int
) -> Round:
    """Fills rows with the choices of those numbered `row`, below 0 for none; see `Round.place`."""
    num_choices, num_rows = plan.choice.size, row.size
    if choices_per_row == 1:
        at_RJ = row[:, None]
        rides_RJ = at_RJ >= 0
    else:
        at_RJ = jnp.searchsorted(plan.row, row)[:, None] + jnp.arange(choices_per_row)[None]
        rides_RJ = plan.row.at[at_RJ].get(mode="fill", fill_value=-2) == row[:, None]
    choice_RJ = plan.choice.at[at_RJ].get(mode="clip")
    choice_RJ = jnp.where(rides_RJ, choice_RJ, num_choices)
    return Round(choice_RJ, place, jnp.where(plan.lane == 0, place, num_rows))


def load(x: Tokens, gate: Gates, plan: DispatchPlan, round: Round) -> Rows:
    """The rows of a round; those without a choice hold anything and say so."""
    num_rows, per_row = round.choice.shape
    choice_s = round.choice.reshape(-1)  # of all R J lanes, row by row
    place_N1 = (round.place * per_row + plan.lane).reshape(-1, 1)
    gate_s1 = take_rows(gate.reshape(-1, 1), choice_s, place_N1)
    expert_s = plan.expert.reshape(-1).at[choice_s].get(mode="fill", fill_value=-1)
    return Rows(
        take_rows(x, token_of(round), round.first_place),
        gate_s1.reshape(num_rows, per_row),
        expert_s.reshape(num_rows, per_row),
    )


def unload(back: Float[Array, "sent D"], round: Round) -> Tokens:
    """The float32 sum of the rows that carried each token."""
    return sum_rows(back, round.first_place, token_of(round))


def token_of(round: Round) -> Int[Array, "sent"]:
    """The token in each row; past the end where there is none."""
    return round.choice[:, 0] // round.place.shape[1]


# --- rows by their index ---------------------------------------------------------------------


_One: TypeAlias = Float[Array, "n D"]
_Many: TypeAlias = Float[Array, "rows D"]
_Source: TypeAlias = Int[Array, "rows"]
_Place: TypeAlias = Int[Array, "n k"]


@jax.custom_vjp
def take_rows(x: _One, source: _Source, place: _Place) -> _Many:
    """x[source]; a source past the end reads some row of x, which nobody may look at.

    `place` says the same the other way round: the rows that hold x[i], past the end where there
    are fewer than k.
    """
    return x.at[source].get(mode="clip")


@jax.custom_vjp
def sum_rows(rows: _Many, place: _Place, source: _Source) -> _One:
    """The float32 sum of rows[place] over k; a place past the end adds nothing.

    `source` is the inverse of `place`, as in `take_rows`.
    """
    first, *others = (
        rows.at[place[:, k]].get(mode="fill", fill_value=0).astype(jnp.float32)
        for k in range(place.shape[1])
    )
    return sum(others, start=first)


# A backward pass needs to know where rows are, and, of no rows, the dtype that gradients have.
take_rows.defvjp(
    lambda x, *at: (take_rows(x, *at), (*at, jnp.zeros((0,), x.dtype))),
    lambda saved, grad: (sum_rows(grad, saved[1], saved[0]).astype(saved[2].dtype), None, None),
)
sum_rows.defvjp(
    lambda rows, *at: (sum_rows(rows, *at), (*at[::-1], jnp.zeros((0,), rows.dtype))),
    lambda saved, grad: (take_rows(grad.astype(saved[2].dtype), *saved[:2]), None, None),
)


def later_rounds(
    one_round: Callable[[Number, Tree, Tree, Tree], _Many],
    num_rounds: Int[Array, ""],
    inputs: Tree,
    weights: Tree,
    indices: Tree,
) -> tuple[_Many, Tree]:
    """The float32 sum of one_round(i, inputs, weights, indices) over 1 <= i < num_rounds.

    For what does not fit into the buffers of round 0, so usually for nothing: a loop that is not
    entered costs nothing, in time or in memory. Round 0 must use the weights returned, not those
    given: their gradient then comes in as the first value of the loop that adds the later rounds'
    to it, in place. Gradients reach `inputs` and `weights`; `indices` holds integers.
    """

    def forward(
        inputs: Tree, weights: Tree, indices: Tree, num_rounds: Int[Array, ""]
    ) -> tuple[_Many, Tree]:
        shape = jax.eval_shape(one_round, jnp.int32(1), inputs, weights, indices)
        zeros = zeros_alike(jax.tree.leaves(inputs)[0], shape.shape, jnp.float32)

        def add(i: Number, total: _Many) -> _Many:
            return total + one_round(i, inputs, weights, indices).astype(jnp.float32)

        return jax.lax.fori_loop(1, num_rounds, add, zeros), weights

    def backward(saved: tuple[Tree, ...], grads: tuple[_Many, Tree]) -> tuple[Tree, ...]:
        inputs, weights, indices, num_rounds = saved
        grad_sum, grad_weights = grads

        def add(i: Number, totals: Tree) -> Tree:
            made, pull = jax.vjp(lambda x, w: one_round(i, x, w, indices), inputs, weights)
            return jax.tree.map(jnp.add, totals, pull(grad_sum.astype(made.dtype)))

        zeros = jax.tree.map(lambda a: zeros_alike(a, a.shape, a.dtype), inputs)
        grad_inputs, grad_weights = jax.lax.fori_loop(1, num_rounds, add, (zeros, grad_weights))
        return grad_inputs, grad_weights, None, None

    run = jax.custom_vjp(forward)
    run.defvjp(lambda *operands: (forward(*operands), operands), backward)
    return run(inputs, weights, indices, num_rounds)


def zeros_alike(like: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Zeros that vary over the same mesh axes as `like`, which shard_map checks."""
    return jax.lax.full_like(like, 0, shape=shape, dtype=dtype)
