"""The grouped SwiGLU of the experts, written for one device: rows in blocks of one expert each.

Choices are sorted by expert and each expert's rows padded to whole blocks; a loop over the blocks
in use multiplies each with its expert's weights. The way back to tokens is a gather and a sum over
the K choices, forward and backward, so nothing is scattered onto duplicates and the result is
reproducible. The backward pass is written out: it recomputes the blocks, and its loop, too, runs
over the blocks in use only. Its time and the forward's are proportional to the choices kept.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Blocks(NamedTuple):
    """Where rows come from and go to. There are R rows, enough for every choice to be kept."""

    choice: Int[Array, "R"]  # t * K + k of the choice in each row; T * K where a row is padding
    slot: Int[Array, "T K"]  # the row of each choice; R where it is not kept
    expert: Int[Array, "blocks"]  # whose weights multiply the block
    num_used: Int[Array, ""]  # blocks with rows; they come first


def block_rows(num_choices: int, num_experts: int) -> int:
    """Rows per block: half of an expert's mean share, as a power of two in 16..128.

    Smaller blocks pad less, larger ones multiply faster; on two CPU cores 64 to 256 rows were
    within 5 % of each other at 6144 tokens, and 16 to 64 rows at 256 tokens.
    """
    half_share = max(1, num_choices // (2 * num_experts))
    return min(128, max(16, 1 << (half_share.bit_length() - 1)))


def arrange(
    expert: Int[Array, "T K"], kept: Bool[Array, "T K"], num_experts: int, rows: int
) -> Blocks:
    """Gives every kept choice a row, sorted by expert, then by token. No choice is dropped.

    `expert` is looked at where `kept` is true only; what is not kept gets no row at all.
    """
    num_choices = expert.size
    num_blocks = -(-num_choices // rows) + num_experts
    nowhere = num_blocks * rows
    expert_N = jnp.where(kept, expert, num_experts).reshape(-1)
    choice_N = jax.lax.iota(jnp.int32, num_choices)
    sorted_N, order_N = jax.lax.sort((expert_N, choice_N), num_keys=1, is_stable=True)
    is_of_NE = expert_N[:, None] == jnp.arange(num_experts)[None]
    count_E = jnp.sum(is_of_NE, axis=0, dtype=jnp.int32)
    last_block_E = jnp.cumsum(-(-count_E // rows))
    first_row_E = rows * jnp.append(0, last_block_E[:-1])
    shift_E = jnp.append(first_row_E - (jnp.cumsum(count_E) - count_E), 0)
    row_N = jnp.where(sorted_N < num_experts, choice_N + shift_E[sorted_N], nowhere)
    padding_R = jnp.full(nowhere, num_choices, jnp.int32)
    choice_R = padding_R.at[row_N].set(order_N, mode="drop", unique_indices=True)
    slot_N = jnp.zeros_like(row_N).at[order_N].set(row_N, unique_indices=True)
    owner = jnp.searchsorted(last_block_E, jnp.arange(num_blocks), side="right")
    owner = jnp.minimum(owner, num_experts - 1).astype(jnp.int32)
    return Blocks(choice_R, slot_N.reshape(expert.shape), owner, last_block_E[-1])


@jax.custom_vjp
def expert_ffn(
    x: Float[Array, "T D"],
    gate: Float[Array, "T K"],
    blocks: Blocks,
    gate_up: Float[Array, "E D 2 M"],
    down: Float[Array, "E M D"],
) -> Float[Array, "T D"]:
    """sum over the kept choices k of gate_k * FFN_k(x), summed in float32.

    The gate enters before the product with `down`, so a padding row, whose gate is 0, adds nothing.
    """
    return _forward(x, gate, blocks, gate_up, down)[0]


def _forward(x, gate, blocks, gate_up, down):
    num_rows, width = blocks.choice.shape[0], x.shape[-1]
    gate_up_EDm = gate_up.reshape(*gate_up.shape[:2], -1)

    def one_block(i, out_RD):
        token, gate_r1, expert, start = _block(i, blocks, gate)
        first, second = jnp.split(x[token] @ gate_up_EDm[expert], 2, axis=-1)
        hidden = (jax.nn.silu(first) * second * gate_r1).astype(x.dtype)
        return jax.lax.dynamic_update_slice_in_dim(out_RD, hidden @ down[expert], start, axis=0)

    out_RD = jax.lax.fori_loop(0, blocks.num_used, one_block, _zeros(x, num_rows + 1, width))
    return _combine(out_RD, blocks), (x, gate, blocks, gate_up, down)


def _backward(saved, grad_out):
    x, gate, blocks, gate_up, down = saved
    num_rows, width = blocks.choice.shape[0], x.shape[-1]
    gate_up_EDm = gate_up.reshape(*gate_up.shape[:2], -1)
    grad_out = grad_out.astype(x.dtype)

    def one_block(i, grads):
        grad_x_RD, grad_gate_R, grad_gate_up, grad_down = grads
        token, gate_r1, expert, start = _block(i, blocks, gate)
        x_rD, grad_rD = x[token], grad_out[token]
        first, second = jnp.split(x_rD @ gate_up_EDm[expert], 2, axis=-1)
        sigmoid = jax.nn.sigmoid(first)
        silu = first * sigmoid
        hidden = silu * second
        grad_gated = grad_rD @ down[expert].T
        grad_gate = jnp.sum((grad_gated * hidden).astype(jnp.float32), axis=-1)
        grad_hidden = grad_gated * gate_r1
        grad_first = grad_hidden * second * (sigmoid + silu * (1 - sigmoid))
        grad_rm = jnp.concatenate([grad_first, grad_hidden * silu], axis=-1).astype(x.dtype)
        gated = (hidden * gate_r1).astype(x.dtype)
        write = jax.lax.dynamic_update_slice_in_dim
        return (
            write(grad_x_RD, grad_rm @ gate_up_EDm[expert].T, start, axis=0),
            write(grad_gate_R, grad_gate, start, axis=0),
            grad_gate_up.at[expert].add(_outer(x_rD, grad_rm)),
            grad_down.at[expert].add(_outer(gated, grad_rD)),
        )

    zeros = (
        _zeros(x, num_rows + 1, width),
        _zeros(gate, num_rows + 1),
        _zeros(gate_up, *gate_up_EDm.shape, dtype=jnp.float32),
        _zeros(down, *down.shape, dtype=jnp.float32),
    )
    grads = jax.lax.fori_loop(0, blocks.num_used, one_block, zeros)
    grad_x_RD, grad_gate_R, grad_gate_up, grad_down = grads
    return (
        _combine(grad_x_RD, blocks).astype(x.dtype),
        grad_gate_R[blocks.slot],
        None,
        grad_gate_up.reshape(gate_up.shape).astype(gate_up.dtype),
        grad_down.astype(down.dtype),
    )


expert_ffn.defvjp(_forward, _backward)


def _block(i, blocks: Blocks, gate):
    """Tokens, gates (float32, 0 for padding), expert and first row of block `i`."""
    rows = blocks.choice.shape[0] // blocks.expert.shape[0]
    choice = jax.lax.dynamic_slice_in_dim(blocks.choice, i * rows, rows)
    gate_r = jnp.append(gate.reshape(-1), 0.0)[choice]
    token = jnp.minimum(choice // gate.shape[1], gate.shape[0] - 1)
    return token, gate_r[:, None], blocks.expert[i], i * rows


def _combine(rows_RD: Float[Array, "R D"], blocks: Blocks) -> Float[Array, "T D"]:
    """The sum of each token's rows, float32; row R, the last, is zero and stands for no choice."""
    first, *others = (
        rows_RD[blocks.slot[:, k]].astype(jnp.float32) for k in range(blocks.slot.shape[1])
    )
    return sum(others, start=first)


def _outer(a: Float[Array, "R a"], b: Float[Array, "R b"]) -> Float[Array, "a b"]:
    return jnp.einsum("Ra,Rb->ab", a, b, preferred_element_type=jnp.float32)


def _zeros(like: Array, *shape: int, dtype=None) -> Array:
    """Zeros that vary over the same mesh axes as `like`, which shard_map checks."""
    return jax.lax.full_like(like, 0, shape=shape, dtype=dtype)
