"""The experts of a layer: those with weights over the rows that chose them, and the identity.

Choices of zero-computation experts never become rows: they only add their gates to the weight of
the identity. Source: arXiv:2509.01322, section 2.1.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float

from loong_jax.models.moe import grouped, parameters
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.router import Routing
from loong_jax.sharding import ShardingRules


class Experts(nnx.Module):
    """The E experts with weights of every layer and the identity that the others amount to."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        self.config, self.rules = config, rules
        layers, experts = config.num_layers, config.num_experts
        embed, ffn = config.hidden_size, config.expert_ffn_hidden_size
        self.gate_up = parameters.kernel(
            (layers, experts, embed, 2, ffn),
            ("layers", "expert", "embed", None, "expert_ffn"),
            config.param_dtype,
            rngs,
            rules,
            fan_in=embed,
        )
        self.down = parameters.kernel(
            (layers, experts, ffn, embed),
            ("layers", "expert", "expert_ffn", "embed"),
            config.param_dtype,
            rngs,
            rules,
            gain=config.residual_gain,
        )

    def __call__(
        self, x: Float[Array, "B T D"], routing: Routing, mask: Bool[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """sum over FFN choices of gate * FFN(x) + (sum of the gates of zero choices) * x."""
        rules, num_experts = self.rules, self.config.num_experts
        gate_up = rules.gather(self.gate_up[...], "expert", "embed", None, "expert_ffn")
        down = rules.gather(self.down[...], "expert", "expert_ffn", "embed")
        sharding = rules.like(x)
        tokens = None if sharding is None else sharding.spec
        per_token = None
        if rules.mesh is not None and tokens is not None:
            per_token = PartitionSpec(*tokens[:2])  # a mask may arrive whole on every device
            mask = jax.sharding.reshard(mask, NamedSharding(rules.mesh, per_token))
        on_mesh = rules.shard_map(
            self._on_one_device,
            in_specs=(
                tokens,
                tokens,
                tokens,
                per_token,
                rules.gathered("expert", "embed", None, "expert_ffn"),
                rules.gathered("expert", "expert_ffn", "embed"),
            ),
            out_specs=tokens,
        )
        mixed = on_mesh(x, routing.target, routing.gate, mask, gate_up, down)
        zero_BT = jnp.sum(routing.gate * (routing.target >= num_experts), axis=-1)
        return (mixed + zero_BT[..., None] * x.astype(jnp.float32)).astype(x.dtype)

    def _on_one_device(self, x, target, gate, mask, gate_up, down):
        """This device's experts over the tokens of its expert group, then everyone's sum."""
        rules, (_, length, embed) = self.rules, x.shape
        num_local, num_chosen = gate_up.shape[0], target.shape[-1]
        exchange = rules.size("expert") > 1
        first = 0
        if exchange:
            x, target, gate, mask = (
                jax.lax.all_gather(a, "expert", axis=0, tiled=True) for a in (x, target, gate, mask)
            )
            first = jax.lax.axis_index("expert") * num_local
        local = target.reshape(-1, num_chosen) - first
        kept = (local >= 0) & (local < num_local) & mask.reshape(-1, 1)
        rows = grouped.block_rows(local.size, num_local)
        blocks = grouped.arrange(local, kept, num_local, rows)
        x_TD, gate_TK = x.reshape(-1, embed), gate.reshape(-1, num_chosen)
        operands = (x_TD, gate_TK, blocks, gate_up, down)
        if rules.mesh is not None:  # the backward pass of expert_ffn knows nothing of the mesh
            operands = _varying_alike(operands)
        out = grouped.expert_ffn(*operands).reshape(-1, length, embed)
        if rules.mesh is not None:
            out = jax.lax.psum(out, "tensor")
        if exchange:
            out = jax.lax.psum_scatter(out, "expert", scatter_dimension=0, tiled=True)
        return out


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
