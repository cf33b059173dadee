"""Choices of experts sorted by the device they go to, and the rows that carry them there.

Everything is written for one device. Sorting is by gathers and sorts, without a scatter. T tokens
make N = T K choices for P devices; a round sends R rows (`sent`) of J lanes, one for each choice.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models.moe.rows import sum_rows, take_rows


class Rows(NamedTuple):
    """Rows where they are: on the device that sends or on the one that received them."""

    x: Float[Array, "rows D"]
    gate: Float[Array, "rows J"]  # float32
    expert: Int[Array, "rows J"]  # among those of the destination; below 0 where there is none


class Parcels(NamedTuple):
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


class Journey(NamedTuple):
    """How choices ride in rows in one round; on the sending device."""

    choice: Int[Array, "sent J"]  # t * K + k; T * K where there is none
    place: Int[Array, "T K"]  # the row each rides in; past the end where in none
    first_place: Int[Array, "T K"]  # the same for the first choice of each row only


def sort_by_destination(
    target: Int[Array, "T K"],
    kept: Bool[Array, "T K"],
    num_local: int,
    num_devices: int,
    choices_per_row: int,
) -> Parcels:
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
    return Parcels(choice_N, row_N, first_P, count_P, expert_TK, destination_TK, rank_TK, lane_TK)


def make_journey(parcels: Parcels, row_R, place_TK, choices_per_row: int) -> Journey:
    """Fills rows with the choices of the rows numbered `row_R`, below 0 for none."""
    num_choices, num_rows = parcels.choice.size, row_R.size
    if choices_per_row == 1:
        at_RJ = row_R[:, None]
        rides_RJ = at_RJ >= 0
    else:
        at_RJ = jnp.searchsorted(parcels.row, row_R)[:, None] + jnp.arange(choices_per_row)[None]
        rides_RJ = parcels.row.at[at_RJ].get(mode="fill", fill_value=-2) == row_R[:, None]
    choice_RJ = parcels.choice.at[at_RJ].get(mode="clip")
    choice_RJ = jnp.where(rides_RJ, choice_RJ, num_choices)
    return Journey(choice_RJ, place_TK, jnp.where(parcels.lane == 0, place_TK, num_rows))


def load(
    x: Float[Array, "T D"], gate: Float[Array, "T K"], parcels: Parcels, journey: Journey
) -> Rows:
    """The rows of a journey; those without a choice hold anything and say so."""
    num_rows, per_row = journey.choice.shape
    choice_s = journey.choice.reshape(-1)  # of all R J lanes, row by row
    place_N1 = (journey.place * per_row + parcels.lane).reshape(-1, 1)
    gate_s1 = take_rows(gate.reshape(-1, 1), choice_s, place_N1)
    expert_s = parcels.expert.reshape(-1).at[choice_s].get(mode="fill", fill_value=-1)
    return Rows(
        take_rows(x, token_of(journey), journey.first_place),
        gate_s1.reshape(num_rows, per_row),
        expert_s.reshape(num_rows, per_row),
    )


def unload(back: Float[Array, "sent D"], journey: Journey) -> Float[Array, "T D"]:
    """The float32 sum of the rows that carried each token."""
    return sum_rows(back, journey.first_place, token_of(journey))


def token_of(journey: Journey) -> Int[Array, "sent"]:
    """The token in each row; past the end where there is none."""
    return journey.choice[:, 0] // journey.place.shape[1]
