"""The experts of a layer: those with weights over the rows that chose them, and the identity.

A mixture is made in five steps, so that a layer can do other work while rows travel: `dispatch`
sends tokens to the devices that hold their experts, `receive` waits for them, `compute` runs those
experts, `combine` sends back what they made, `mix` adds it up. Choices of zero-computation experts
never become rows: they only add their gates to the weight of the identity.

A device may send its tokens in chunks, so that one chunk travels while another is computed:

    chunk 1   dispatch  compute   combine
    chunk 2             dispatch  compute   combine
    beside    FFN_0                         Attention_1, FFN_1

Source: arXiv:2509.01322, section 2.1 and, for chunks, section 5 (training infrastructure).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from loong_jax.errors import ConfigError
from loong_jax.models import parameters, products
from loong_jax.models.moe import exchange, expert_gemm, hopper, travel
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.parcels import Rows
from loong_jax.models.moe.router import Routing
from loong_jax.models.moe.rows import later_rounds
from loong_jax.sharding import ShardingRules

DISPATCHED = "dispatched"  # the name under which a checkpoint policy finds what arrived

# With `hopper`, where no exchange sets the room: for so many times the choices of experts that
# there should be. Those of zero-computation experts take none, nor time to copy their rows.
_SPARE_ROOM = 1.125

Weights = TypeVar("Weights")  # a tree of arrays


class Chunk(NamedTuple):
    """Some tokens of each device on their way. Arrays of rows lie end to end, device by device."""

    moving: Any  # Rows until `compute`, sealed if they travel; then what the experts made of them
    parcels: Any  # the choices, sorted for the exchange
    journey: Any  # which of them travel now
    num_rounds: Int[Array, ""]  # until all have travelled; 1 unless a buffer is too small
    num_overflowed: Int[Array, ""]  # choices that do not travel now, over all devices
    rest: Float[Array, "tokens D"] | None = None  # what became of those


class Mixture(NamedTuple):
    """A mixture in the making."""

    x: Float[Array, "B T D"]
    routing: Routing
    chunks: tuple[Chunk, ...]

    def having(self, moving: Any) -> "Mixture":
        """This mixture with `moving` in its last chunk."""
        *others, last = self.chunks
        return self._replace(chunks=(*others, last._replace(moving=moving)))

    @property
    def num_overflowed(self) -> Int[Array, ""]:
        return sum(
            (chunk.num_overflowed for chunk in self.chunks[1:]), self.chunks[0].num_overflowed
        )


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
        layers, experts = config.num_layers, config.num_experts
        embed, ffn = config.hidden_size, config.expert_ffn_hidden_size
        self.gate_up = parameters.kernel(
            (layers, experts, embed, 2, ffn),
            ("layers", *self.AXES["gate_up"]),
            config.param_dtype,
            rngs,
            rules,
            fan_in=embed,
        )
        self.down = parameters.kernel(
            (layers, experts, ffn, embed),
            ("layers", *self.AXES["down"]),
            config.param_dtype,
            rngs,
            rules,
            gain=config.residual_gain,
        )

    def __call__(
        self, x: Float[Array, "B T D"], routing: Routing, mask: Bool[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """sum over FFN choices of gate * FFN(x) + (sum of the gates of zero choices) * x."""
        mixture, x, _ = self.dispatch(x, routing, mask, ())
        mixture, x, _ = self.receive(mixture, x, (), ())
        mixture, x, _ = self.compute(mixture, x, ())
        return self.mix(self.combine(mixture), x)[0]

    @property
    def rest_ready(self) -> bool:
        """Whether a device's weights are whole where they rest, and gathered for no call."""
        return not any(self.rules.gathers(*axes) for axes in self.AXES.values())

    def after(
        self, done: Float[Array, "B T D"], weights: Weights
    ) -> tuple[Float[Array, "B T D"], Weights]:
        """`done` once `weights` are there, which are gathered meanwhile."""
        done, weights = self._in_order(done, weights)
        return done, weights

    def after_gradient(
        self, done: Float[Array, "B T D"], weights: Weights
    ) -> tuple[Float[Array, "B T D"], Weights]:
        """`done`, whose gradient passes on once that of `weights` is there, scattered meanwhile."""
        if self.travels:
            done, weights = products.together_going_back(done, weights)
        return done, weights

    def dispatch(
        self,
        x: Float[Array, "B T D"],
        routing: Routing,
        mask: Bool[Array, "B T"],
        weights: Weights,
    ) -> tuple[Mixture, Float[Array, "B T D"], Weights]:
        """Sends the tokens in `mask` to the devices of their experts, those of the first chunk.

        Returns `x` and `weights` as well: what is made of these runs while the rows travel, not
        before they leave.
        """
        packed = (self._pack(x, routing, mask, i) for i in range(self._num_chunks(x)))
        first, *others = packed
        first, done, weights = self._in_order(first, x, weights)
        return Mixture(x, routing, (self._carry(x, first), *others)), done, weights

    def receive(
        self, mixture: Mixture, done: Float[Array, "B T D"], weights: Weights, used: Any
    ) -> tuple[Mixture, Float[Array, "B T D"], Weights]:
        """The rows of the first chunk have arrived, and the work is done that hid it.

        Only then are `weights` there, which the next work needs. Going back, their gradient must
        be there before the rows' leaves, and so must `used`, the weights that the work before used:
        what is gathered or scattered for either stays out of the rows' way.
        """
        first, *others = mixture.chunks
        first, done, weights = self._in_order(first, done, weights, before_gradient=used)
        return mixture._replace(chunks=(first, *others)), done, weights

    def compute(
        self, mixture: Mixture, done: Float[Array, "B T D"], weights: Weights
    ) -> tuple[Mixture, Float[Array, "B T D"], Weights]:
        """Runs each device's experts over the rows it has, between the work before and after.

        The next work starts from `done`, with `weights`, which are gathered while experts run.
        Chunk i is computed while chunk i + 1 arrives and chunk i - 1 goes back.
        """
        chunks = list(mixture.chunks)
        own_weights = self._gathered_weights(mixture.x)
        for i in range(len(chunks)):
            is_last = i + 1 == len(chunks)
            if not is_last:  # leaves when this chunk is there
                chunks[i + 1], chunks[i] = self._in_order(chunks[i + 1], chunks[i])
                chunks[i + 1] = self._carry(mixture.x, chunks[i + 1])
            chunks[i] = self._run_experts(mixture, chunks[i], i, own_weights)
            if i > 0:  # was to be back by now
                chunks[i - 1], chunks[i] = self._in_order(chunks[i - 1], chunks[i])
            if not is_last:
                chunks[i + 1], chunks[i] = self._in_order(chunks[i + 1], chunks[i])
                chunks[i] = self._send_back(mixture.x, chunks[i])
        chunks[-1], done, weights = self._in_order(chunks[-1], done, weights)
        return mixture._replace(chunks=tuple(chunks)), done, weights

    def wait_for_all(self, *things: Any) -> tuple[Any, ...]:
        """All of them, each only once the others are there; of gradients nothing is asked.

        Nothing happens where no row leaves its device, nor with None among them: weights that are
        at hand.
        """
        if not self.travels or any(a is None for a in things):
            return things
        bare = (a.chunks[-1].moving if isinstance(a, Mixture) else a for a in things)
        ordered = travel.together_going_forth(*bare)
        pairs = zip(things, ordered, strict=True)
        return tuple(a.having(b) if isinstance(a, Mixture) else b for a, b in pairs)

    def combine(self, mixture: Mixture) -> Mixture:
        """Sends rows back to where they came from, those of the last chunk."""
        *others, last = mixture.chunks
        return mixture._replace(chunks=(*others, self._send_back(mixture.x, last)))

    def mix(
        self, mixture: Mixture, done: Float[Array, "B T D"]
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"]]:
        """The sum of each token's rows and its share of the identity, once the work is done that
        the combine was to hide behind; and that work.
        """
        *others, last = mixture.chunks
        last, done = self._in_order(last, done)
        chunks, x, routing = (*others, last), mixture.x, mixture.routing
        work, places = self._work(x), _Places.of(self.rules, x)

        def on_one_device(back, rest, journey, x):
            mixed = [work.unload(*one) for one in zip(back, journey, strict=True)]
            mixed = [a if b is None else a + b for a, b in zip(mixed, rest, strict=True)]
            mixed = mixed[0] if len(mixed) == 1 else jnp.concatenate(mixed)
            mixed = jax.lax.psum(mixed, places.partial_axes) if places.partial_axes else mixed
            return mixed.reshape(x.shape)

        specs = (places.partial_rows, places.partial_rows, places.rows, places.tokens)
        on_mesh = self.rules.shard_map(on_one_device, in_specs=specs, out_specs=places.tokens)
        mixed = on_mesh(
            tuple(chunk.moving for chunk in chunks),
            tuple(chunk.rest for chunk in chunks),
            tuple(chunk.journey for chunk in chunks),
            x,
        )
        is_zero = routing.target >= self.config.num_experts
        zero_BT = jnp.sum(routing.gate * is_zero, axis=-1)
        return (mixed + zero_BT[..., None] * x.astype(jnp.float32)).astype(x.dtype), done

    def _pack(
        self, x: Float[Array, "B T D"], routing: Routing, mask: Bool[Array, "B T"], i: int
    ) -> Chunk:
        """Puts the tokens of chunk i into rows, sorted by where they go."""
        rules, places = self.rules, _Places.of(self.rules, x)
        work = self._work(x)
        if rules.mesh is not None:  # a mask may arrive whole on every device
            mask = jax.sharding.reshard(mask, NamedSharding(rules.mesh, places.tokens))
        own = self._own_tokens(x, i)

        def on_one_device(x, target, gate, mask):
            x, target, gate, mask = own(x), own(target), own(gate), own(mask[..., None])
            kept = (target < self.config.num_experts) & mask
            parcels = work.sort(target, kept)
            journey = work.journey(parcels, 0)
            num_rounds, num_waiting = jnp.int32(1), jnp.int32(0)
            if work.may_overflow:
                num_rounds = jax.lax.pmax(work.num_rounds(parcels), places.token_axes)
                num_waiting = jax.lax.psum(work.num_waiting(parcels), places.token_axes)
            load = functools.partial(travel.pack, work) if self.travels else work.load
            moving = load(x, gate, parcels, journey)
            return moving, parcels, journey, num_rounds, num_waiting

        split = (places.rows, places.rows, places.rows, places.whole, places.whole)
        on_mesh = rules.shard_map(on_one_device, in_specs=places.tokens, out_specs=split)
        return Chunk(*on_mesh(x, routing.target, routing.gate, mask))

    def _own_tokens(self, x: Float[Array, "B T D"], i: int) -> Callable[[Array], Array]:
        """On one device: the tokens of chunk i, of an array with two axes of them."""
        num_chunks = self._num_chunks(x)

        def own(a):
            a = a.reshape(-1, a.shape[-1])
            return a if num_chunks == 1 else jnp.split(a, num_chunks)[i]

        return own

    def _carry(self, x: Float[Array, "B T D"], chunk: Chunk) -> Chunk:
        """The exchange that brings rows to their experts."""
        if not self.travels:
            return chunk
        work, places = self._work(x), _Places.of(self.rules, x)

        def on_one_device(sealed, journey):
            return travel.carry(work, sealed, journey)

        on_mesh = self.rules.shard_map(on_one_device, in_specs=places.rows, out_specs=places.rows)
        arrived = on_mesh(chunk.moving, chunk.journey)
        there = jax.tree.map(_kept_as_bits, arrived.there)
        return chunk._replace(moving=arrived._replace(there=there))

    def _send_back(self, x: Float[Array, "B T D"], chunk: Chunk) -> Chunk:
        """The exchange that brings back what the experts made."""
        if not self.travels:
            return chunk
        work, places = self._work(x), _Places.of(self.rules, x)
        on_mesh = self.rules.shard_map(
            work.send_back,
            in_specs=(places.partial_rows, places.rows),
            out_specs=places.partial_rows,
        )
        return chunk._replace(moving=on_mesh(chunk.moving, chunk.journey))

    def _gathered_weights(self, x: Float[Array, "B T D"]) -> tuple[Array, Array]:
        """Those of this device's experts; rows lie on the mesh as the tokens `x` do."""
        gate_up, down = (a[...].astype(self.config.dtype) for a in (self.gate_up, self.down))
        if self.layer is not None:
            return gate_up, down
        gather = functools.partial(self.rules.gather, meets=x)
        return gather(gate_up, *self.AXES["gate_up"]), gather(down, *self.AXES["down"])

    def _run_experts(
        self, mixture: Mixture, chunk: Chunk, i: int, weights: tuple[Array, Array]
    ) -> Chunk:
        """What this device's experts make of chunk i, and of what waits for a later round."""
        rules, places = self.rules, _Places.of(self.rules, mixture.x)
        work, dtype = self._work(mixture.x), mixture.x.dtype
        own = self._own_tokens(mixture.x, i)
        layer = () if self.layer is None else (self.layer,)
        num_tokens = self._tokens_per_device(mixture.x) // self._num_chunks(mixture.x)
        made_of = functools.partial(self._sum_of_ffns, work, num_tokens)

        def one_round(i, inputs, weights, parcels):
            journey = work.journey(parcels, i)
            x, gate = inputs
            sealed = travel.pack(work, x, gate, parcels, journey)
            arrived = travel.unseal(work, travel.carry(work, sealed, journey))
            back = work.send_back(made_of(arrived, weights).astype(dtype), journey)
            return work.unload(back, journey)

        def on_one_device(moving, x, gate, parcels, num_rounds, gate_up, down, *layer):
            rows = travel.unseal(work, moving) if self.travels else moving
            x, gate = own(x), own(gate)
            # Flat before it is used twice: on TPU this moves every weight.
            if not layer:
                gate_up = gate_up.reshape(*gate_up.shape[:2], -1)
            weights, rest = (gate_up, down, *layer), None
            if rules.mesh is not None:  # hand-written backward passes know nothing of the mesh
                operands = _varying_alike((rows, x, gate, parcels, weights))
                rows, x, gate, parcels, weights = operands
            if work.may_overflow:
                rest, weights = later_rounds(one_round, num_rounds, (x, gate), weights, parcels)
            made = made_of(rows, weights)
            return made.astype(dtype) if self.travels else made, rest

        specs = (
            places.rows,
            places.tokens,
            places.tokens,
            places.rows,
            places.whole,
            *(jax.typeof(weight).sharding.spec for weight in weights),
            *(places.whole for _ in layer),
        )
        on_mesh = rules.shard_map(on_one_device, in_specs=specs, out_specs=places.partial_rows)
        made, rest = on_mesh(
            chunk.moving,
            mixture.x,
            mixture.routing.gate,
            chunk.parcels,
            chunk.num_rounds,
            *weights,
            *layer,
        )
        return chunk._replace(moving=made, rest=rest)

    def _sum_of_ffns(
        self, work: Any, num_tokens: int, rows: Rows, weights: tuple[Array, ...]
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
            num_choices=num_choices if work.room is None else min(work.room, num_choices),
            on_hopper=on_hopper,
        )
        if layer:
            gate_up, down = _of_layer(gate_up, *layer, apart=gemm != "blocked"), down[layer[0]]
        mean_choices = num_tokens * self.config.mean_ffn_experts
        room = work.room
        if room is None and gemm == "hopper":
            room = 128 * math.ceil(_SPARE_ROOM * mean_choices / 128)  # in whole blocks
        return expert_gemm.expert_ffn(
            *rows, gate_up, down, gemm=gemm, room=room, mean_rows=mean_choices / num_local
        )

    def _in_order(self, *things: Any, before_gradient: Any = ()) -> tuple[Any, ...]:
        """All of them, chunks and trees of arrays, each only once the others are there.

        Nothing happens where no row leaves its device.
        A compiler is free to do what it can do early or late; this pins the start of an exchange
        before the work that hides it, and its end after. Gradients are pinned the same way round.
        They wait for `before_gradient`, a tree of arrays, as well.
        """
        if not self.travels:
            return things
        bare = (a.moving if isinstance(a, Chunk) else a for a in things)
        ordered = travel.together(*bare, before_gradient=before_gradient)
        pairs = zip(things, ordered, strict=True)
        return tuple(a._replace(moving=b) if isinstance(a, Chunk) else b for a, b in pairs)

    @property
    def travels(self) -> bool:
        """Whether any row leaves its device."""
        return self.rules.parts("expert") > 1

    def _work(self, x: Float[Array, "B T D"]) -> Any:
        """The exchange, fitted to one device's share of a chunk of `x`."""
        if not self.travels:
            return travel.Alone()
        config, rules = self.config, self.rules
        devices = rules.parts("expert")
        sizes = exchange.Sizes(
            axes=rules.axes("expert"),
            num_devices=devices,
            num_tokens=self._tokens_per_device(x) // self._num_chunks(x),
            num_chosen=config.num_chosen,
            num_local=config.num_experts // devices,
            mean_chosen=config.mean_ffn_experts,
            width=config.hidden_size,
            platform=rules.platform,
        )
        return travel.at_work(config.exchange, sizes)

    def _num_chunks(self, x: Float[Array, "B T D"]) -> int:
        """The largest number that divides both the config's and the tokens of a device."""
        if not self.travels:
            return 1
        return math.gcd(self.config.token_chunks, self._tokens_per_device(x))

    def _tokens_per_device(self, x: Float[Array, "B T D"]) -> int:
        axes = _Places.of(self.rules, x).token_axes
        num_shards = math.prod(self.rules.size(axis) for axis in axes)
        return x.shape[0] * x.shape[1] // num_shards


def _of_layer(
    gate_up: Float[Array, "L E D 2 M"], layer: Int[Array, ""], *, apart: bool
) -> expert_gemm.GateUp:
    """The gates and the up projections of one layer; apart, each is read where it lies on TPU."""
    _, num_experts, width, _, ffn = gate_up.shape
    if not apart:
        return gate_up[layer].reshape(num_experts, width, -1)

    def cut(i):
        start, size = (layer, 0, 0, i, 0), (1, num_experts, width, 1, ffn)
        return jax.lax.dynamic_slice(gate_up, start, size).reshape(num_experts, width, ffn)

    return cut(0), cut(1)


class _Places(NamedTuple):
    """Where tokens and rows lie on the mesh, as partitions; without a mesh nobody looks."""

    tokens: PartitionSpec = PartitionSpec()
    rows: PartitionSpec = PartitionSpec()
    partial_rows: PartitionSpec = PartitionSpec()  # one summand each where experts are split
    whole: PartitionSpec = PartitionSpec()
    token_axes: tuple[str, ...] = ()
    partial_axes: tuple[str, ...] = ()

    @classmethod
    def of(cls, rules: ShardingRules, x: Float[Array, "B T D"]) -> "_Places":
        sharding = rules.like(x)
        if sharding is None:
            return cls()
        tokens = PartitionSpec(*sharding.spec[:2])
        token_axes, partial_axes = _axes(tokens), _axes(rules.gathered("expert_ffn"))
        return cls(
            tokens=tokens,
            rows=PartitionSpec(token_axes),
            partial_rows=PartitionSpec(token_axes + partial_axes),
            token_axes=token_axes,
            partial_axes=partial_axes,
        )


def _axes(spec: PartitionSpec) -> tuple[str, ...]:
    """All mesh axes of a partition, in order."""
    parts = (part if isinstance(part, tuple) else (part,) for part in spec if part is not None)
    return tuple(axis for part in parts for axis in part)


def _kept_as_bits(a: Array) -> Array:
    """`a`, to be found by a checkpoint policy as whole numbers, for it has no gradient.

    JAX rounds every float that a policy keeps to its own precision, which on TPU copies all rows.
    """
    bits = jax.lax.bitcast_convert_type(a, jnp.dtype(f"uint{8 * a.dtype.itemsize}"))
    return jax.lax.bitcast_convert_type(checkpoint_name(bits, DISPATCHED), a.dtype)


def _varying_alike(tree):
    """Marks every array as one that may differ along each mesh axis along which any of them does.

    The transpose of the mark is the sum over the devices that shared an array; where its type says
    `reduced`, whoever gathered the array takes that sum.
    """
    axes = [jax.typeof(a).mat.varying for a in jax.tree.leaves(tree)]
    union = frozenset().union(*axes)

    def mark(a):
        missing = union - jax.typeof(a).mat.varying
        summed_later = missing & jax.typeof(a).mat.reduced
        for some in (summed_later, missing - summed_later):
            a = jax.lax.pcast(a, tuple(sorted(some)), to="varying") if some else a
        return a

    return jax.tree.map(mark, tree)
