"""The slots of an engine: what each holds, and how samples enter and leave them.

All are arrays with one row per slot or per sample; the functions are meant to be compiled.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from loong_jax.rollout.draw import Truncation
from loong_jax.rollout.speculation import Drafting

Cache = Any  # arrays [*, *, B, S, *]


class SlotState(NamedTuple):
    """One sample per row. `position` is that of `token`, the last one written, from 0."""

    token: Int[Array, "B"]
    position: Int[Array, "B"]
    prompt_length: Int[Array, "B"]
    last_position: Int[Array, "B"]  # where the length limit ends the sample
    active: Bool[Array, "B"]
    key: UInt32[Array, "B 2"]
    temperature: Float[Array, "B"]
    greedy: Bool[Array, "B"]
    stop: Int[Array, "B"]  # the token that ends the sample
    history: Int[Array, "B before"] | None = None  # tokens before `token`, where the model asks
    truncation: Truncation | None = None  # where the engine can truncate
    stops: Int[Array, "B stops"] | None = None  # further tokens that end the sample, or -1
    drafting: Drafting | None = None  # where the engine decodes with drafts


class Prefix(NamedTuple):
    """Caches of prompts, and samples that each continue one of them, for slots."""

    cache: Cache
    row: Int[Array, "members"]  # whose cache a member continues
    slot: SlotState


class DecodeState(NamedTuple):
    cache: Cache
    slot: SlotState
    num_drafts: Int[Array, "2"] | None = None  # proposed, kept; where there are drafts


def empty(
    batch: int,
    num_before: int = 0,
    *,
    truncation: bool = False,
    num_stops: int = 0,
    hidden: jax.ShapeDtypeStruct | None = None,
) -> SlotState:
    """Slots that hold nothing. No two arrays share memory, so all may be donated.

    `num_before` is how many tokens before the last one the model looks at beside its cache;
    `hidden`, of one state, is given where there are drafts.
    """
    numbers = jnp.zeros(batch, jnp.int32)
    return SlotState(
        token=numbers,
        position=jnp.zeros_like(numbers),
        prompt_length=jnp.ones_like(numbers),
        last_position=jnp.zeros_like(numbers),
        active=jnp.zeros(batch, bool),
        key=jnp.zeros((batch, 2), jnp.uint32),
        temperature=jnp.ones(batch, jnp.float32),
        greedy=jnp.zeros(batch, bool),
        stop=jnp.zeros_like(numbers),
        history=jnp.zeros((batch, num_before), jnp.int32) if num_before else None,
        truncation=Truncation.none(batch) if truncation else None,
        stops=jnp.full((batch, num_stops), -1, jnp.int32) if num_stops else None,
        drafting=None if hidden is None else Drafting.zeros(batch, hidden),
    )


def take(slot: SlotState, slots: Int[Array, "W"]) -> SlotState:
    """The rows of `slots`; a number past the last slot gives a row that is not active."""
    exists = slots < slot.active.shape[0]
    part = jax.tree.map(lambda a: a.at[slots].get(mode="clip"), slot)
    return part._replace(active=part.active & exists)


def put(state: DecodeState, cache: Cache, slot: SlotState, slots: Int[Array, "W"]) -> DecodeState:
    """Writes rows into slots; a short cache fills the front, numbers past the last are dropped."""
    cache = jax.tree.map(
        lambda old, new: old.at[:, :, slots, : new.shape[3]].set(new, mode="drop"),
        state.cache,
        cache,
    )
    return state._replace(cache=cache, slot=put_slots(state.slot, slot, slots))


def put_slots(slots_now: SlotState, slot: SlotState, slots: Int[Array, "W"]) -> SlotState:
    """Writes rows into slots; numbers past the last are dropped."""
    return jax.tree.map(lambda old, new: old.at[slots].set(new, mode="drop"), slots_now, slot)


def insert(prefix: Prefix, state: DecodeState, slots: Int[Array, "members"]) -> DecodeState:
    """Puts every member of the prefix into its slot."""
    rows = jax.tree.map(lambda a: a[:, :, prefix.row], prefix.cache)
    return put(state, rows, prefix.slot, slots)


def extract(state: DecodeState, slot: Int[Array, ""]) -> Prefix:
    """The sample of a slot as a prefix of one member: the inverse of `insert`."""
    cache = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, slot, 1, axis=2), state.cache)
    one = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, slot, 1), state.slot)
    return Prefix(cache, jnp.zeros(1, jnp.int32), one)


def cancel(state: DecodeState, ended: Bool[Array, "B"]) -> DecodeState:
    """Slots under `ended` write nothing more."""
    return state._replace(slot=state.slot._replace(active=state.slot.active & ~ended))
