"""`PaddedExchange` at work on one device, inside `shard_map`: equal buffers for each other one.

What is sent, and what is received, are P blocks of `stride` rows each: R = P * stride rows, each
with J choices.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.models.moe.envelope import Envelope, to_eight_bits
from loong_jax.models.moe.exchange import PaddedExchange, Sizes
from loong_jax.models.moe.parcels import (
    Journey,
    Parcels,
    Rows,
    load,
    make_journey,
    sort_by_destination,
    token_of,
    unload,
)


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

    def load(
        self,
        x: Float[Array, "T D"],
        gate: Float[Array, "T K"],
        parcels: Parcels,
        journey: Journey,
    ) -> Rows:
        return load(x, gate, parcels, journey)

    def unload(self, back: Float[Array, "R D"], journey: Journey) -> Float[Array, "T D"]:
        return unload(back, journey)

    def pack(
        self,
        x: Float[Array, "T D"],
        gate: Float[Array, "T K"],
        parcels: Parcels,
        journey: Journey,
    ) -> Shaped[Array, "P stride D"]:
        """The rows that `load` makes, sealed; eight bits are found once for a token."""
        scales: tuple[Array, ...] = ()
        if self.envelope.dispatch_dtype is not None:
            x, scale_T1 = to_eight_bits(x, jnp.dtype(self.envelope.dispatch_dtype))
            scales = (scale_T1.at[token_of(journey)].get(mode="clip"),)
        rows = self.load(x, gate, parcels, journey)
        return self.envelope.seal(rows.x, rows.gate, (rows.expert + 1).astype(jnp.int16), *scales)

    def open(self, sealed: Shaped[Array, "P stride D"], dtype: Any) -> Rows:
        per_row = self.exchange.choices_per_row
        dtypes = [(jnp.float32, per_row), (jnp.int16, per_row)]
        if self.envelope.dispatch_dtype is None:
            x, gate, expert = self.envelope.open(sealed, *dtypes)
        else:
            x, gate, expert, scale = self.envelope.open(sealed, *dtypes, (jnp.float32, 1))
            x = (x.astype(jnp.float32) * scale).astype(dtype)
        return Rows(x, gate, expert.astype(jnp.int32) - 1)

    def seal_gradient(
        self, x: Float[Array, "R D"], gate: Float[Array, "R J"]
    ) -> Shaped[Array, "P stride D"]:
        return self.envelope.seal(x, gate)

    def open_gradient(
        self, sealed: Shaped[Array, "P stride D"]
    ) -> tuple[Float[Array, "R D"], Float[Array, "R J"]]:
        x, gate = self.envelope.open(sealed, (jnp.float32, self.exchange.choices_per_row))
        return x, gate

    def carry(
        self, sealed: Shaped[Array, "P stride D"], journey: Journey
    ) -> Shaped[Array, "P stride D"]:
        return self._swap(sealed)

    def carry_gradient(
        self, sealed: Shaped[Array, "P stride D"], journey: Journey
    ) -> Shaped[Array, "P stride D"]:
        return self._swap(sealed)

    def send_back(self, made: Float[Array, "R D"], journey: Journey) -> Float[Array, "R D"]:
        envelope = self.envelope
        blocks = made.reshape(envelope.num_blocks, envelope.stride, envelope.width)
        return self._swap(blocks).reshape(made.shape)

    def _swap(self, blocks: Shaped[Array, "P stride D"]) -> Shaped[Array, "P stride D"]:
        """Block p goes to device p, and block p comes from it."""
        axes = self.sizes.axes
        return jax.lax.all_to_all(blocks, axes, split_axis=0, concat_axis=0, tiled=True)
