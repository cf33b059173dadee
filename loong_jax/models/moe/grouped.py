"""The grouped SwiGLU of the experts, written for one device: rows in blocks of one expert each.

Choices are sorted by expert, and the rows of each expert cut into blocks, all of the largest size
but the last. Blocks of equal size share a loop, so that every product has a size known to the
compiler and hardly any row is padding; a loop runs over the blocks in use only, so time is
proportional to the choices kept. The way back to tokens is a gather and a sum over the K choices,
forward and backward: nothing is scattered onto duplicates and the result is reproducible. The
backward pass is written out and recomputes the blocks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Blocks(NamedTuple):
    """Where rows come from and go to. There are R rows, enough for every choice to be kept.

    A block has 1, 2, ... or `sizes` units of rows. Every expert's rows fill whole units.
    """

    choice: Int[Array, "units unit"]  # t * K + k of the choice in each row; T * K if it is padding
    slot: Int[Array, "T K"]  # the row of each choice; R where it is not kept
    expert: Int[Array, "blocks"]  # whose weights multiply the block
    first_row: Int[Array, "blocks"]
    by_size: Int[Array, "blocks"]  # the blocks in use, smallest first
    num_up_to: Int[Array, "sizes"]  # how many of them have at most 1, 2, ... units

    @property
    def unit(self) -> int:
        """Rows in a unit."""
        return self.choice.shape[1]


def block_rows(num_choices: int, num_experts: int) -> int:
    """Rows of the largest blocks: an expert's mean share, as a power of two in 16..128.

    Larger blocks than 128 rows gain little, since a core's cache holds no more.
    """
    share = max(1, num_choices // num_experts)
    return min(128, max(16, 1 << (share - 1).bit_length()))


def arrange(
    expert: Int[Array, "T K"], kept: Bool[Array, "T K"], num_experts: int, rows: int
) -> Blocks:
    """Gives every kept choice a row, sorted by expert, then by token. No choice is dropped.

    `rows` is the size of the largest blocks. `expert` is looked at where `kept` is true only; what
    is not kept gets no row at all.
    """
    num_choices = expert.size
    unit = rows if rows <= 16 else max(16, rows // 8)
    num_units = -(-num_choices // unit) + num_experts
    num_sizes = min(rows // unit, num_units)
    nowhere = num_units * unit
    choice_N = jax.lax.iota(jnp.int32, num_choices)
    sorted_N, order_N = _sorted(jnp.where(kept, expert, num_experts).reshape(-1), num_experts)
    first_E = jnp.searchsorted(sorted_N, jnp.arange(num_experts + 1)).astype(jnp.int32)
    units_E = -(-jnp.diff(first_E) // unit)
    last_unit_E = jnp.cumsum(units_E)
    first_row_E = unit * (last_unit_E - units_E)
    shift_E = jnp.append(first_row_E - first_E[:-1], 0)
    row_N = jnp.where(sorted_N < num_experts, choice_N + shift_E[sorted_N], nowhere)
    choice_R = jnp.full(nowhere, num_choices, jnp.int32)
    choice_R = choice_R.at[row_N].set(order_N, mode="drop", unique_indices=True)
    slot_N = jnp.zeros_like(row_N).at[order_N].set(row_N, unique_indices=True)

    index = jax.lax.iota(jnp.int32, num_units // num_sizes + num_experts)
    blocks_E = -(-units_E // num_sizes)
    last_block_E = jnp.cumsum(blocks_E)
    owner = jnp.searchsorted(last_block_E, index, side="right")
    owner = jnp.minimum(owner, num_experts - 1).astype(jnp.int32)
    before = num_sizes * (index - (last_block_E - blocks_E)[owner])  # units of the same expert
    size = jnp.minimum(units_E[owner] - before, num_sizes)
    size = jnp.where(index < last_block_E[-1], size, num_sizes + 1)
    sorted_size, by_size = _sorted(size, num_sizes + 1)
    num_up_to = jnp.searchsorted(sorted_size, 1 + jnp.arange(num_sizes), side="right")
    return Blocks(
        choice_R.reshape(-1, unit),
        slot_N.reshape(expert.shape),
        owner,
        first_row_E[owner] + unit * before,
        by_size,
        num_up_to.astype(jnp.int32),
    )


def _sorted(key_N: Int[Array, "N"], largest: int) -> tuple[Int[Array, "N"], Int[Array, "N"]]:
    """Keys in 0..largest in order, and which key each was. Equal keys stay in order.

    One sort of numbers that hold both is several times faster on CPU than a sort of pairs.
    """
    count = len(key_N)
    index_N = jax.lax.iota(jnp.int32, count)
    if (largest + 1) * count > jnp.iinfo(jnp.int32).max:
        sorted_N, order_N = jax.lax.sort((key_N, index_N), num_keys=1, is_stable=True)
        return sorted_N, order_N
    both_N = jax.lax.sort(key_N * count + index_N)
    return both_N // count, both_N % count


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
    gate_R1 = _gates(gate, blocks)
    token_R = _tokens(blocks, len(x))
    gate_up_EDm = gate_up.reshape(*gate_up.shape[:2], -1)

    def one_block(expert, start, rows, out_RD):
        gate_r1 = jax.lax.dynamic_slice_in_dim(gate_R1, start, rows)
        x_rD = _take(x, token_R, start, rows)
        first, second = jnp.split(x_rD @ gate_up_EDm[expert], 2, axis=-1)
        hidden = (jax.nn.silu(first) * second * gate_r1).astype(x.dtype)
        return jax.lax.dynamic_update_slice_in_dim(out_RD, hidden @ down[expert], start, axis=0)

    out_RD = _over_blocks(blocks, one_block, _zeros(x, len(token_R) + 1, x.shape[-1]))
    return _combine(out_RD, blocks), (x, gate, blocks, gate_up, down)


def _backward(saved, grad_out):
    x, gate, blocks, gate_up, down = saved
    gate_R1 = _gates(gate, blocks)
    token_R, grad_out = _tokens(blocks, len(x)), grad_out.astype(x.dtype)
    gate_up_EDm = gate_up.reshape(*gate_up.shape[:2], -1)

    def one_block(expert, start, rows, grads):
        grad_x_RD, grad_gate_R, grad_gate_up, grad_down = grads
        gate_r1 = jax.lax.dynamic_slice_in_dim(gate_R1, start, rows)
        x_rD = _take(x, token_R, start, rows)
        grad_rD = _take(grad_out, token_R, start, rows)
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
        _zeros(x, len(token_R) + 1, x.shape[-1]),
        _zeros(gate, len(token_R) + 1),
        _zeros(gate_up, *gate_up_EDm.shape, dtype=jnp.float32),
        _zeros(down, *down.shape, dtype=jnp.float32),
    )
    grad_x_RD, grad_gate_R, grad_gate_up, grad_down = _over_blocks(blocks, one_block, zeros)
    return (
        _combine(grad_x_RD, blocks).astype(x.dtype),
        grad_gate_R[blocks.slot],
        None,
        grad_gate_up.reshape(gate_up.shape).astype(gate_up.dtype),
        grad_down.astype(down.dtype),
    )


expert_ffn.defvjp(_forward, _backward)


def _gates(gate: Float[Array, "T K"], blocks: Blocks) -> Float[Array, "R 1"]:
    """The gate of every row, float32, 0 for padding."""
    return jnp.append(gate.reshape(-1), 0.0)[blocks.choice.reshape(-1)][:, None]


def _tokens(blocks: Blocks, num_tokens: int) -> Int[Array, "R"]:
    """The token of every row; padding has some token."""
    choice_R = blocks.choice.reshape(-1)
    return jnp.minimum(choice_R // blocks.slot.shape[1], num_tokens - 1)


def _take(
    x: Float[Array, "T D"], token_R: Int[Array, "R"], start: Int[Array, ""], rows: int
) -> Float[Array, "rows D"]:
    """The tokens of `rows` rows. Fused with the gather, the slice would be taken per element."""
    token_r = jax.lax.optimization_barrier(jax.lax.dynamic_slice_in_dim(token_R, start, rows))
    return x.at[token_r].get(mode="promise_in_bounds")


def _over_blocks(blocks: Blocks, one_block: Callable[..., Any], carry: Any) -> Any:
    """`carry = one_block(expert, first row, number of rows, carry)` for every block in use."""
    begin = 0
    for size, end in enumerate(blocks.num_up_to, start=1):

        def step(i, carry, rows=size * blocks.unit):
            block = blocks.by_size[i]
            return one_block(blocks.expert[block], blocks.first_row[block], rows, carry)

        carry = jax.lax.fori_loop(begin, end, step, carry)
        begin = end
    return carry


def _combine(rows_RD: Float[Array, "R D"], blocks: Blocks) -> Float[Array, "T D"]:
    """The sum of each token's rows, float32; row R, the last, is zero and stands for no choice."""
    first, *others = (
        rows_RD.at[blocks.slot[:, k]].get(mode="promise_in_bounds").astype(jnp.float32)
        for k in range(blocks.slot.shape[1])
    )
    return sum(others, start=first)


def _outer(a: Float[Array, "R a"], b: Float[Array, "R b"]) -> Float[Array, "a b"]:
    return jnp.einsum("Ra,Rb->ab", a, b, preferred_element_type=jnp.float32)


def _zeros(like: Array, *shape: int, dtype=None) -> Array:
    """Zeros that vary over the same mesh axes as `like`, which shard_map checks."""
    return jax.lax.full_like(like, 0, shape=shape, dtype=dtype)
