"""`RaggedExchange` on one device, inside `shard_map`: as many rows as there are.

A device sends from a buffer of N = T K rows, one for each choice, and receives into one of R.
`form` is how the D numbers of a row lie in either (`_folded`).
"""

import dataclasses
import functools
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.models.moe.exchange import RaggedExchange, Sizes, dispatch
from loong_jax.models.moe.exchange.buffers import round_up, to_eight_bits
from loong_jax.models.moe.exchange.dispatch import (
    DispatchPlan,
    Gates,
    Number,
    Round,
    Rows,
    Targets,
    Tokens,
    zeros_alike,
)

_Plan: TypeAlias = tuple[DispatchPlan, Int[Array, "P P"]]
_Sent: TypeAlias = tuple[Shaped[Array, "N *form"], Shaped[Array, "N numbers"]]
_Arrived: TypeAlias = tuple[Shaped[Array, "R *form"], Shaped[Array, "R numbers"]]


class RaggedRound(NamedTuple):
    """A round whose rows lie without gaps, and where each pair's rows begin and end."""

    sending: Round
    count: Int[Array, "P P"]  # rows of this round from each device to each
    departure: Int[Array, "P P"]  # where they begin among the rows of the device that sends them
    arrival: Int[Array, "P P"]  # and of the device that receives them


@dataclasses.dataclass(frozen=True)
class Ragged:
    """`RaggedExchange` on one device."""

    exchange: RaggedExchange
    sizes: Sizes
    room = None

    @property
    def num_rows(self) -> int:
        """The rows of the receiving buffer."""
        most = self.sizes.num_devices * self.sizes.num_tokens * self.sizes.most_per_device
        return min(self.sizes.mean_rows(self.exchange.buffer_factor), round_up(most, 16))

    @property
    def may_overflow(self) -> bool:
        sizes = self.sizes
        return self.num_rows < sizes.num_devices * sizes.num_tokens * sizes.most_per_device

    def plan(self, target: Targets, kept: Bool[Array, "T K"]) -> _Plan:
        """The plan of this device and how many rows each device has for each."""
        plan = dispatch.plan_dispatch(target, kept, self.sizes.num_local, self.sizes.num_devices, 1)
        return plan, jax.lax.all_gather(plan.count, self.sizes.axes)

    def num_rounds(self, plan: _Plan) -> Int[Array, ""]:
        """The rounds needed by the device that receives the most rows."""
        return -(-jnp.max(jnp.sum(plan[1], axis=0)) // self.num_rows)

    def num_waiting(self, plan: _Plan) -> Int[Array, ""]:
        """Choices of this device that are not sent in round 0."""
        now = self.take_round(plan, 0).count[jax.lax.axis_index(self.sizes.axes)]
        return jnp.sum(plan[0].count) - jnp.sum(now)

    def take_round(self, plan: _Plan, i: Number) -> RaggedRound:
        """Round i: what falls into rows i * num_rows and following of all that a device gets."""
        own, count_PP = plan
        before_PP = jnp.cumsum(count_PP, axis=0) - count_PP  # of senders with lower numbers
        first_PP = jnp.clip(i * self.num_rows - before_PP, 0, count_PP)
        end_PP = jnp.clip((i + 1) * self.num_rows - before_PP, 0, count_PP)
        departure_PP = jnp.cumsum(count_PP, axis=1) - count_PP + first_PP
        arrival_PP = before_PP + first_PP - i * self.num_rows
        row_N = jax.lax.iota(jnp.int32, own.choice.size)
        row_N = jnp.where(row_N < jnp.sum(own.count), row_N, -1)
        place_TK = own.first.at[own.destination].get(mode="clip") + own.rank
        place_TK = jnp.where(own.expert >= 0, place_TK, row_N.size)
        return RaggedRound(
            dispatch.make_round(own, row_N, place_TK, 1),
            end_PP - first_PP,
            departure_PP,
            arrival_PP,
        )

    def load(self, x: Tokens, gate: Gates, plan: _Plan, round: RaggedRound) -> Rows:
        return dispatch.load(x, gate, plan[0], round.sending)

    def unload(self, back: Shaped[Array, "N *form"], round: RaggedRound) -> Tokens:
        return dispatch.unload(_flat(back), round.sending)

    def pack(self, x: Tokens, gate: Gates, plan: _Plan, round: RaggedRound) -> _Sent:
        """The rows that `load` makes and their numbers; eight bits are found once for a token."""
        scale: tuple[Array, ...] = ()
        if self.exchange.dispatch_dtype is not None:
            x, scale_T1 = to_eight_bits(x, jnp.dtype(self.exchange.dispatch_dtype))
            scale_N1 = scale_T1.at[dispatch.token_of(round.sending)].get(mode="clip")
            scale = (jax.lax.bitcast_convert_type(scale_N1, jnp.int32),)
        rows = self.load(x, gate, plan, round)
        bits = jax.lax.bitcast_convert_type(rows.gate, jnp.int32)
        return _folded(rows.x), jnp.concatenate([bits, rows.expert + 1, *scale], axis=1)

    def unpack(self, packed: _Arrived, dtype: DTypeLike) -> Rows:
        x, (gate, expert, *scale) = _flat(packed[0]), jnp.split(packed[1], packed[1].shape[1], 1)
        for bits in scale:
            x = x.astype(jnp.float32) * jax.lax.bitcast_convert_type(bits, jnp.float32)
        gate = jax.lax.bitcast_convert_type(gate, jnp.float32)
        return Rows(x.astype(dtype), gate, expert - 1)

    def pack_gradient(self, x: Float[Array, "R D"], gate: Float[Array, "R 1"]) -> _Arrived:
        return _folded(x), gate

    def unpack_gradient(self, packed: _Sent) -> tuple[Float[Array, "N D"], Float[Array, "N 1"]]:
        return _flat(packed[0]), packed[1]

    def send(self, packed: _Sent, round: RaggedRound) -> _Arrived:
        return self._rows_last(packed, round, back=False)

    def send_gradient(self, packed: _Arrived, round: RaggedRound) -> _Sent:
        return self._rows_last(packed, round, back=True)

    def _rows_last(
        self, packed: _Sent | _Arrived, round: RaggedRound, *, back: bool
    ) -> _Sent | _Arrived:
        """Rows set off when their numbers have arrived: one exchange is under way at a time, and
        the long one is to be beside other work.
        """
        rows, numbers = packed
        moved = self.moved(numbers, round, back=back)
        rows, numbers = jax.lax.optimization_barrier((rows, moved))
        return self.moved(rows, round, back=back), numbers

    def send_back(self, made: Float[Array, "R D"], round: RaggedRound) -> Shaped[Array, "N *form"]:
        return _return(self, _folded(made), round)

    def moved(
        self, rows: Shaped[Array, "before *form"], round: RaggedRound, *, back: bool
    ) -> Shaped[Array, "after *form"]:
        """Rows of a round, carried to where they are received, or back to where they came from."""
        me, sizes = jax.lax.axis_index(self.sizes.axes), self.sizes
        sent, received = ((slice(None), me), me) if back else (me, (slice(None), me))
        first, at = round.departure, round.arrival
        num_rows = self.num_rows
        if back:
            first, at, num_rows = at, first, sizes.num_tokens * sizes.num_chosen
        return ragged_all_to_all(
            rows,
            zeros_alike(rows, (num_rows, *rows.shape[1:]), rows.dtype),
            first[sent],
            round.count[sent],
            at[sent],
            round.count[received],
            axes=sizes.axes,
            emulated=sizes.platform == "cpu",
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _return(
    work: Ragged, made: Shaped[Array, "R *form"], round: RaggedRound
) -> Shaped[Array, "N *form"]:
    return work.moved(made, round, back=True)


_return.defvjp(
    lambda work, made, round: (work.moved(made, round, back=True), round),
    lambda work, round, grad: (work.moved(grad, round, back=False), None),
)


def ragged_all_to_all(
    rows: Shaped[Array, "N *form"],
    into: Shaped[Array, "R *form"],
    input_offset: Int[Array, "P"],
    send_size: Int[Array, "P"],
    output_offset: Int[Array, "P"],
    receive_size: Int[Array, "P"],
    *,
    axes: tuple[str, ...],
    emulated: bool,
) -> Shaped[Array, "R *form"]:
    """`jax.lax.ragged_all_to_all` over these mesh axes, or the same by an all-gather.

    Row input_offset[p] and the next of them, send_size[p] in all, go to device p and lie there from
    row output_offset[p] on; rows of `into` that nobody writes stay.
    """
    if not emulated:
        sizes = (input_offset, send_size, output_offset, receive_size)
        return jax.lax.ragged_all_to_all(rows, into, *sizes, axis_name=axes)
    me = jax.lax.axis_index(axes)
    gathered = (jax.lax.all_gather(a, axes) for a in (rows, input_offset, send_size, output_offset))
    rows_PN, *of_every_device = gathered
    first_P, size_P, at_P = (a[:, me] for a in of_every_device)
    since_RP = jnp.arange(len(into))[:, None] - at_P[None]
    comes_RP = (since_RP >= 0) & (since_RP < size_P[None])
    sender_R = jnp.argmax(comes_RP, axis=1)
    row_R = jnp.sum(jnp.where(comes_RP, since_RP + first_P[None], 0), axis=1)
    came = rows_PN.at[sender_R, row_R].get(mode="clip")
    is_new_R = jnp.any(comes_RP, axis=1).reshape(-1, *[1] * (into.ndim - 1))
    return jnp.where(is_new_R, came, into)


def _folded(rows: Shaped[Array, "N D"]) -> Shaped[Array, "N *form"]:
    """Rows in the form in which TPUs exchange them, by words of 32 bits that hold k elements.

    XLA copies rows of any other form into this one and back, right beside the exchange: work that
    is to hide the exchange then runs after the copy (v5p, libtpu 0.0.50). So what is to be carried
    is folded and what was carried stays so, until it is unloaded.
    """
    per_word = max(1, 4 // rows.dtype.itemsize)
    return rows.reshape(len(rows), per_word, -1) if rows.shape[1] % per_word == 0 else rows


def _flat(rows: Shaped[Array, "N *form"]) -> Shaped[Array, "N D"]:
    return rows.reshape(len(rows), -1)
