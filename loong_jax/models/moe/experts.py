"""The experts of a layer: those with weights over the rows that chose them, and the identity.

A mixture is made in three steps, so that a layer can do other work while rows travel: `dispatch`
sends tokens to the devices that hold their experts, `compute` runs those experts, `combine` sends
back what they made. Choices of zero-computation experts never become rows: they only add their
gates to the weight of the identity. Source: arXiv:2509.01322, section 2.1.
"""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models.moe import exchange, expert_gemm, parameters
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.router import Routing
from loong_jax.models.moe.rows import later_rounds
from loong_jax.sharding import ShardingRules

DISPATCHED = "dispatched"  # the name under which a checkpoint policy finds what arrived


Tree = TypeVar("Tree")
Weights = TypeVar("Weights")


class Mixture(NamedTuple):
    """A mixture in the making. Arrays of rows lie end to end, device by device."""

    moving: Any  # Rows until `compute`, then what the experts made of them
    x: Float[Array, "B T D"]
    routing: Routing
    parcels: Any  # the choices, sorted for the exchange
    journey: Any  # which of them travel now
    num_rounds: Int[Array, ""]  # until all have travelled; 1 unless a buffer is too small
    num_overflowed: Int[Array, ""]  # choices that do not travel now, over all devices
    rest: Float[Array, "tokens D"] | None = None  # what became of those


class Experts(nnx.Module):
    """The E experts with weights of every layer and the identity that the others amount to."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        self.config, self.rules = config, rules
        layers, experts = config.num_layers, config.num_experts
        embed, ffn = config.hidden_size, config.expert_ffn_hidden_size
        self.gate_up = parameters.kernel(
            (layers, experts, embed, 2, ffn),
            ("layers", "expert", "expert_embed", None, "expert_ffn"),
            config.param_dtype,
            rngs,
            rules,
            fan_in=embed,
        )
        self.down = parameters.kernel(
            (layers, experts, ffn, embed),
            ("layers", "expert", "expert_ffn", "expert_embed"),
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
        mixture, x, _ = self.compute(mixture, x, ())
        return self.mix(self.combine(mixture), x)[0]

    def dispatch(
        self,
        x: Float[Array, "B T D"],
        routing: Routing,
        mask: Bool[Array, "B T"],
        weights: Weights,
    ) -> tuple[Mixture, Float[Array, "B T D"], Weights]:
        """Sends the tokens in `mask` to the devices of their experts.

        Returns `x` and `weights` as well: what is made of these runs while the rows travel, not
        before they leave.
        """
        mixture, (x, weights) = self._in_order(self._pack(x, routing, mask), (x, weights))
        if not self.travels:
            return mixture, x, weights
        work, places = self._work(mixture.x), _Places.of(self.rules, mixture.x)

        def on_one_device(sealed, journey):
            return exchange.carry(work, sealed, journey)

        on_mesh = self.rules.shard_map(on_one_device, in_specs=places.rows, out_specs=places.rows)
        arrived = on_mesh(mixture.moving, mixture.journey)
        there = jax.tree.map(lambda a: checkpoint_name(a, DISPATCHED), arrived.there)
        return mixture._replace(moving=arrived._replace(there=there)), x, weights

    def compute(
        self, mixture: Mixture, done: Float[Array, "B T D"], weights: Weights
    ) -> tuple[Mixture, Float[Array, "B T D"], Weights]:
        """Runs each device's experts over the rows it has, between the work before and after.

        `done` is the work that the dispatch was to hide behind; the next starts from what is
        returned, with `weights`, which may be gathered meanwhile.
        """
        mixture, done = self._in_order(mixture, done)
        mixture, (done, weights) = self._in_order(self._run_experts(mixture), (done, weights))
        return mixture, done, weights

    def combine(self, mixture: Mixture) -> Mixture:
        """Sends rows back to where they came from."""
        if not self.travels:
            return mixture
        work, places = self._work(mixture.x), _Places.of(self.rules, mixture.x)
        on_mesh = self.rules.shard_map(
            work.send_back,
            in_specs=(places.partial_rows, places.rows),
            out_specs=places.partial_rows,
        )
        return mixture._replace(moving=on_mesh(mixture.moving, mixture.journey))

    def mix(
        self, mixture: Mixture, done: Float[Array, "B T D"]
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"]]:
        """The sum of each token's rows and its share of the identity, once the work is done that
        the combine was to hide behind; and that work.
        """
        mixture, done = self._in_order(mixture, done)
        x, routing = mixture.x, mixture.routing
        work, places = self._work(x), _Places.of(self.rules, x)

        def on_one_device(back, rest, journey, x):
            mixed = work.unload(back, journey)
            mixed = mixed if rest is None else mixed + rest
            mixed = jax.lax.psum(mixed, places.partial_axes) if places.partial_axes else mixed
            return mixed.reshape(x.shape)

        specs = (places.partial_rows, places.partial_rows, places.rows, places.tokens)
        on_mesh = self.rules.shard_map(on_one_device, in_specs=specs, out_specs=places.tokens)
        mixed = on_mesh(mixture.moving, mixture.rest, mixture.journey, x)
        is_zero = routing.target >= self.config.num_experts
        zero_BT = jnp.sum(routing.gate * is_zero, axis=-1)
        return (mixed + zero_BT[..., None] * x.astype(jnp.float32)).astype(x.dtype), done

    def _pack(
        self, x: Float[Array, "B T D"], routing: Routing, mask: Bool[Array, "B T"]
    ) -> Mixture:
        """Puts tokens into rows, sorted by where they go."""
        rules, places = self.rules, _Places.of(self.rules, x)
        work = self._work(x)
        if rules.mesh is not None:  # a mask may arrive whole on every device
            mask = jax.sharding.reshard(mask, NamedSharding(rules.mesh, places.tokens))

        def on_one_device(x, target, gate, mask):
            x, target, gate = (a.reshape(-1, a.shape[-1]) for a in (x, target, gate))
            kept = (target < self.config.num_experts) & mask.reshape(-1, 1)
            parcels = work.sort(target, kept)
            journey = work.journey(parcels, 0)
            num_rounds, num_waiting = jnp.int32(1), jnp.int32(0)
            if work.may_overflow:
                num_rounds = jax.lax.pmax(work.num_rounds(parcels), places.token_axes)
                num_waiting = jax.lax.psum(work.num_waiting(parcels), places.token_axes)
            rows = work.load(x, gate, parcels, journey)
            moving = exchange.seal(work, rows) if self.travels else rows
            return moving, parcels, journey, num_rounds, num_waiting

        split = (places.rows, places.rows, places.rows, places.whole, places.whole)
        on_mesh = rules.shard_map(on_one_device, in_specs=places.tokens, out_specs=split)
        moving, *others = on_mesh(x, routing.target, routing.gate, mask)
        return Mixture(moving, x, routing, *others)

    def _run_experts(self, mixture: Mixture) -> Mixture:
        rules, places = self.rules, _Places.of(self.rules, mixture.x)
        work, dtype = self._work(mixture.x), mixture.x.dtype
        gate_up = rules.gather(self.gate_up[...], "expert", "expert_embed", None, "expert_ffn")
        down = rules.gather(self.down[...], "expert", "expert_ffn", "expert_embed")
        gemm = expert_gemm.choose(self.config.expert_gemm, rules.platform)

        def made_of(rows, weights):
            return expert_gemm.expert_ffn(*rows, *weights, gemm=gemm, room=work.room)

        def one_round(i, inputs, weights, parcels):
            journey = work.journey(parcels, i)
            sealed = exchange.seal(work, work.load(*inputs, parcels, journey))
            arrived = exchange.unseal(work, exchange.carry(work, sealed, journey))
            back = work.send_back(made_of(arrived, weights).astype(dtype), journey)
            return work.unload(back, journey)

        def on_one_device(moving, x, gate, parcels, num_rounds, gate_up, down):
            rows = exchange.unseal(work, moving) if self.travels else moving
            x, gate = (a.reshape(-1, a.shape[-1]) for a in (x, gate))
            # Flat before it is used twice: on TPU this moves every weight.
            weights, rest = (gate_up.reshape(*gate_up.shape[:2], -1), down), None
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
            rules.gathered("expert", "expert_embed", None, "expert_ffn"),
            rules.gathered("expert", "expert_ffn", "expert_embed"),
        )
        on_mesh = rules.shard_map(on_one_device, in_specs=specs, out_specs=places.partial_rows)
        made, rest = on_mesh(
            mixture.moving,
            mixture.x,
            mixture.routing.gate,
            mixture.parcels,
            mixture.num_rounds,
            gate_up,
            down,
        )
        return mixture._replace(moving=made, rest=rest)

    def _in_order(self, mixture: Mixture, x: Tree) -> tuple[Mixture, Tree]:
        """Both, each only once the other is there. Nothing where no row leaves its device.

        A compiler is free to do what it can do early or late; this pins the start of an exchange
        before the work that hides it, and its end after. Gradients are pinned the same way round.
        """
        if not self.travels:
            return mixture, x
        if isinstance(mixture.moving, exchange.Sealed):
            moving, x = exchange.together(mixture.moving, x)
        else:
            moving, x = jax.lax.optimization_barrier((mixture.moving, x))
        return mixture._replace(moving=moving), x

    @property
    def travels(self) -> bool:
        """Whether any row leaves its device."""
        return self.rules.size(exchange.AXIS) > 1

    def _work(self, x: Float[Array, "B T D"]) -> Any:
        """The exchange, fitted to one device's share of `x`."""
        if not self.travels:
            return exchange.Alone()
        config, rules = self.config, self.rules
        devices = rules.size(exchange.AXIS)
        num_shards = 1
        for axis in _Places.of(rules, x).token_axes:
            num_shards *= rules.size(axis)
        sizes = exchange.Sizes(
            num_devices=devices,
            num_tokens=x.shape[0] * x.shape[1] // num_shards,
            num_chosen=config.num_chosen,
            num_local=config.num_experts // devices,
            mean_chosen=config.target_ffn_experts,
            width=config.hidden_size,
            platform=rules.platform,
        )
        return exchange.at_work(config.exchange, sizes)


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


def _varying_alike(tree):
    """Marks every array as one that may differ along each mesh axis along which any of them does.

    The transpose of the mark is the sum over the devices that shared an array.
    """
    axes = [jax.typeof(a).mat.varying for a in jax.tree.leaves(tree)]
    union = frozenset().union(*axes)

    def mark(a):
        missing = tuple(sorted(union - jax.typeof(a).mat.varying))
        return jax.lax.pcast(a, missing, to="varying") if missing else a

    return jax.tree.map(mark, tree)
