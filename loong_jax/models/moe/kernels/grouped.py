"""The grouped SwiGLU of the experts on one device: a table of rows, and blocks for the rest.

Choices are sorted by expert. The first of each expert, as many as its capacity, lie in a table of C
cells for each expert, and one batched product per projection multiplies them all: it reads every
expert's weights where they lie and makes their gradients whole. What exceeds the capacity is not
dropped: a loop takes it in blocks of one expert each and adds to what the table gave. It runs as
often as there are such blocks, so hardly ever where loads are even. Where an expert has few rows,
most cells would be padding: then there is no table, and the loop takes every choice. The backward
pass is written out.

T tokens make N = T K choices, C is the number of cells of an expert and r that of rows of a block;
m = 2 M stands for the columns of gate and up side by side.

A block's weights are copied, since a product on CPU reads whole arrays only, and its product is too
small for two cores. That is why the table has most of the rows.
"""

import math
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models.moe.exchange.dispatch import zeros_alike

# The operands of the experts.
_Rows: TypeAlias = Float[Array, "T D"]
_Gates: TypeAlias = Float[Array, "T K"]
_GateUp: TypeAlias = Float[Array, "E D 2 M"]
_Down: TypeAlias = Float[Array, "E M D"]


class Plan(NamedTuple):
    """The places of choices. Choice n = t * K + k of N = T * K; N stands for none.

    Expert e has the sorted choices from first[e] to first[e + 1]; those of them that have no cell
    of the table are cut into blocks.
    """

    cell: Int[Array, "E C"]  # the choice in each cell
    slot: Int[Array, "T K"]  # the cell of each choice; E * C where it has none
    order: Int[Array, "N"]  # choices sorted by expert, then by token; last those not kept
    first: Int[Array, "E_plus_1"]
    block_end: Int[Array, "E"]  # how many blocks this and all earlier experts have

    @property
    def num_cells(self) -> int:
        """The capacity of an expert."""
        return self.cell.shape[1]

    def token_of(self, choice: Int[Array, "*rows"]) -> Int[Array, "*rows"]:
        """The token of a choice; T for none."""
        return choice // self.slot.shape[1]

    def block(self, i: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, "r"]]:
        """Whose weights multiply block i, and the choice in each of its rows."""
        num_choices = len(self.order)
        num_rows = block_rows(num_choices, *self.cell.shape)
        expert = jnp.sum(self.block_end <= i, dtype=jnp.int32)
        before = jnp.append(0, self.block_end)[expert]
        start = self.first[expert] + self.num_cells + (i - before) * num_rows
        at_r = start + jax.lax.iota(jnp.int32, num_rows)
        choice_r = self.order.at[at_r].get(mode="clip")
        choice_r = jnp.where(at_r < self.first[expert + 1], choice_r, num_choices)
        return expert, jax.lax.optimization_barrier(choice_r)  # fused, it is made per element


def block_rows(num_choices: int, num_experts: int, num_cells: int) -> int:
    """Rows of a block: a part of an expert's share of all choices, as a power of two in 16..128.

    Half of it where blocks take every choice, and a quarter where they take what a table leaves of
    an expert, which is few. Larger blocks than 128 rows gain little, since a core's cache holds no
    more.
    """
    share = max(1, num_choices // ((4 if num_cells else 2) * num_experts))
    return min(128, max(16, 1 << (share - 1).bit_length()))


def capacity(mean_rows: float) -> int:
    """Cells of an expert that is to meet `mean_rows`: a standard deviation more, in eights.

    No cells for fewer than 16, as in decoding: too many cells would be padding.
    """
    if mean_rows < 16:
        return 0
    return 8 * math.ceil((mean_rows + math.sqrt(mean_rows)) / 8)


def arrange(
    expert: Int[Array, "T K"], kept: Bool[Array, "T K"], num_experts: int, num_cells: int
) -> Plan:
    """Gives every kept choice its place. No choice is dropped.

    `num_cells` is the capacity of an expert; more than all choices are never set aside. `expert` is
    looked at where `kept` is true only; what is not kept has no place at all.
    """
    num_choices = expert.size
    num_cells = min(num_cells, num_choices)
    sorted_N, order_N = _sorted(jnp.where(kept, expert, num_experts).reshape(-1), num_experts)
    first = jnp.searchsorted(sorted_N, jnp.arange(num_experts + 1)).astype(jnp.int32)
    count_E = jnp.diff(first)
    at_C = jax.lax.iota(jnp.int32, num_cells)
    cell_EC = order_N.at[first[:-1, None] + at_C[None]].get(mode="clip")
    cell_EC = jnp.where(at_C[None] < count_E[:, None], cell_EC, num_choices)
    rank_N = jax.lax.iota(jnp.int32, num_choices) - first[sorted_N]
    has_cell_N = (sorted_N < num_experts) & (rank_N < num_cells)
    slot_N = jnp.where(has_cell_N, sorted_N * num_cells + rank_N, num_experts * num_cells)
    slot_N = jnp.zeros_like(slot_N).at[order_N].set(slot_N, unique_indices=True)
    num_rows = block_rows(num_choices, num_experts, num_cells)
    blocks_E = -(-jnp.maximum(count_E - num_cells, 0) // num_rows)
    return Plan(cell_EC, slot_N.reshape(expert.shape), order_N, first, jnp.cumsum(blocks_E))


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
def expert_ffn(x: _Rows, gate: _Gates, plan: Plan, gate_up: _GateUp, down: _Down) -> _Rows:
    """sum over the kept choices k of gate_k * FFN_k(x), summed in float32.

    The gate enters before the product with `down`, so padding, whose gate is 0, adds nothing.
    """
    return _forward(x, gate, plan, gate_up, down)[0]


# The operands of `expert_ffn`, and its products with `gate_up` where there is a table.
_Saved: TypeAlias = tuple[_Rows, _Gates, Plan, _GateUp, _Down, Float[Array, "E C twice_M"] | None]


def _forward(
    x: _Rows, gate: _Gates, plan: Plan, gate_up: _GateUp, down: _Down
) -> tuple[_Rows, _Saved]:
    gate_up_EDm = gate_up.reshape(*gate_up.shape[:2], -1)
    out_TD, both_ECm = zeros_alike(x, x.shape, jnp.float32), None
    if plan.num_cells:
        both_ECm = _batched("ECD,EDm->ECm", _take(x, plan.token_of(plan.cell)), gate_up_EDm)
        gated_ECM = _swiglu(both_ECm) * _take(gate.reshape(-1, 1), plan.cell)
        out_TD = _combine(_batched("ECM,EMD->ECD", gated_ECM.astype(x.dtype), down), plan)

    def one_block(i: Int[Array, ""], out_TD: _Rows) -> _Rows:
        expert, choice_r = plan.block(i)
        token_r = plan.token_of(choice_r)
        gated_rM = _swiglu(_take(x, token_r) @ gate_up_EDm[expert])
        gated_rM = gated_rM * _take(gate.reshape(-1, 1), choice_r)
        return _add(out_TD, token_r, gated_rM.astype(x.dtype) @ down[expert])

    out_TD = jax.lax.fori_loop(0, plan.block_end[-1], one_block, out_TD)
    return out_TD, (x, gate, plan, gate_up, down, both_ECm)


def _backward(saved: _Saved, grad_out: _Rows) -> tuple[_Rows, _Gates, None, _GateUp, _Down]:
    x, gate, plan, gate_up, down, both_ECm = saved
    gate_up_EDm = gate_up.reshape(*gate_up.shape[:2], -1)
    gate_N1, grad_out = gate.reshape(-1, 1), grad_out.astype(x.dtype)
    if both_ECm is not None:
        x_ECD, grad_ECD = (_take(a, plan.token_of(plan.cell)) for a in (x, grad_out))
        grad_gated = _batched("ECD,EMD->ECM", grad_ECD, down)
        gated, grad_both, grad_gate = _swiglu_backward(
            both_ECm, _take(gate_N1, plan.cell), grad_gated
        )
        grads = (
            _combine(_batched("ECm,EDm->ECD", grad_both, gate_up_EDm), plan),
            _take(grad_gate.reshape(-1, 1), plan.slot.reshape(-1)),
            _batched("ECD,ECm->EDm", x_ECD, grad_both, jnp.float32),
            _batched("ECM,ECD->EMD", gated, grad_ECD, jnp.float32),
        )
    else:
        operands = (x, gate_N1, gate_up_EDm, down)
        grads = tuple(zeros_alike(a, a.shape, jnp.float32) for a in operands)

    def one_block(i, grads):
        grad_x_TD, grad_gate_N1, grad_gate_up, grad_down = grads
        expert, choice_r = plan.block(i)
        token_r = plan.token_of(choice_r)
        x_rD, grad_rD = _take(x, token_r), _take(grad_out, token_r)
        gated, grad_both, grad_gate = _swiglu_backward(
            x_rD @ gate_up_EDm[expert], _take(gate_N1, choice_r), grad_rD @ down[expert].T
        )
        return (
            _add(grad_x_TD, token_r, grad_both @ gate_up_EDm[expert].T),
            grad_gate_N1.at[choice_r].set(grad_gate, mode="drop"),
            grad_gate_up.at[expert].add(_outer(x_rD, grad_both)),
            grad_down.at[expert].add(_outer(gated, grad_rD)),
        )

    grads = jax.lax.fori_loop(0, plan.block_end[-1], one_block, grads)
    grad_x, grad_gate, grad_gate_up, grad_down = (
        grad.reshape(a.shape).astype(a.dtype)
        for grad, a in zip(grads, (x, gate, gate_up, down), strict=True)
    )
    return grad_x, grad_gate, None, grad_gate_up, grad_down


expert_ffn.defvjp(_forward, _backward)


def _swiglu(both: Float[Array, "... m"]) -> Float[Array, "... M"]:
    first, second = jnp.split(both.astype(jnp.float32), 2, axis=-1)
    return jax.nn.silu(first) * second


def _swiglu_backward(
    both: Float[Array, "... m"], gate: Float[Array, "... 1"], grad_gated: Float[Array, "... M"]
) -> tuple[Float[Array, "... M"], Float[Array, "... m"], Float[Array, "... 1"]]:
    """The input of the product with `down`, and the gradients of `both` and, float32, `gate`."""
    first, second = jnp.split(both.astype(jnp.float32), 2, axis=-1)
    sigmoid = jax.nn.sigmoid(first)
    silu = first * sigmoid
    hidden, grad_gated = silu * second, grad_gated.astype(jnp.float32)
    grad_gate = jnp.sum(grad_gated * hidden, axis=-1, keepdims=True)
    grad_hidden = grad_gated * gate
    grad_first = grad_hidden * second * (sigmoid + silu * (1 - sigmoid))
    grad_both = jnp.concatenate([grad_first, grad_hidden * silu], axis=-1)
    return (hidden * gate).astype(both.dtype), grad_both.astype(both.dtype), grad_gate


def _take(rows: Float[Array, "n W"], index: Int[Array, "..."]) -> Float[Array, "... W"]:
    """rows[index], 0 past the end."""
    return rows.at[index].get(mode="fill", fill_value=0)


def _combine(rows_ECD: Float[Array, "E C D"], plan: Plan) -> _Rows:
    """The sum of each token's cells, float32: a gather, so no order of additions is left open."""
    rows = rows_ECD.reshape(-1, rows_ECD.shape[-1])
    first, *others = (
        _take(rows, plan.slot[:, k]).astype(jnp.float32) for k in range(plan.slot.shape[1])
    )
    return sum(others, start=first)


def _add(sum_TD: _Rows, token_r: Int[Array, "r"], rows_rD: Float[Array, "r D"]) -> _Rows:
    """Adds rows to their tokens, each rounded to its own type first, as those of the table are."""
    rows_rD = jax.lax.optimization_barrier(rows_rD).astype(sum_TD.dtype)
    return sum_TD.at[token_r].add(rows_rD, mode="drop")


def _batched(equation: str, a: Array, b: Array, dtype: DTypeLike | None = None) -> Array:
    return jnp.einsum(equation, a, b, preferred_element_type=dtype or a.dtype)


def _outer(a: Float[Array, "r a"], b: Float[Array, "r b"]) -> Float[Array, "a b"]:
    return jnp.einsum("ra,rb->ab", a, b, preferred_element_type=jnp.float32)
