"""No exchange, and `GatherExchange` on one device, inside `shard_map`: all tokens of the group.

A row is a token with all its choices, so J = K. `some` counts the rows of one device, its T tokens
and what fills up its buffer; `all` those of the P devices of the group.
"""

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.models.moe.exchange import GatherExchange, Sizes
from loong_jax.models.moe.exchange.buffers import BufferLayout
from loong_jax.models.moe.exchange.dispatch import Gates, Number, Rows, Targets, Tokens

_OneRound: TypeAlias = tuple[()]  # there is but one
_Own: TypeAlias = tuple[Float[Array, "some D"], Float[Array, "some K"]]
_Everyones: TypeAlias = tuple[Float[Array, "all D"], Float[Array, "all K"]]


@dataclasses.dataclass(frozen=True)
class Local:
    """No exchange: all experts are here, and rows are the tokens themselves."""

    room = None
    may_overflow = False

    def num_rounds(self, plan: Targets) -> Int[Array, ""]:
        return jnp.int32(1)

    def num_waiting(self, plan: Targets) -> Int[Array, ""]:
        return jnp.int32(0)

    def plan(self, target: Targets, kept: Bool[Array, "T K"]) -> Targets:
        return jnp.where(kept, target, -1)

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
