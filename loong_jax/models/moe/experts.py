"""The experts of a layer: a grouped SwiGLU over the rows that chose an expert with weights.

Choices of zero-computation experts never become rows: they only add their gates to the weight of
the identity. Rows are sorted by expert, each expert's rows padded to whole blocks, and a scan over
blocks multiplies each with its expert's weights. The way back is a gather and a float32 sum over
the K choices, so there is no scatter with duplicates and the result is reproducible.
Source: arXiv:2509.01322, section 2.1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models.moe import parameters
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.router import Routing
from loong_jax.sharding import ShardingRules


class Blocks(NamedTuple):
    """Where the rows of the grouped product come from and go to; R rows in blocks of one expert."""

    source: Int[Array, "R"]  # the token of each row; T (one past the last) where a row is padding
    slot: Int[Array, "T K"]  # the row of each choice; meaningless where `kept` is false
    kept: Bool[Array, "T K"]  # the choice is an expert with weights, and the token is unmasked
    expert: Int[Array, "blocks"]  # whose weights multiply the block


def arrange(
    expert: Int[Array, "T K"], kept: Bool[Array, "T K"], num_experts: int, block: int
) -> Blocks:
    """Sorts the kept choices by expert (stably) and pads each expert to whole blocks.

    No choice is ever dropped: there are blocks enough for every choice to be kept.
    """
    num_tokens, num_chosen = expert.shape
    num_choices = num_tokens * num_chosen
    num_blocks = -(-num_choices // block) + num_experts
    expert_N = jnp.where(kept, expert, num_experts).reshape(-1)
    order_N = jnp.argsort(expert_N, stable=True)
    count_E = jnp.sum(expert_N[:, None] == jnp.arange(num_experts)[None], axis=0)
    blocks_E = -(-count_E // block)
    first_block_E = jnp.cumsum(blocks_E) - blocks_E
    first_sorted_E = jnp.cumsum(count_E) - count_E
    sorted_N = expert_N[order_N]
    shift_E = first_block_E * block - first_sorted_E
    row_N = jnp.arange(num_choices) + shift_E.at[sorted_N].get(mode="clip")
    row_N = jnp.where(sorted_N < num_experts, row_N, num_blocks * block)
    source_R = (
        jnp.full(num_blocks * block, num_tokens)
        .at[row_N]
        .set(order_N // num_chosen, mode="drop", unique_indices=True)
    )
    slot_N = jnp.zeros(num_choices, row_N.dtype).at[order_N].set(row_N, unique_indices=True)
    block_expert = jnp.searchsorted(jnp.cumsum(blocks_E), jnp.arange(num_blocks), side="right")
    return Blocks(
        source_R, slot_N.reshape(expert.shape), kept, jnp.minimum(block_expert, num_experts - 1)
    )


def expert_ffn(
    x: Float[Array, "T D"],
    gate: Float[Array, "T K"],
    blocks: Blocks,
    gate_up: Float[Array, "E D 2 M"],
    down: Float[Array, "E M D"],
) -> Float[Array, "T D"]:
    """sum over the kept choices k of gate_k * FFN_k(x), float32."""
    num_blocks = blocks.expert.shape[0]
    padded = jnp.concatenate([x, jnp.zeros_like(x[:1])])
    rows = padded[blocks.source].reshape(num_blocks, -1, x.shape[-1])

    def one_block(_, block):
        rows, expert = block
        gate_RM, up_RM = jnp.moveaxis(jnp.einsum("RD,DcM->RcM", rows, gate_up[expert]), 1, 0)
        return None, (jax.nn.silu(gate_RM) * up_RM) @ down[expert]

    _, out = jax.lax.scan(one_block, None, (rows, blocks.expert))
    out = out.reshape(-1, x.shape[-1])
    chosen_TKD = out.at[blocks.slot].get(mode="clip").astype(jnp.float32)
    return jnp.sum(jnp.where(blocks.kept, gate, 0.0)[..., None] * chosen_TKD, axis=1)


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
        )

    def __call__(
        self, x: Float[Array, "B T D"], routing: Routing, mask: Bool[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """sum over FFN choices of gate * FFN(x) + (sum of the gates of zero choices) * x."""
        rules, num_experts = self.rules, self.config.num_experts
        gate_up = rules.gather(self.gate_up[...], "expert", "embed", None, "expert_ffn")
        down = rules.gather(self.down[...], "expert", "expert_ffn", "embed")
        tokens = None if rules.mesh is None else rules.like(x).spec
        grouped = rules.shard_map(
            self._on_one_device,
            in_specs=(
                tokens,
                tokens,
                tokens,
                tokens and PartitionSpec(*tokens[:2]),
                rules.gathered("expert", "embed", None, "expert_ffn"),
                rules.gathered("expert", "expert_ffn", "embed"),
            ),
            out_specs=tokens,
        )
        mixed = grouped(x, routing.target, routing.gate, mask, gate_up, down)
        zero_BT = jnp.sum(routing.gate * (routing.target >= num_experts), axis=-1)
        return (mixed + zero_BT[..., None] * x.astype(jnp.float32)).astype(x.dtype)

    def _on_one_device(self, x, target, gate, mask, gate_up, down):
        """The experts of this device over the tokens of its expert group."""
        rules, (_, length, embed) = self.rules, x.shape
        exchange = rules.size("expert") > 1
        first = 0
        if exchange:
            x, target, gate, mask = (
                jax.lax.all_gather(a, "expert", axis=0, tiled=True) for a in (x, target, gate, mask)
            )
            first = jax.lax.axis_index("expert") * gate_up.shape[0]
        num_chosen = target.shape[-1]
        local = target.reshape(-1, num_chosen) - first
        kept = (local >= 0) & (local < gate_up.shape[0]) & mask.reshape(-1, 1)
        blocks = arrange(local, kept, gate_up.shape[0], block_rows(local.size, gate_up.shape[0]))
        out = expert_ffn(
            x.reshape(-1, embed), gate.reshape(-1, num_chosen), blocks, gate_up, down
        ).reshape(-1, length, embed)
        if rules.mesh is not None:
            out = jax.lax.psum(out, "tensor")
        if exchange:
            out = jax.lax.psum_scatter(out, "expert", scatter_dimension=0, tiled=True)
        return out


def block_rows(num_choices: int, num_experts: int) -> int:
    """Rows per block: about half of an expert's mean share, a power of two in 16..256."""
    share = max(1, num_choices // (2 * num_experts))
    return min(256, max(16, 1 << (share.bit_length() - 1)))
