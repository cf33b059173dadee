"""No exchange, and `GatherExchange` on one device, inside `shard_map`: all tokens of the group.

A row is a token with all its choices, so J = K. `some` counts the rows of one device, its T tokens
and what fills up its buffer; `all` those of the P devices of the group.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.models.moe.exchange import GatherExchange, Sizes
from loong_jax.models.moe.exchange.buffers import BufferLayout
from loong_jax.models.moe.exchange.dispatch import Rows


@dataclasses.dataclass(frozen=True)
class Local:
    """No exchange: all experts are here, and rows are the tokens themselves."""

    room = None
    may_overflow = False

    def num_rounds(self, plan: Int[Array, "T K"]) -> Int[Array, ""]:
        return jnp.int32(1)

    def num_waiting(self, plan: Int[Array, "T K"]) -> Int[Array, ""]:
        return jnp.int32(0)

    def plan(self, target: Int[Array, "T K"], kept: Bool[Array, "T K"]) -> Int[Array, "T K"]:
        return jnp.where(kept, target, -1)

    def take_round(self, plan: Int[Array, "T K"], i: Int[Array, ""] | int) -> tuple[()]:
        return ()

    def load(
        self,
        x: Float[Array, "T D"],
        gate: Float[Array, "T K"],
        plan: Int[Array, "T K"],
        round: tuple[()],
    ) -> Rows:
        return Rows(x, gate, plan)

    def unload(self, back: Float[Array, "T D"], round: tuple[()]) -> Float[Array, "T D"]:
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

    def load(
        self,
        x: Float[Array, "T D"],
        gate: Float[Array, "T K"],
        plan: Int[Array, "T K"],
        round: tuple[()],
    ) -> Rows:
        more = ((0, self.layout.stride - len(x)), (0, 0))
        expert = jnp.pad(plan, more, constant_values=-1)
        return Rows(jnp.pad(x, more), jnp.pad(gate, more), expert)

    def unload(self, back: Float[Array, "some D"], round: tuple[()]) -> Float[Array, "T D"]:
        return back[: self.sizes.num_tokens].astype(jnp.float32)

    def pack(
        self,
        x: Float[Array, "T D"],
        gate: Float[Array, "T K"],
        plan: Int[Array, "T K"],
        round: tuple[()],
    ) -> Shaped[Array, "1 stride D"]:
        rows = self.load(x, gate, plan, round)
        return self.layout.pack(rows.x, rows.gate, (rows.expert + 1).astype(jnp.int16))

    def unpack(self, packed: Shaped[Array, "P stride D"], dtype: DTypeLike) -> Rows:
        num_chosen = self.sizes.num_chosen
        everyone = dataclasses.replace(self.layout, num_blocks=self.sizes.num_devices)
        dtypes = ((jnp.float32, num_chosen), (jnp.int16, num_chosen))
        x, gate, expert = everyone.unpack(packed, *dtypes)
        local = (
            expert.astype(jnp.int32)
            - 1
            - jax.lax.axis_index(self.sizes.axes) * self.sizes.num_local
        )
        is_here = (expert > 0) & (local >= 0) & (local < self.sizes.num_local)
        return Rows(x, gate, jnp.where(is_here, local, -1))

    def pack_gradient(
        self, x: Float[Array, "all D"], gate: Float[Array, "all K"]
    ) -> tuple[Float[Array, "all D"], Float[Array, "all K"]]:
        return x, gate

    def unpack_gradient(
        self, packed: tuple[Float[Array, "some D"], Float[Array, "some K"]]
    ) -> tuple[Float[Array, "some D"], Float[Array, "some K"]]:
        return packed

    def send(
        self, packed: Shaped[Array, "1 stride D"], round: tuple[()]
    ) -> Shaped[Array, "P stride D"]:
        return jax.lax.all_gather(packed, self.sizes.axes, axis=0, tiled=True)

    def send_gradient(
        self, packed: tuple[Float[Array, "all D"], Float[Array, "all K"]], round: tuple[()]
    ) -> tuple[Float[Array, "some D"], Float[Array, "some K"]]:
        x, gate = packed
        return self.send_back(x, ()), self.send_back(gate, ())

    def send_back(self, made: Float[Array, "all D"], round: tuple[()]) -> Float[Array, "some D"]:
        return jax.lax.psum_scatter(made, self.sizes.axes, scatter_dimension=0, tiled=True)
