"""The experts of a layer: those with weights over the rows that chose them, and the identity.

A mixture is made in five steps, so that a layer can do other work during the exchange (`overlap`):
`pack` puts tokens into rows, `send` dispatches these to the devices of their experts, `run`
computes there, `send_back` returns the outputs, `mix` combines them. Choices of zero-computation
experts never become rows: they only add their gates to the weight of the identity. A device may
dispatch its tokens in chunks. Source: arXiv:2509.01322, section 2.1.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Shaped
from jaxtyping import PyTree as Tree  # of arrays

from loong_jax.errors import ConfigError
from loong_jax.models import parameters
from loong_jax.models.decoder import Mask, States
from loong_jax.models.moe import exchange
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.exchange import transport
from loong_jax.models.moe.exchange.dispatch import Rows, later_rounds
from loong_jax.models.moe.exchange.equal import Local
from loong_jax.models.moe.exchange.transport import InTransit
from loong_jax.models.moe.kernels import expert_gemm, hopper
from loong_jax.models.moe.router import Routing
from loong_jax.sharding import ShardingRules, varying_alike

DISPATCHED = "dispatched"  # the name under which a checkpoint policy finds what arrived

# With `hopper`, where no exchange sets the room: for so many times the choices of experts that
# there should be. Those of zero-computation experts take none, nor time to copy their rows.
_SPARE_ROOM = 1.125


class Chunk(NamedTuple):
    """Some tokens of each device, sent together. Arrays of rows lie end to end, device by device.

    `plan` holds the choices, sorted for the exchange, and `round` says which are sent now
    (`transport`).
    """

    rows: Rows | InTransit | Float[Array, "rows D"]  # in transit if sent; after `run` what it made
    plan: Tree
    round: Tree
    num_rounds: Int[Array, ""]  # until all have been sent; 1 unless a buffer is too small
    num_overflowed: Int[Array, ""]  # choices that are not sent now, over all devices
    rest: Float[Array, "tokens D"] | None = None  # outputs of those


class Experts(nnx.Module):
    """The E experts with weights of every layer and the identity that the others amount to.

    Methods expect one layer's slice of the weights, or all of them and `layer`.
    """

    AXES: ClassVar[dict[str, tuple[str | None, ...]]] = {
        "gate_up": ("expert", "expert_embed", None, "expert_ffn"),
        "down": ("expert", "expert_ffn", "expert_embed"),
    }

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        self.config, self.rules = config, rules
        self.layer: Int[Array, ""] | None = None  # of the stack that a call is for; None: no stack
        lead, dtype = (config.num_layers, config.num_experts), config.param_dtype
        embed, ffn = config.hidden_size, config.expert_ffn_hidden_size
        into, back = (("layers", *self.AXES[name]) for name in ("gate_up", "down"))
        self.gate_up = parameters.kernel(
            (*lead, embed, 2, ffn), into, dtype, rngs, rules, fan_in=embed
        )
        self.down = parameters.kernel(
            (*lead, ffn, embed), back, dtype, rngs, rules, gain=config.residual_gain
        )

    def __call__(self, x: States, routing: Routing, mask: Mask) -> States:
        """sum over FFN choices of gate * FFN(x) + (sum of the gates of zero choices) * x."""
        chunks = [self.pack(x, routing, mask, i) for i in range(self.num_chunks(x))]
        chunks = [self.send(x, chunk) for chunk in chunks]
        weights = self.gathered_weights(x)
        chunks = [self.run(x, routing, chunk, i, weights) for i, chunk in enumerate(chunks)]
        return self.mix(x, routing, [self.send_back(x, chunk) for chunk in chunks])

    @property
    def rest_ready(self) -> bool:
        """True where a device's weights are whole in their stack, and gathered for no call."""
        return not any(self.rules.gathers(*axes) for axes in self.AXES.values())

    @property
    def sends_rows(self) -> bool:
        """False where no row leaves its device."""
        return self.rules.parts("expert") > 1

    def num_chunks(self, x: States) -> int:
        """The largest number that divides both the config's and the tokens of a device."""
        if not self.sends_rows:
            return 1
        return math.gcd(self.config.token_chunks, self._tokens_per_device(x))

    def pack(self, x: States, routing: Routing, mask: Mask, i: int) -> Chunk:
        """Puts the tokens of chunk i into rows, sorted by where they go."""
        rules, places = self.rules, _Places.of(self.rules, x)
        device = self._placement(x)
        load = device.load
        if self.sends_rows:
            load = functools.partial(transport.pack, self._exchange(x))
        if rules.mesh is not None:  # a mask may arrive whole on every device
            mask = jax.sharding.reshard(mask, NamedSharding(rules.mesh, places.tokens))
        own = functools.partial(_of_chunk, num_chunks=self.num_chunks(x), i=i)

        def on_one_device(x, target, gate, mask):
            x, target, gate, mask = own(x), own(target), own(gate), own(mask[..., None])
            kept = (target < self.config.num_experts) & mask
            plan = device.plan(target, kept)
            round = device.take_round(plan, 0)
            num_rounds, num_waiting = jnp.int32(1), jnp.int32(0)
            if device.may_overflow:
                num_rounds = jax.lax.pmax(device.num_rounds(plan), places.token_axes)
                num_waiting = jax.lax.psum(device.num_waiting(plan), places.token_axes)
            return load(x, gate, plan, round), plan, round, num_rounds, num_waiting

        split = (places.rows, places.rows, places.rows, places.whole, places.whole)
        on_mesh = rules.shard_map(on_one_device, in_specs=places.tokens, out_specs=split)
        return Chunk(*on_mesh(x, routing.target, routing.gate, mask))

    def send(self, x: States, chunk: Chunk) -> Chunk:
        """The exchange that brings rows to their experts."""
        if not self.sends_rows:
            return chunk
        rows = _Places.of(self.rules, x).rows
        sent = functools.partial(transport.send, self._exchange(x))
        arrived = self.rules.shard_map(sent, in_specs=rows, out_specs=rows)(chunk.rows, chunk.round)
        packed = jax.tree.map(_kept_as_bits, arrived.packed)
        return chunk._replace(rows=dataclasses.replace(arrived, packed=packed))

    def gathered_weights(self, x: States) -> tuple[Array, Array]:
        """The weights of this device's experts; rows lie on the mesh as the tokens `x` do."""
        gate_up, down = (
            parameters.rounded(a[...], self.config.dtype) for a in (self.gate_up, self.down)
        )
        if self.layer is not None:
            return gate_up, down
        gather = functools.partial(self.rules.gather, meets=x)
        return gather(gate_up, *self.AXES["gate_up"]), gather(down, *self.AXES["down"])

    def run(
        self, x: States, routing: Routing, chunk: Chunk, i: int, weights: tuple[Array, Array]
    ) -> Chunk:
        """The outputs of this device's experts for chunk i, and those of later rounds."""
        rules, places = self.rules, _Places.of(self.rules, x)
        placement, dtype = self._placement(x), x.dtype
        own = functools.partial(_of_chunk, num_chunks=self.num_chunks(x), i=i)
        layer = () if self.layer is None else (self.layer,)
        num_tokens = self._tokens_per_device(x) // self.num_chunks(x)
        tokens = x
        made_of = functools.partial(self._sum_of_ffns, placement.room, num_tokens)

        def one_round(i, inputs, weights, plan):
            device = self._exchange(tokens)
            round = device.take_round(plan, i)
            x, gate = inputs
            rows = transport.pack(device, x, gate, plan, round)
            arrived = transport.unpack(device, transport.send(device, rows, round))
            back = device.send_back(made_of(arrived, weights).astype(dtype), round)
            return device.unload(back, round)

        def on_one_device(sent, x, gate, plan, num_rounds, gate_up, down, *layer):
            is_sent = isinstance(sent, InTransit)
            rows = transport.unpack(self._exchange(tokens), sent) if is_sent else sent
            x, gate = own(x), own(gate)
            # Flat before it is used twice: on TPU this moves every weight.
            if not layer:
                gate_up = gate_up.reshape(*gate_up.shape[:2], -1)
            weights, rest = (gate_up, down, *layer), None
            if rules.mesh is not None:  # hand-written backward passes know nothing of the mesh
                operands = varying_alike((rows, x, gate, plan, weights))
                rows, x, gate, plan, weights = operands
            if placement.may_overflow:
                rest, weights = later_rounds(one_round, num_rounds, (x, gate), weights, plan)
            made = made_of(rows, weights)
            return made.astype(dtype) if self.sends_rows else made, rest

        of_rows = places.rows, places.tokens, places.tokens, places.rows, places.whole
        of_weights = (jax.typeof(weight).sharding.spec for weight in weights)
        specs = (*of_rows, *of_weights, *(places.whole for _ in layer))
        on_mesh = rules.shard_map(on_one_device, in_specs=specs, out_specs=places.partial_rows)
        operands = (chunk.rows, x, routing.gate, chunk.plan, chunk.num_rounds, *weights, *layer)
        made, rest = on_mesh(*operands)
        return chunk._replace(rows=made, rest=rest)

    def send_back(self, x: States, chunk: Chunk) -> Chunk:
        """The exchange that brings back what the experts made."""
        if not self.sends_rows:
            return chunk
        device, places = self._exchange(x), _Places.of(self.rules, x)
        back = places.partial_rows
        on_mesh = self.rules.shard_map(
            device.send_back, in_specs=(back, places.rows), out_specs=back
        )
        return chunk._replace(rows=on_mesh(chunk.rows, chunk.round))

    def mix(self, x: States, routing: Routing, chunks: Sequence[Chunk]) -> States:
        """The sum of each token's rows and its share of the identity."""
        placement, places = self._placement(x), _Places.of(self.rules, x)

        def on_one_device(back, rest, round, x):
            mixed = [placement.unload(*one) for one in zip(back, round, strict=True)]
            mixed = [a if b is None else a + b for a, b in zip(mixed, rest, strict=True)]
            mixed = mixed[0] if len(mixed) == 1 else jnp.concatenate(mixed)
            mixed = jax.lax.psum(mixed, places.partial_axes) if places.partial_axes else mixed
            return mixed.reshape(x.shape)

        specs = (places.partial_rows, places.partial_rows, places.rows, places.tokens)
        on_mesh = self.rules.shard_map(on_one_device, in_specs=specs, out_specs=places.tokens)
        parts = zip(*((chunk.rows, chunk.rest, chunk.round) for chunk in chunks), strict=True)
        mixed = on_mesh(*parts, x)
        is_zero = routing.target >= self.config.num_experts
        zero_BT = jnp.sum(routing.gate * is_zero, axis=-1)
        return (mixed + zero_BT[..., None] * x.astype(jnp.float32)).astype(x.dtype)

    def _sum_of_ffns(
        self, room: int | None, num_tokens: int, rows: Rows, weights: tuple[Array, ...]
    ) -> Float[Array, "rows D"]:
        """On one device that sends `num_tokens`: what its experts make of the rows it has."""
        gate_up, down, *layer = weights
        num_local, num_choices = down.shape[-3], rows.expert.size
        capability, dtype = self.rules.compute_capability, rows.x.dtype
        on_hopper = hopper.fits(capability, dtype, *down.shape[-2:])
        if self.config.expert_gemm == "hopper" and not on_hopper:
            raise ConfigError(
                f"expert_gemm='hopper' with compute capability {capability}, {dtype} and widths "
                f"{down.shape[-2:]}: its kernels are for NVIDIA's Hopper (9.x), sixteen bits and "
                "multiples of 64. Use 'auto'."
            )
        gemm = expert_gemm.choose(
            self.config.expert_gemm,
            self.rules.platform,
            num_rows=len(rows.x),
            num_experts=num_local,
            num_choices=num_choices if room is None else min(room, num_choices),
            on_hopper=on_hopper,
        )
        if layer:
            gate_up, down = _of_layer(gate_up, *layer, apart=gemm != "blocked"), down[layer[0]]
        mean_choices = num_tokens * self.config.mean_ffn_experts
        if room is None and gemm == "hopper":
            room = 128 * math.ceil(_SPARE_ROOM * mean_choices / 128)  # in whole blocks
        return expert_gemm.expert_ffn(
            *rows, gate_up, down, gemm=gemm, room=room, mean_rows=mean_choices / num_local
        )

    def _placement(self, x: States) -> transport.Placement:
        """Of rows: an exchange, or none."""
        return self._exchange(x) if self.sends_rows else Local()

    def _exchange(self, x: States) -> transport.DeviceExchange:
        """The exchange, fitted to one device's share of a chunk of `x`."""
        config, rules = self.config, self.rules
        devices = rules.parts("expert")
        sizes = exchange.Sizes(
            axes=rules.axes("expert"),
            num_devices=devices,
            num_tokens=self._tokens_per_device(x) // self.num_chunks(x),
            num_chosen=config.num_chosen,
            num_local=config.num_experts // devices,
            mean_chosen=config.mean_ffn_experts,
            width=config.hidden_size,
            platform=rules.platform,
        )
        return transport.on_device(config.exchange, sizes)

    def _tokens_per_device(self, x: States) -> int:
        axes = _Places.of(self.rules, x).token_axes
        num_shards = math.prod(self.rules.size(axis) for axis in axes)
        return x.shape[0] * x.shape[1] // num_shards


def _of_chunk(a: Shaped[Array, "B T w"], num_chunks: int, i: int) -> Shaped[Array, "tokens w"]:
    """On one device: the tokens of chunk i, of an array with two axes of them."""
    a = a.reshape(-1, a.shape[-1])
    return a if num_chunks == 1 else jnp.split(a, num_chunks)[i]


def _of_layer(
    gate_up: Float[Array, "L E D 2 M"], layer: Int[Array, ""], *, apart: bool
) -> expert_gemm.GateUp:
    """The gates and the up projections of one layer; apart, each is read where it lies on TPU."""
    _, num_experts, width, _, ffn = gate_up.shape
    if not apart:
        return gate_up[layer].reshape(num_experts, width, -1)

    def cut(i: int) -> Float[Array, "E D M"]:
        start, size = (layer, 0, 0, i, 0), (1, num_experts, width, 1, ffn)
        return jax.lax.dynamic_slice(gate_up, start, size).reshape(num_experts, width, ffn)

    return cut(0), cut(1)


class _Places(NamedTuple):
    """Partitions of tokens and rows on the mesh; unused without one."""

    tokens: PartitionSpec = PartitionSpec()
    rows: PartitionSpec = PartitionSpec()
    partial_rows: PartitionSpec = PartitionSpec()  # one summand each where experts are split
    whole: PartitionSpec = PartitionSpec()
    token_axes: tuple[str, ...] = ()
    partial_axes: tuple[str, ...] = ()

    @classmethod
    def of(cls, rules: ShardingRules, x: States) -> "_Places":
        sharding = rules.like(x)
        if sharding is None:
            return cls()
        tokens = PartitionSpec(*sharding.spec[:2])
        token_axes, partial_axes = _axes(tokens), _axes(rules.gathered("expert_ffn"))
        rows, partial_rows = PartitionSpec(token_axes), PartitionSpec(token_axes + partial_axes)
        return cls(tokens, rows, partial_rows, PartitionSpec(), token_axes, partial_axes)


def _axes(spec: PartitionSpec) -> tuple[str, ...]:
    """All mesh axes of a partition, in order."""
    parts = (part if isinstance(part, tuple) else (part,) for part in spec if part is not None)
    return tuple(axis for part in parts for axis in part)


def _kept_as_bits(a: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """`a`, to be found by a checkpoint policy as whole numbers, for it has no gradient.

    JAX rounds every float that a policy keeps to its own precision, which on TPU copies all rows.
    """
    bits = jax.lax.bitcast_convert_type(a, jnp.dtype(f"uint{8 * a.dtype.itemsize}"))
    return jax.lax.bitcast_convert_type(checkpoint_name(bits, DISPATCHED), a.dtype)
