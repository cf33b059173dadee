"""`GatherExchange` at work on one device, inside `shard_map`: all tokens of the group.

A row is a token with all its choices, so J = K. `some` counts the rows of one device, its T tokens
and what fills up its envelope; `all` those of the P devices of the group.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.models.moe.envelope import Envelope
from loong_jax.models.moe.exchange import GatherExchange, Sizes
from loong_jax.models.moe.parcels import Rows


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

    def load(
        self,
        x: Float[Array, "T D"],
        gate: Float[Array, "T K"],
        expert: Int[Array, "T K"],
        journey: tuple[()],
    ) -> Rows:
        more = ((0, self.envelope.stride - len(x)), (0, 0))
        expert = jnp.pad(expert, more, constant_values=-1)
        return Rows(jnp.pad(x, more), jnp.pad(gate, more), expert)

    def unload(self, back: Float[Array, "some D"], journey: tuple[()]) -> Float[Array, "T D"]:
        return back[: self.sizes.num_tokens].astype(jnp.float32)

    def pack(
        self,
        x: Float[Array, "T D"],
        gate: Float[Array, "T K"],
        expert: Int[Array, "T K"],
        journey: tuple[()],
    ) -> Shaped[Array, "1 stride D"]:
        rows = self.load(x, gate, expert, journey)
        return self.envelope.seal(rows.x, rows.gate, (rows.expert + 1).astype(jnp.int16))

    def open(self, sealed: Shaped[Array, "P stride D"], dtype: Any) -> Rows:
        num_chosen = self.sizes.num_chosen
        everyone = dataclasses.replace(self.envelope, num_blocks=self.sizes.num_devices)
        dtypes = ((jnp.float32, num_chosen), (jnp.int16, num_chosen))
        x, gate, expert = everyone.open(sealed, *dtypes)
        local = (
            expert.astype(jnp.int32)
            - 1
            - jax.lax.axis_index(self.sizes.axes) * self.sizes.num_local
        )
        is_here = (expert > 0) & (local >= 0) & (local < self.sizes.num_local)
        return Rows(x, gate, jnp.where(is_here, local, -1))

    def seal_gradient(
        self, x: Float[Array, "all D"], gate: Float[Array, "all K"]
    ) -> tuple[Float[Array, "all D"], Float[Array, "all K"]]:
        return x, gate

    def open_gradient(
        self, sealed: tuple[Float[Array, "some D"], Float[Array, "some K"]]
    ) -> tuple[Float[Array, "some D"], Float[Array, "some K"]]:
        return sealed

    def carry(
        self, sealed: Shaped[Array, "1 stride D"], journey: tuple[()]
    ) -> Shaped[Array, "P stride D"]:
        return jax.lax.all_gather(sealed, self.sizes.axes, axis=0, tiled=True)

    def carry_gradient(
        self, sealed: tuple[Float[Array, "all D"], Float[Array, "all K"]], journey: tuple[()]
    ) -> tuple[Float[Array, "some D"], Float[Array, "some K"]]:
        x, gate = sealed
        return self.send_back(x, ()), self.send_back(gate, ())

    def send_back(self, made: Float[Array, "all D"], journey: tuple[()]) -> Float[Array, "some D"]:
        return jax.lax.psum_scatter(made, self.sizes.axes, scatter_dimension=0, tiled=True)
