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
from loong_jax.models.moe.rows import sum_rows, take_rows, zeros_alike

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


def _journey(parcels: Parcels, row_R, place_TK, choices_per_row: int) -> Journey:
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


def _load(
    x: Float[Array, "T D"], gate: Float[Array, "T K"], parcels: Parcels, journey: Journey
) -> Rows:
    """The rows of a journey; those without a choice hold anything and say so."""
    per_token, (num_rows, per_row) = gate.shape[1], journey.choice.shape
    choice_N = journey.choice.reshape(-1)
    place_N1 = (journey.place * per_row + parcels.lane).reshape(-1, 1)
    gate_N1 = take_rows(gate.reshape(-1, 1), choice_N, place_N1)
    expert_N = parcels.expert.reshape(-1).at[choice_N].get(mode="fill", fill_value=-1)
    return Rows(
        take_rows(x, journey.choice[:, 0] // per_token, journey.first_place),
        gate_N1.reshape(num_rows, per_row),
        expert_N.reshape(num_rows, per_row),
    )


def _unload(back: Float[Array, "sent D"], journey: Journey) -> Float[Array, "T D"]:
    token_R = journey.choice[:, 0] // journey.place.shape[1]
    return sum_rows(back, journey.first_place, token_R)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Envelope:
    """Rows with their gates and experts in one array, so that one exchange carries it all.

    Each of `num_blocks` blocks of `stride` rows ends in `number_rows` rows that hold the numbers of
    the others, cut into whole numbers so small that every dtype of rows holds them exactly. Nothing
    is copied to make room: the rows are gathered with those last ones already there.
    """

    num_blocks: int
    stride: int
    number_rows: int
    width: int  # D
    choices_per_row: int  # J
    dispatch_dtype: Literal["float8_e4m3fn"] | None

    @classmethod
    def fitting(
        cls, num_blocks: int, rows: int, width: int, choices_per_row: int, dispatch_dtype: Any
    ) -> "Envelope":
        """With room for at least `rows` rows per block; blocks are whole tiles of 16 rows."""
        numbers = cls._numbers_per_row(choices_per_row, dispatch_dtype)
        stride = _round_up(rows + -(-rows * numbers // width), 16)
        number_rows = -(-stride * numbers // (width + numbers))
        return cls(
            num_blocks=num_blocks,
            stride=stride,
            number_rows=number_rows,
            width=width,
            choices_per_row=choices_per_row,
            dispatch_dtype=dispatch_dtype,
        )

    @staticmethod
    def _numbers_per_row(choices_per_row: int, dispatch_dtype: Any) -> int:
        """Bytes of gates and experts; with eight-bit rows also of the scale, in halves."""
        num_bytes = 6 * choices_per_row
        return num_bytes if dispatch_dtype is None else 2 * (num_bytes + 4)

    @property
    def rows(self) -> int:
        """Rows of a block that may carry a token."""
        return self.stride - self.number_rows

    def seal(self, x: Float[Array, "R D"], *numbers: Array) -> Float[Array, "blocks stride D"]:
        """`numbers`, each [R, ...], take the places that rows past the first `rows` had."""
        digits = jnp.concatenate([_bytes_of(a.reshape(len(a), -1)) for a in numbers], axis=1)
        if x.dtype.itemsize == 1:
            digits = jnp.concatenate([digits >> 4, digits & 15], axis=1)
        digits = digits.reshape(self.num_blocks, self.stride, -1)[:, : self.rows]
        digits = digits.reshape(self.num_blocks, -1).astype(jnp.float32).astype(x.dtype)
        room = self.number_rows * self.width - digits.shape[1]
        digits = jnp.pad(digits, ((0, 0), (0, room)))
        digits = digits.reshape(self.num_blocks, self.number_rows, self.width)
        blocks = x.reshape(self.num_blocks, self.stride, self.width)
        return jax.lax.dynamic_update_slice_in_dim(blocks, digits, self.rows, axis=1)

    def open(self, sealed: Float[Array, "blocks stride D"], *dtypes_and_widths: tuple[Any, int]):
        """The rows and the numbers again; numbers of the last rows are zero."""
        halves = sealed.dtype.itemsize == 1
        sizes = [jnp.dtype(dtype).itemsize * width for dtype, width in dtypes_and_widths]
        num_digits = sum(sizes) * (2 if halves else 1)
        digits = sealed[:, self.rows :].reshape(self.num_blocks, -1)
        digits = digits[:, : self.rows * num_digits].astype(jnp.float32).astype(jnp.uint8)
        digits = digits.reshape(self.num_blocks, self.rows, num_digits)
        digits = jnp.pad(digits, ((0, 0), (0, self.number_rows), (0, 0))).reshape(-1, num_digits)
        if halves:
            high, low = jnp.split(digits, 2, axis=1)
            digits = (high << 4) | low
        numbers, start = [], 0
        for size, (dtype, width) in zip(sizes, dtypes_and_widths, strict=True):
            these = digits[:, start : start + size]
            numbers.append(_numbers_of(these, dtype, width))
            start += size
        return sealed.reshape(-1, self.width), *numbers


def _bytes_of(a: Array) -> Array:
    return jax.lax.bitcast_convert_type(a, jnp.uint8).reshape(len(a), -1)


def _numbers_of(digits: Array, dtype: Any, width: int) -> Array:
    return jax.lax.bitcast_convert_type(digits.reshape(len(digits), width, -1), dtype)


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
        return _round_up(math.ceil(factor * self.num_tokens * self.mean_chosen), 16)


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
        return _journey(parcels, row_R, place_TK, envelope.choices_per_row)

    def load(self, x: Array, gate: Array, parcels: Parcels, journey: Journey) -> Rows:
        return _load(x, gate, parcels, journey)

    def unload(self, back: Array, journey: Journey) -> Array:
        return _unload(back, journey)

    def there(self, rows: Rows, journey: Journey) -> Rows:
        envelope, (x, gate, expert) = self.envelope, rows
        numbers = (gate, (expert + 1).astype(jnp.int16))
        dtypes = ((jnp.float32, gate.shape[1]), (jnp.int16, gate.shape[1]))
        if envelope.dispatch_dtype is None:
            x, gate, expert = envelope.open(_swap(envelope.seal(x, *numbers)), *dtypes)
        else:
            small, scale = _to_eight_bits(x, jnp.dtype(envelope.dispatch_dtype))
            sealed = _swap(envelope.seal(small, *numbers, scale))
            small, gate, expert, scale = envelope.open(sealed, *dtypes, (jnp.float32, 1))
            x = (small.astype(jnp.float32) * scale).astype(x.dtype)
        return Rows(x, gate, expert.astype(jnp.int32) - 1)

    def gradient_back(self, x: Array, gate: Array, journey: Journey) -> tuple[Array, Array]:
        sealed = _swap(self.envelope.seal(x, gate))
        x, gate = self.envelope.open(sealed, (jnp.float32, gate.shape[1]))
        return x, gate

    def send_back(self, made: Float[Array, "R D"], journey: Journey) -> Float[Array, "R D"]:
        envelope = self.envelope
        blocks = made.reshape(envelope.num_blocks, envelope.stride, envelope.width)
        return _swap(blocks).reshape(made.shape)


def _swap(blocks: Shaped[Array, "P stride D"]) -> Shaped[Array, "P stride D"]:
    """Block p goes to device p, and block p comes from it."""
    return jax.lax.all_to_all(blocks, AXIS, split_axis=0, concat_axis=0, tiled=True)


def _to_eight_bits(x: Float[Array, "R D"], dtype: Any):
    """Rows over their scale, and the float32 scale that brings the largest value to the limit."""
    largest = jnp.max(jnp.abs(x), axis=1, keepdims=True).astype(jnp.float32)
    scale = jnp.where(largest > 0, largest / float(jnp.finfo(dtype).max), 1.0)
    return (x.astype(jnp.float32) / scale).astype(dtype), scale


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

    def num_rounds(self, expert: Int[Array, "T K"]) -> Int[Array, ""]:
        return jnp.int32(1)

    def num_waiting(self, expert: Int[Array, "T K"]) -> Int[Array, ""]:
        return jnp.int32(0)

    def load(self, x: Array, gate: Array, expert: Array, journey: tuple[()]) -> Rows:
        more = ((0, self.envelope.stride - len(x)), (0, 0))
        expert = jnp.pad(expert, more, constant_values=-1)
        return Rows(jnp.pad(x, more), jnp.pad(gate, more), expert)

    def unload(self, back: Array, journey: tuple[()]) -> Array:
        return back[: self.sizes.num_tokens].astype(jnp.float32)

    def there(self, rows: Rows, journey: tuple[()]) -> Rows:
        envelope, (x, gate, expert) = self.envelope, rows
        sealed = envelope.seal(x, gate, (expert + 1).astype(jnp.int16))
        sealed = jax.lax.all_gather(sealed, AXIS, axis=0, tiled=True)
        everyone = dataclasses.replace(envelope, num_blocks=self.sizes.num_devices)
        dtypes = ((jnp.float32, gate.shape[1]), (jnp.int16, gate.shape[1]))
        x, gate, expert = everyone.open(sealed, *dtypes)
        local = expert.astype(jnp.int32) - 1 - jax.lax.axis_index(AXIS) * self.sizes.num_local
        is_here = (expert > 0) & (local >= 0) & (local < self.sizes.num_local)
        return Rows(x, gate, jnp.where(is_here, local, -1))

    def gradient_back(self, x: Array, gate: Array, journey: tuple[()]) -> tuple[Array, Array]:
        return self.send_back(x, ()), self.send_back(gate, ())

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
        return min(self.sizes.mean_rows(self.exchange.buffer_factor), _round_up(most, 16))

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
            _journey(own, row_N, place_TK, 1), end_PP - first_PP, departure_PP, arrival_PP
        )

    def load(self, x: Array, gate: Array, parcels: tuple[Parcels, Array], voyage: Voyage) -> Rows:
        return _load(x, gate, parcels[0], voyage.journey)

    def unload(self, back: Array, voyage: Voyage) -> Array:
        return _unload(back, voyage.journey)

    def there(self, rows: Rows, voyage: Voyage) -> Rows:
        bits = jax.lax.bitcast_convert_type(rows.gate, jnp.int32)
        numbers = jnp.concatenate([bits, rows.expert + 1], axis=1)
        gate, expert = jnp.split(self._forth(numbers, voyage), 2, axis=1)
        gate = jax.lax.bitcast_convert_type(gate, jnp.float32)
        return Rows(self._forth(rows.x, voyage), gate, expert - 1)

    def gradient_back(self, x: Array, gate: Array, voyage: Voyage) -> tuple[Array, Array]:
        return self._back(x, voyage), self._back(gate, voyage)

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

    def num_rounds(self, expert: Int[Array, "T K"]) -> Int[Array, ""]:
        return jnp.int32(1)

    def num_waiting(self, expert: Int[Array, "T K"]) -> Int[Array, ""]:
        return jnp.int32(0)

    def sort(self, target: Int[Array, "T K"], kept: Bool[Array, "T K"]) -> Int[Array, "T K"]:
        return jnp.where(kept, target, -1)

    def journey(self, expert: Int[Array, "T K"], i: int) -> tuple[()]:
        return ()

    def load(self, x: Array, gate: Array, expert: Array, journey: tuple[()]) -> Rows:
        return Rows(x, gate, expert)

    def unload(self, back: Array, journey: tuple[()]) -> Array:
        return back


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _travel(work, x, gate, expert, journey) -> Rows:
    return work.there(Rows(x, gate, expert), journey)


def _travel_forward(work, x, gate, expert, journey):
    return work.there(Rows(x, gate, expert), journey), journey


def _travel_backward(work, journey, grad: Rows):
    return *work.gradient_back(grad.x, grad.gate, journey), None, None


_travel.defvjp(_travel_forward, _travel_backward)


def send(work, rows: Rows, journey) -> Rows:
    """The rows that others sent here. Gradients of their states and gates go the same way back."""
    return _travel(work, *rows, journey)


def at_work(exchange: Exchange, sizes: Sizes) -> "Gathered | Padded | Ragged":
    """The exchange, fitted to its device."""
    if isinstance(exchange, PaddedExchange):
        return Padded(exchange, sizes)
    if isinstance(exchange, RaggedExchange):
        return Ragged(exchange, sizes)
    return Gathered(exchange, sizes)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
