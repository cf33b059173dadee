"""Three ways for tokens to reach the experts of other devices and for sums to come back.

Everything here runs inside `shard_map` and is written for one device of an expert group of P. A
row is a token on its way: its state, up to J choices among the experts of its destination, and
their gates. The destination multiplies gates in and sums the choices of a row, so rows come back
with nothing to be weighted and the sender adds up the rows of each token.

Choices of zero-computation experts never become rows. Buffers have fixed sizes; rows that do not
fit wait for a later round, so no choice is ever lost.
"""

import dataclasses
import functools
import math
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.errors import ConfigError
from loong_jax.models.moe.envelope import Envelope, round_up, to_eight_bits
from loong_jax.models.moe.parcels import (
    Journey,
    Parcels,
    Rows,
    load,
    make_journey,
    sort_by_destination,
    unload,
)
from loong_jax.models.moe.rows import zeros_alike

AXIS = "expert"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatherExchange:
    """Every device gets all tokens of its group, and a reduce-scatter sums what they became.

    Moves P - 1 rows per token each way whatever was chosen, so it suits groups of up to 8.
    """

    buffer_factor: float = 1.5  # room in the experts' products, in mean numbers of choices

    def __post_init__(self):
        _check_factor(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaddedExchange:
    """An all-to-all of equal buffers, the exchange that TPU compilers run beside other work.

    `choices_per_row` above 1 sends a token once for up to that many experts of one device: fewer
    bytes where groups are small, more room in the experts' products. With `dispatch_dtype` rows
    travel to the experts in eight bits, each scaled to its largest value, and come back, as do all
    gradients, in the dtype of activations.
    """

    buffer_factor: float = 1.25  # of each pair's buffer, in mean numbers of rows
    choices_per_row: int = 1  # J
    dispatch_dtype: Literal["float8_e4m3fn"] | None = None

    def __post_init__(self):
        _check_factor(self)
        if self.choices_per_row < 1:
            raise ConfigError(
                f"choices_per_row={self.choices_per_row} is below 1, and a row carries at least "
                "one choice. Raise it."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaggedExchange:
    """An all-to-all of exactly the rows there are, into one buffer per device.

    CPU has no such collective and emulates it by an all-gather.
    """

    buffer_factor: float = 1.25  # of the receiving buffer, in mean numbers of rows

    def __post_init__(self):
        _check_factor(self)


Exchange: TypeAlias = GatherExchange | PaddedExchange | RaggedExchange


def _check_factor(exchange: Exchange) -> None:
    if not exchange.buffer_factor > 0:
        raise ConfigError(
            f"buffer_factor={exchange.buffer_factor} is not positive. Raise it; 1.25 leaves a "
            "quarter more room than the mean load needs."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What an exchange knows of its device, all of it static."""

    num_devices: int  # P, in an expert group
    num_tokens: int  # T, of one device
    num_chosen: int  # K
    num_local: int  # experts of one device
    mean_chosen: float  # experts with weights that a token meets
    width: int  # D
    platform: str

    @property
    def most_per_device(self) -> int:
        """Choices that a token can have among the experts of one device."""
        return min(self.num_chosen, self.num_local)

    def mean_rows(self, factor: float) -> int:
        """`factor` times the choices that a device's experts receive on average, in tiles of 16."""
        return round_up(math.ceil(factor * self.num_tokens * self.mean_chosen), 16)


@dataclasses.dataclass(frozen=True)
class Padded:
    """`PaddedExchange` at work on one device."""

    exchange: PaddedExchange
    sizes: Sizes

    @property
    def room(self) -> int | None:
        """Choices that the experts' products take at a time; None where every row has one."""
        if self.exchange.choices_per_row == 1:
            return None
        return self.sizes.mean_rows(self.exchange.buffer_factor)

    @property
    def may_overflow(self) -> bool:
        return self.envelope.rows < self.sizes.num_tokens * self.sizes.most_per_device

    @property
    def envelope(self) -> Envelope:
        sizes, exchange = self.sizes, self.exchange
        share = sizes.mean_chosen / sizes.num_devices
        if exchange.choices_per_row > 1:  # the chance that a device is among those of a token
            share = 1 - (1 - 1 / sizes.num_devices) ** sizes.mean_chosen
        rows = math.ceil(exchange.buffer_factor * sizes.num_tokens * share)
        return Envelope.fitting(
            sizes.num_devices,
            min(rows, sizes.num_tokens * sizes.most_per_device),
            sizes.width,
            exchange.choices_per_row,
            exchange.dispatch_dtype,
        )

    def sort(self, target: Int[Array, "T K"], kept: Bool[Array, "T K"]) -> Parcels:
        sizes, per_row = self.sizes, self.exchange.choices_per_row
        return sort_by_destination(target, kept, sizes.num_local, sizes.num_devices, per_row)

    def num_rounds(self, parcels: Parcels) -> Int[Array, ""]:
        """That this device needs for its rows."""
        return -(-jnp.max(parcels.count) // self.envelope.rows)

    def num_waiting(self, parcels: Parcels) -> Int[Array, ""]:
        """Choices that do not travel in round 0."""
        waits = (parcels.expert >= 0) & (parcels.rank >= self.envelope.rows)
        return jnp.sum(waits, dtype=jnp.int32)

    def journey(self, parcels: Parcels, i: Int[Array, ""] | int) -> Journey:
        """Round i: of each destination the rows of ranks from i * rows to (i + 1) * rows - 1."""
        envelope = self.envelope
        at_1r = jnp.arange(envelope.stride)[None]
        rank_Pr = i * envelope.rows + at_1r
        carries_Pr = (at_1r < envelope.rows) & (rank_Pr < parcels.count[:, None])
        row_R = jnp.where(carries_Pr, parcels.first[:, None] + rank_Pr, -1).reshape(-1)
        rank_TK = parcels.rank - i * envelope.rows
        rides_TK = (parcels.expert >= 0) & (rank_TK >= 0) & (rank_TK < envelope.rows)
        place_TK = parcels.destination * envelope.stride + rank_TK
        place_TK = jnp.where(rides_TK, place_TK, row_R.size)
        return make_journey(parcels, row_R, place_TK, envelope.choices_per_row)

    def load(self, x: Array, gate: Array, parcels: Parcels, journey: Journey) -> Rows:
        return load(x, gate, parcels, journey)

    def unload(self, back: Array, journey: Journey) -> Array:
        return unload(back, journey)

    def seal(self, rows: Rows) -> Array:
        envelope, (x, gate, expert) = self.envelope, rows
        numbers = (gate, (expert + 1).astype(jnp.int16))
        if envelope.dispatch_dtype is None:
            return envelope.seal(x, *numbers)
        small, scale = to_eight_bits(x, jnp.dtype(envelope.dispatch_dtype))
        return envelope.seal(small, *numbers, scale)

    def open(self, sealed: Array, dtype: Any) -> Rows:
        per_row = self.exchange.choices_per_row
        dtypes = [(jnp.float32, per_row), (jnp.int16, per_row)]
        if self.envelope.dispatch_dtype is None:
            x, gate, expert = self.envelope.open(sealed, *dtypes)
        else:
            x, gate, expert, scale = self.envelope.open(sealed, *dtypes, (jnp.float32, 1))
            x = (x.astype(jnp.float32) * scale).astype(dtype)
        return Rows(x, gate, expert.astype(jnp.int32) - 1)

    def seal_gradient(self, x: Array, gate: Array) -> Array:
        return self.envelope.seal(x, gate)

    def open_gradient(self, sealed: Array) -> tuple[Array, Array]:
        x, gate = self.envelope.open(sealed, (jnp.float32, self.exchange.choices_per_row))
        return x, gate

    def carry(self, sealed: Array, journey: Journey) -> Array:
        return _swap(sealed)

    def carry_gradient(self, sealed: Array, journey: Journey) -> Array:
        return _swap(sealed)

    def send_back(self, made: Float[Array, "R D"], journey: Journey) -> Float[Array, "R D"]:
        envelope = self.envelope
        blocks = made.reshape(envelope.num_blocks, envelope.stride, envelope.width)
        return _swap(blocks).reshape(made.shape)


def _swap(blocks: Shaped[Array, "P stride D"]) -> Shaped[Array, "P stride D"]:
    """Block p goes to device p, and block p comes from it."""
    return jax.lax.all_to_all(blocks, AXIS, split_axis=0, concat_axis=0, tiled=True)


@dataclasses.dataclass(frozen=True)
class Gathered:
    """`GatherExchange` at work: tokens are rows, with all their choices."""

    exchange: GatherExchange
    sizes: Sizes

    may_overflow = False

    @property
    def room(self) -> int:
        """Choices that the experts' products take at a time."""
        return self.sizes.mean_rows(self.exchange.buffer_factor)

    @property
    def envelope(self) -> Envelope:
        sizes = self.sizes
        return Envelope.fitting(1, sizes.num_tokens, sizes.width, sizes.num_chosen, None)

    def sort(self, target: Int[Array, "T K"], kept: Bool[Array, "T K"]) -> Int[Array, "T K"]:
        return jnp.where(kept, target, -1)

    def journey(self, expert: Int[Array, "T K"], i: int) -> tuple[()]:
        return ()

    def load(self, x: Array, gate: Array, expert: Array, journey: tuple[()]) -> Rows:
        more = ((0, self.envelope.stride - len(x)), (0, 0))
        expert = jnp.pad(expert, more, constant_values=-1)
        return Rows(jnp.pad(x, more), jnp.pad(gate, more), expert)

    def unload(self, back: Array, journey: tuple[()]) -> Array:
        return back[: self.sizes.num_tokens].astype(jnp.float32)

    def seal(self, rows: Rows) -> Array:
        return self.envelope.seal(rows.x, rows.gate, (rows.expert + 1).astype(jnp.int16))

    def open(self, sealed: Array, dtype: Any) -> Rows:
        num_chosen = self.sizes.num_chosen
        everyone = dataclasses.replace(self.envelope, num_blocks=self.sizes.num_devices)
        dtypes = ((jnp.float32, num_chosen), (jnp.int16, num_chosen))
        x, gate, expert = everyone.open(sealed, *dtypes)
        local = expert.astype(jnp.int32) - 1 - jax.lax.axis_index(AXIS) * self.sizes.num_local
        is_here = (expert > 0) & (local >= 0) & (local < self.sizes.num_local)
        return Rows(x, gate, jnp.where(is_here, local, -1))

    def seal_gradient(self, x: Array, gate: Array) -> tuple[Array, Array]:
        return x, gate

    def open_gradient(self, sealed: tuple[Array, Array]) -> tuple[Array, Array]:
        return sealed

    def carry(self, sealed: Array, journey: tuple[()]) -> Array:
        return jax.lax.all_gather(sealed, AXIS, axis=0, tiled=True)

    def carry_gradient(self, sealed: tuple[Array, Array], journey: tuple[()]):
        return tuple(self.send_back(a, ()) for a in sealed)

    def send_back(self, made: Float[Array, "all D"], journey: tuple[()]) -> Float[Array, "some D"]:
        return jax.lax.psum_scatter(made, AXIS, scatter_dimension=0, tiled=True)


class Voyage(NamedTuple):
    """A journey whose rows lie without gaps, and where each pair's rows begin and end."""

    journey: Journey
    count: Int[Array, "P P"]  # rows of this round from each device to each
    departure: Int[Array, "P P"]  # where they begin among the rows of the device that sends them
    arrival: Int[Array, "P P"]  # and of the device that receives them


@dataclasses.dataclass(frozen=True)
class Ragged:
    """`RaggedExchange` at work on one device."""

    exchange: RaggedExchange
    sizes: Sizes
    room = None

    @property
    def num_rows(self) -> int:
        """Of the receiving buffer."""
        most = self.sizes.num_devices * self.sizes.num_tokens * self.sizes.most_per_device
        return min(self.sizes.mean_rows(self.exchange.buffer_factor), round_up(most, 16))

    @property
    def may_overflow(self) -> bool:
        sizes = self.sizes
        return self.num_rows < sizes.num_devices * sizes.num_tokens * sizes.most_per_device

    def sort(self, target: Int[Array, "T K"], kept: Bool[Array, "T K"]) -> tuple[Parcels, Array]:
        """The parcels of this device and how many rows each device has for each."""
        parcels = sort_by_destination(target, kept, self.sizes.num_local, self.sizes.num_devices, 1)
        return parcels, jax.lax.all_gather(parcels.count, AXIS)

    def num_rounds(self, parcels: tuple[Parcels, Array]) -> Int[Array, ""]:
        return -(-jnp.max(jnp.sum(parcels[1], axis=0)) // self.num_rows)

    def num_waiting(self, parcels: tuple[Parcels, Array]) -> Int[Array, ""]:
        now = self.journey(parcels, 0).count[jax.lax.axis_index(AXIS)]
        return jnp.sum(parcels[0].count) - jnp.sum(now)

    def journey(self, parcels: tuple[Parcels, Array], i: Int[Array, ""] | int) -> Voyage:
        """Round i: what falls into rows i * num_rows and following of all that a device gets."""
        own, count_PP = parcels
        before_PP = jnp.cumsum(count_PP, axis=0) - count_PP  # of senders with lower numbers
        first_PP = jnp.clip(i * self.num_rows - before_PP, 0, count_PP)
        end_PP = jnp.clip((i + 1) * self.num_rows - before_PP, 0, count_PP)
        departure_PP = jnp.cumsum(count_PP, axis=1) - count_PP + first_PP
        arrival_PP = before_PP + first_PP - i * self.num_rows
        row_N = jax.lax.iota(jnp.int32, own.choice.size)
        row_N = jnp.where(row_N < jnp.sum(own.count), row_N, -1)
        place_TK = own.first.at[own.destination].get(mode="clip") + own.rank
        place_TK = jnp.where(own.expert >= 0, place_TK, row_N.size)
        return Voyage(
            make_journey(own, row_N, place_TK, 1), end_PP - first_PP, departure_PP, arrival_PP
        )

    def load(self, x: Array, gate: Array, parcels: tuple[Parcels, Array], voyage: Voyage) -> Rows:
        return load(x, gate, parcels[0], voyage.journey)

    def unload(self, back: Array, voyage: Voyage) -> Array:
        return unload(back, voyage.journey)

    def seal(self, rows: Rows) -> tuple[Array, Array]:
        bits = jax.lax.bitcast_convert_type(rows.gate, jnp.int32)
        return rows.x, jnp.concatenate([bits, rows.expert + 1], axis=1)

    def open(self, sealed: tuple[Array, Array], dtype: Any) -> Rows:
        bits, expert = jnp.split(sealed[1], 2, axis=1)
        return Rows(sealed[0], jax.lax.bitcast_convert_type(bits, jnp.float32), expert - 1)

    def seal_gradient(self, x: Array, gate: Array) -> tuple[Array, Array]:
        return x, gate

    def open_gradient(self, sealed: tuple[Array, Array]) -> tuple[Array, Array]:
        return sealed

    def carry(self, sealed: tuple[Array, Array], voyage: Voyage) -> tuple[Array, ...]:
        return tuple(self._forth(a, voyage) for a in sealed)

    def carry_gradient(self, sealed: tuple[Array, Array], voyage: Voyage) -> tuple[Array, ...]:
        return tuple(self._back(a, voyage) for a in sealed)

    def send_back(self, made: Float[Array, "R D"], voyage: Voyage) -> Float[Array, "N D"]:
        return _return(self, made, voyage)

    def _forth(self, rows: Shaped[Array, "N W"], voyage: Voyage) -> Shaped[Array, "R W"]:
        me = jax.lax.axis_index(AXIS)
        return ragged_all_to_all(
            rows,
            zeros_alike(rows, (self.num_rows, rows.shape[1]), rows.dtype),
            voyage.departure[me],
            voyage.count[me],
            voyage.arrival[me],
            voyage.count[:, me],
            emulated=self.sizes.platform == "cpu",
        )

    def _back(self, rows: Shaped[Array, "R W"], voyage: Voyage) -> Shaped[Array, "N W"]:
        me = jax.lax.axis_index(AXIS)
        num_rows = self.sizes.num_tokens * self.sizes.num_chosen
        return ragged_all_to_all(
            rows,
            zeros_alike(rows, (num_rows, rows.shape[1]), rows.dtype),
            voyage.arrival[:, me],
            voyage.count[:, me],
            voyage.departure[:, me],
            voyage.count[me],
            emulated=self.sizes.platform == "cpu",
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _return(work: Ragged, made, voyage):
    return work._back(made, voyage)


_return.defvjp(
    lambda work, made, voyage: (work._back(made, voyage), voyage),
    lambda work, voyage, grad: (work._forth(grad, voyage), None),
)


def ragged_all_to_all(
    rows: Shaped[Array, "N W"],
    into: Shaped[Array, "R W"],
    input_offset: Int[Array, "P"],
    send_size: Int[Array, "P"],
    output_offset: Int[Array, "P"],
    receive_size: Int[Array, "P"],
    *,
    emulated: bool,
) -> Shaped[Array, "R W"]:
    """`jax.lax.ragged_all_to_all` over the expert axis, or the same by an all-gather.

    Row input_offset[p] and the next of them, send_size[p] in all, go to device p and lie there from
    row output_offset[p] on; rows of `into` that nobody writes stay.
    """
    if not emulated:
        sizes = (input_offset, send_size, output_offset, receive_size)
        return jax.lax.ragged_all_to_all(rows, into, *sizes, axis_name=AXIS)
    me = jax.lax.axis_index(AXIS)
    gathered = (jax.lax.all_gather(a, AXIS) for a in (rows, input_offset, send_size, output_offset))
    rows_PNW, *of_every_device = gathered
    first_P, size_P, at_P = (a[:, me] for a in of_every_device)
    since_RP = jnp.arange(len(into))[:, None] - at_P[None]
    comes_RP = (since_RP >= 0) & (since_RP < size_P[None])
    sender_R = jnp.argmax(comes_RP, axis=1)
    row_R = jnp.sum(jnp.where(comes_RP, since_RP + first_P[None], 0), axis=1)
    came = rows_PNW.at[sender_R, row_R].get(mode="clip")
    return jnp.where(jnp.any(comes_RP, axis=1)[:, None], came, into)


@dataclasses.dataclass(frozen=True)
class Alone:
    """No exchange: all experts are here."""

    room = None
    may_overflow = False

    def sort(self, target: Int[Array, "T K"], kept: Bool[Array, "T K"]) -> Int[Array, "T K"]:
        return jnp.where(kept, target, -1)

    def journey(self, expert: Int[Array, "T K"], i: int) -> tuple[()]:
        return ()

    def load(self, x: Array, gate: Array, expert: Array, journey: tuple[()]) -> Rows:
        return Rows(x, gate, expert)

    def unload(self, back: Array, journey: tuple[()]) -> Array:
        return back


class Sealed(NamedTuple):
    """Rows as they travel, and where their gradient travels the other way.

    What goes there holds whole numbers and may have eight bits, so no gradient can reach it. Its
    place is taken by `shadow`: zeros that nobody reads and so nobody makes, with the dtypes and
    shapes of what comes back.
    """

    there: Any
    shadow: Any


def seal(work: Any, rows: Rows) -> Sealed:
    """Makes rows ready to be carried."""

    def forward(x, gate, expert):
        there = work.seal(Rows(x, gate, expert))
        back = jax.eval_shape(work.seal_gradient, x, gate)
        return Sealed(there, _zeros_of(back, x)), None

    def backward(_, grad):
        return *work.open_gradient(grad.shadow), None

    return _with_gradient(forward, backward)(*rows)


def carry(work: Any, sealed: Sealed, journey: Any) -> Sealed:
    """The exchange itself."""

    def forward(there, shadow, journey):
        there = work.carry(there, journey)
        arrived = jax.eval_shape(lambda: work.open(there, dtype))
        back = jax.eval_shape(work.seal_gradient, arrived.x, arrived.gate)
        return Sealed(there, _zeros_of(back, jax.tree.leaves(there)[0])), journey

    def backward(journey, grad):
        return None, work.carry_gradient(grad.shadow, journey), None

    dtype = jax.tree.leaves(sealed.shadow)[0].dtype
    return _with_gradient(forward, backward)(sealed.there, sealed.shadow, journey)


def unseal(work: Any, sealed: Sealed) -> Rows:
    """The rows that others sent here."""

    def forward(there, shadow):
        return work.open(there, dtype), None

    def backward(_, grad):
        return None, work.seal_gradient(grad.x, grad.gate)

    dtype = jax.tree.leaves(sealed.shadow)[0].dtype
    return _with_gradient(forward, backward)(sealed.there, sealed.shadow)


def together(sealed: Sealed, x: Any) -> tuple[Sealed, Any]:
    """An optimization barrier; going back it ties the gradients of the rows to that of `x`."""

    def forward(there, shadow, x):
        there, x = jax.lax.optimization_barrier((there, x))
        return (Sealed(there, shadow), x), None

    def backward(_, grads):
        grad, grad_x = grads
        return None, *jax.lax.optimization_barrier((grad.shadow, grad_x))

    return _with_gradient(forward, backward)(sealed.there, sealed.shadow, x)


def _with_gradient(forward, backward):
    """`forward` gives its value and what `backward` needs beside the gradient of that value."""
    function = jax.custom_vjp(lambda *operands: forward(*operands)[0])
    function.defvjp(forward, backward)
    return function


def _zeros_of(shapes: Any, like: Array) -> Any:
    return jax.tree.map(lambda a: zeros_alike(like, a.shape, a.dtype), shapes)


def at_work(exchange: Exchange, sizes: Sizes) -> "Gathered | Padded | Ragged":
    """The exchange, fitted to its device."""
    if isinstance(exchange, PaddedExchange):
        return Padded(exchange, sizes)
    if isinstance(exchange, RaggedExchange):
        return Ragged(exchange, sizes)
    return Gathered(exchange, sizes)
