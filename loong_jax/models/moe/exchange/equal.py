"""Exchanges of equal buffers on one device, in `shard_map`: none, of gathered, of padded rows.

Where tokens are gathered, or stay, a row is a token with all its choices, so J = K: `some` counts
the rows of one device, its T tokens and what fills up its buffer, `all` those of the P devices of
the group. A padded exchange sends, and receives, P blocks of `stride` rows each: R = P * stride
rows, each with J choices.
"""

import dataclasses
import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.models.moe.exchange import GatherExchange, PaddedExchange, Sizes, dispatch
from loong_jax.models.moe.exchange.buffers import BufferLayout, to_eight_bits
from loong_jax.models.moe.exchange.dispatch import (
    DispatchPlan,
    Gates,
    Number,
    Round,
    Rows,
    Targets,
    Tokens,
)

_OneRound: TypeAlias = tuple[()]  # there is but one
_Own: TypeAlias = tuple[Float[Array, "some D"], Float[Array, "some K"]]
_Everyones: TypeAlias = tuple[Float[Array, "all D"], Float[Array, "all K"]]


@dataclasses.dataclass(frozen=True)
class Local:
    """No exchange: all experts are here, and rows are the tokens themselves."""

    room = None
    may_overflow = False

    def plan(self, target: Targets, kept: Bool[Array, "T K"]) -> Targets:
        return jnp.where(kept, target, -1)

    def num_rounds(self, plan: Targets) -> Int[Array, ""]:
        return jnp.int32(1)

    def num_waiting(self, plan: Targets) -> Int[Array, ""]:
        return jnp.int32(0)

    def take_round(self, plan: Targets, i: Number) -> _OneRound:
        return ()

    def load(self, x: Tokens, gate: Gates, plan: Targets, round: _OneRound) -> Rows:
        return Rows(x, gate, plan)

    def unload(self, back: Tokens, round: _OneRound) -> Tokens:
        return back


@dataclasses.dataclass(frozen=True)
class Gathered(Local):
    """`GatherExchange` on one device: tokens are rows, with all their choices."""

    exchange: GatherExchange
    sizes: Sizes

    @property
    def room(self) -> int:
        """Choices that the experts' products take at a time."""
        return self.sizes.mean_rows(self.exchange.buffer_factor)

    @property
    def layout(self) -> BufferLayout:
        sizes = self.sizes
        return BufferLayout.fitting(1, sizes.num_tokens, sizes.width, sizes.num_chosen, None)

    def load(self, x: Tokens, gate: Gates, plan: Targets, round: _OneRound) -> Rows:
        more = ((0, self.layout.stride - len(x)), (0, 0))
        expert = jnp.pad(plan, more, constant_values=-1)
        return Rows(jnp.pad(x, more), jnp.pad(gate, more), expert)

    def unload(self, back: Float[Array, "some D"], round: _OneRound) -> Tokens:
        return back[: self.sizes.num_tokens].astype(jnp.float32)

    def pack(
        self, x: Tokens, gate: Gates, plan: Targets, round: _OneRound
    ) -> Shaped[Array, "1 stride D"]:
        return self.layout.pack_rows(self.load(x, gate, plan, round))

    def unpack(self, packed: Shaped[Array, "P stride D"], dtype: DTypeLike) -> Rows:
        sizes = self.sizes
        everyone = dataclasses.replace(self.layout, num_blocks=sizes.num_devices)
        kinds = (jnp.float32, sizes.num_chosen), (jnp.int16, sizes.num_chosen)
        x, gate, expert = everyone.unpack(packed, *kinds)
        local = expert.astype(jnp.int32) - 1 - jax.lax.axis_index(sizes.axes) * sizes.num_local
        is_here = (expert > 0) & (local >= 0) & (local < sizes.num_local)
        return Rows(x, gate, jnp.where(is_here, local, -1))

    def pack_gradient(self, x: Float[Array, "all D"], gate: Float[Array, "all K"]) -> _Everyones:
        return x, gate

    def unpack_gradient(self, packed: _Own) -> _Own:
        return packed

    def send(
        self, packed: Shaped[Array, "1 stride D"], round: _OneRound
    ) -> Shaped[Array, "P stride D"]:
        return jax.lax.all_gather(packed, self.sizes.axes, axis=0, tiled=True)

    def send_gradient(self, packed: _Everyones, round: _OneRound) -> _Own:
        x, gate = packed
        return self.send_back(x, ()), self.send_back(gate, ())

    def send_back(self, made: Float[Array, "all D"], round: _OneRound) -> Float[Array, "some D"]:
        return jax.lax.psum_scatter(made, self.sizes.axes, scatter_dimension=0, tiled=True)


@dataclasses.dataclass(frozen=True)
class Padded:
    """`PaddedExchange` on one device."""

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
        return self.layout.rows < self.sizes.num_tokens * self.sizes.most_per_device

    @property
    def layout(self) -> BufferLayout:
        sizes, exchange = self.sizes, self.exchange
        share = sizes.mean_chosen / sizes.num_devices
        if exchange.choices_per_row > 1:  # the chance that a device is among those of a token
            share = 1 - (1 - 1 / sizes.num_devices) ** sizes.mean_chosen
        rows = math.ceil(exchange.buffer_factor * sizes.num_tokens * share)
        return BufferLayout.fitting(
            sizes.num_devices,
            min(rows, sizes.num_tokens * sizes.most_per_device),
            sizes.width,
            exchange.choices_per_row,
            exchange.dispatch_dtype,
        )

    def plan(self, target: Targets, kept: Bool[Array, "T K"]) -> DispatchPlan:
        sizes, per_row = self.sizes, self.exchange.choices_per_row
        return dispatch.plan_dispatch(target, kept, sizes.num_local, sizes.num_devices, per_row)

    def num_rounds(self, plan: DispatchPlan) -> Int[Array, ""]:
        """The rounds that this device needs for its rows."""
        return -(-jnp.max(plan.count) // self.layout.rows)

    def num_waiting(self, plan: DispatchPlan) -> Int[Array, ""]:
        """Choices that are not sent in round 0."""
        waits = (plan.expert >= 0) & (plan.rank >= self.layout.rows)
        return jnp.sum(waits, dtype=jnp.int32)

    def take_round(self, plan: DispatchPlan, i: Number) -> Round:
        """Round i: of each destination the rows of ranks from i * rows to (i + 1) * rows - 1."""
        layout = self.layout
        at_1r = jnp.arange(layout.stride)[None]
        rank_Pr = i * layout.rows + at_1r
        carries_Pr = (at_1r < layout.rows) & (rank_Pr < plan.count[:, None])
        row_R = jnp.where(carries_Pr, plan.first[:, None] + rank_Pr, -1).reshape(-1)
        rank_TK = plan.rank - i * layout.rows
        rides_TK = (plan.expert >= 0) & (rank_TK >= 0) & (rank_TK < layout.rows)
        place_TK = plan.destination * layout.stride + rank_TK
        place_TK = jnp.where(rides_TK, place_TK, row_R.size)
        return dispatch.make_round(plan, row_R, place_TK, layout.choices_per_row)

    load = staticmethod(dispatch.load)
    unload = staticmethod(dispatch.unload)

    def pack(
        self, x: Tokens, gate: Gates, plan: DispatchPlan, round: Round
    ) -> Shaped[Array, "P stride D"]:
        """The rows that `load` makes, packed; eight bits are found once for a token."""
        scales: tuple[Array, ...] = ()
        if self.layout.dispatch_dtype is not None:
            x, scale_T1 = to_eight_bits(x, jnp.dtype(self.layout.dispatch_dtype))
            scales = (scale_T1.at[dispatch.token_of(round)].get(mode="clip"),)
        return self.layout.pack_rows(self.load(x, gate, plan, round), *scales)

    def unpack(self, packed: Shaped[Array, "P stride D"], dtype: DTypeLike) -> Rows:
        return self.layout.unpack_rows(packed, dtype)

    def pack_gradient(
        self, x: Float[Array, "R D"], gate: Float[Array, "R J"]
    ) -> Shaped[Array, "P stride D"]:
        return self.layout.pack(x, gate)

    def unpack_gradient(
        self, packed: Shaped[Array, "P stride D"]
    ) -> tuple[Float[Array, "R D"], Float[Array, "R J"]]:
        x, gate = self.layout.unpack(packed, (jnp.float32, self.exchange.choices_per_row))
        return x, gate

    def send(
        self, packed: Shaped[Array, "P stride D"], round: Round
    ) -> Shaped[Array, "P stride D"]:
        """Block p goes to device p, and block p comes from it."""
        axes = self.sizes.axes
        return jax.lax.all_to_all(packed, axes, split_axis=0, concat_axis=0, tiled=True)

    send_gradient = send

    def send_back(self, made: Float[Array, "R D"], round: Round) -> Float[Array, "R D"]:
        layout = self.layout
        blocks = made.reshape(layout.num_blocks, layout.stride, layout.width)
        return self.send(blocks, round).reshape(made.shape)
