"""The grouped product of the experts against a dense one, and what never enters it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.models.moe.experts import Experts
from loong_jax.models.moe.kernels import grouped
from loong_jax.models.moe.router import Routing
from loong_jax.sharding import ShardingRules
from tests.doubles import tiny
from tests.sweeps import thinned

arrange = jax.jit(grouped.arrange, static_argnums=(2, 3))


def problem(num_tokens, num_chosen=3, num_experts=4, num_targets=6, width=8, ffn=5, seed=0):
    random = np.random.default_rng(seed)
    target = np.argsort(random.normal(size=(num_tokens, num_targets)))[:, :num_chosen]
    kept = (target < num_experts) & (random.uniform(size=(num_tokens, 1)) < 0.9)
    floats = [
        random.normal(size=shape).astype(np.float32)
        for shape in (
            (num_tokens, width),
            (num_tokens, num_chosen),
            (num_experts, width, 2, ffn),
            (num_experts, ffn, width),
        )
    ]
    return target.astype(np.int32), kept, *floats


def dense(x, gate, target, kept, gate_up, down):
    """Every expert over every token, weighted by the gates of those that are kept."""
    hidden = jnp.einsum("TD,EDcM->TEcM", x, gate_up)
    hidden = jax.nn.silu(hidden[:, :, 0]) * hidden[:, :, 1]
    out_TED = jnp.einsum("TEM,EMD->TED", hidden, down)
    chosen_TKE = jax.nn.one_hot(target, len(down)) * kept[..., None]
    return jnp.einsum("TK,TKE,TED->TD", gate, chosen_TKE, out_TED)


def direction_of(x):
    return np.random.default_rng(1).normal(size=x.shape).astype(np.float32)


@jax.jit
@functools.partial(jax.value_and_grad, argnums=(2, 3, 4, 5))
def dense_sum(target, kept, x, gate, gate_up, down):
    """Along one direction, and its gradient."""
    return jnp.sum(dense(x, gate, target, kept, gate_up, down) * direction_of(x))


def assert_alike(found, wanted):
    """Values and gradients."""
    (value, gradient), (expected, of_dense) = found, jax.device_get(wanted)
    assert float(value) == pytest.approx(float(expected), rel=1e-5, abs=1e-4)
    for a, b in zip(gradient, of_dense, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, abs(b).max()))


def check_against_dense(*operands, num_cells):
    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(2, 3, 4, 5))
    def ours(target, kept, x, gate, gate_up, down):
        plan = grouped.arrange(target, kept, len(down), num_cells)
        return jnp.sum(grouped.expert_ffn(x, gate, plan, gate_up, down) * direction_of(x))

    assert_alike(ours(*operands), dense_sum(*operands))


SIZES = [
    (1, 0),  # no table
    (150, 0),
    (150, 8),  # every expert's rest fills more than one block
    (150, 64),  # some experts exceed the table, others do not
    (150, 500),  # nothing does
    (7, 1),
    (1, 8),
]


@pytest.mark.parametrize(("num_tokens", "num_cells"), thinned(SIZES, 1, 2, 3, 5))
def test_forward_and_backward_equal_the_dense_product(num_tokens, num_cells):
    check_against_dense(*problem(num_tokens), num_cells=num_cells)


ODD = {
    "one expert only": problem(30, num_chosen=1, num_experts=1, num_targets=1),
    "one expert and zero choices": problem(30, num_chosen=1, num_experts=1, num_targets=3),
    "nothing kept": (problem(20)[0], np.zeros((20, 3), bool), *problem(20)[2:]),
    "all on one expert": (np.full((40, 3), 2), np.ones((40, 3), bool), *problem(40)[2:]),
}


@pytest.mark.parametrize("num_cells", thinned([0, 8, 40], 1))
@pytest.mark.parametrize("operands", ODD.values(), ids=ODD)
def test_so_they_do_however_choices_fall(operands, num_cells):
    check_against_dense(*operands, num_cells=num_cells)


@pytest.mark.parametrize("num_cells", thinned([0, 1, 16, 40, 128], 0, 2, 4))
def test_every_kept_choice_has_one_place_and_no_other_has_any(num_cells):
    num_experts = 4
    target, kept, *_ = problem(200, seed=2)
    plan = arrange(target, kept, num_experts, num_cells)
    expert_of = target.reshape(-1)
    members = [np.flatnonzero(kept & (target == e)) for e in range(num_experts)]
    cell, slot = np.asarray(plan.cell), np.asarray(plan.slot)
    assert cell.shape == (num_experts, num_cells)
    for e, choices in enumerate(members):  # the first of each expert, by token
        in_table = choices[:num_cells]
        np.testing.assert_array_equal(cell[e, : len(in_table)], in_table)
        assert (cell[e, len(in_table) :] == target.size).all()
        slots = e * num_cells + np.arange(len(in_table))
        np.testing.assert_array_equal(slot.reshape(-1)[in_table], slots)
    assert (slot < cell.size).sum() == (cell < target.size).sum()

    in_blocks, num_blocks = [], int(plan.block_end[-1])
    rows = grouped.block_rows(target.size, num_experts, num_cells)
    assert num_blocks == sum(-(-max(0, len(m) - num_cells) // rows) for m in members)
    block = jax.jit(grouped.Plan.block)
    for i in range(num_blocks):
        expert, choice = map(np.asarray, block(plan, jnp.int32(i)))
        own = choice[choice < target.size]
        assert choice.shape == (rows,)
        assert (expert_of[own] == int(expert)).all()
        in_blocks.extend(own)
    rest = np.concatenate([m[num_cells:] for m in members])
    np.testing.assert_array_equal(in_blocks, rest)


def test_a_table_has_no_more_cells_than_there_are_choices():
    plan = jax.device_get(arrange(np.zeros((10, 3), np.int32), np.ones((10, 3), bool), 4, 1000))
    assert plan.cell.shape == (4, 30)
    np.testing.assert_array_equal(plan.cell[0], np.arange(30))
    assert (plan.cell[1:] == 30).all()
    assert int(plan.block_end[-1]) == 0


@pytest.mark.parametrize("largest", [5, 2**30])
def test_sorting_keeps_the_order_of_equal_keys_however_large_they_are(largest):
    keys = jnp.asarray([3, 0, 5, 3, 0], jnp.int32)
    found, order = grouped._sorted(keys, largest)
    np.testing.assert_array_equal(found, [0, 0, 3, 3, 5])
    np.testing.assert_array_equal(order, [1, 4, 0, 3, 2])


def test_a_token_of_zero_choices_gets_its_gates_times_itself_and_touches_no_weight():
    config = tiny.smallest_config(num_chosen=2, num_zero_experts=3)
    experts = Experts(config, rngs=nnx.Rngs(0), rules=ShardingRules())
    graph, state = nnx.split(experts, graph=False)
    poisoned = jax.tree.map(lambda a: jnp.full_like(a[0], jnp.nan), state)
    random = np.random.default_rng(0)
    u = jnp.asarray(random.normal(size=(2, 3, config.hidden_size)), jnp.float32)
    gate = jnp.asarray(random.uniform(size=(2, 3, 2)), jnp.float32)
    target = jnp.asarray(random.integers(4, 7, size=(2, 3, 2)), jnp.int32)
    mixed = jax.jit(lambda *a: nnx.merge(graph, poisoned)(*a))(
        u, Routing(target, gate), jnp.ones((2, 3), bool)
    )
    np.testing.assert_allclose(mixed, np.sum(gate, -1, keepdims=True) * u, rtol=1e-6)


def test_padding_takes_nothing_from_experts_that_nobody_chose():
    """Weights that are not finite must not reach tokens, or their gradients, through padding."""
    target, kept, *floats = problem(50)
    kept &= target != 3
    x, gate, gate_up, down = floats
    gate_up[3] = down[3] = np.nan
    plan = arrange(target, kept, 4, 24)

    def summed(x, gate, gate_up, down):
        return jnp.sum(grouped.expert_ffn(x, gate, plan, gate_up, down))

    gradient = jax.jit(jax.grad(summed, argnums=(0, 1)))(x, gate, gate_up, down)
    assert all(np.isfinite(a).all() for a in gradient)


@pytest.mark.release
@pytest.mark.parametrize("num_cells", thinned([0, 16, 80], 1))
def test_bfloat16_sums_in_float32(num_cells):
    target, kept, *floats = problem(50)
    x, gate, gate_up, down = (jnp.asarray(a, jnp.bfloat16) for a in floats)
    gate = gate.astype(jnp.float32)

    def ours(*operands):
        plan = grouped.arrange(jnp.asarray(target), jnp.asarray(kept), 4, num_cells)
        return grouped.expert_ffn(*operands[:2], plan, *operands[2:])

    def oracle(x, gate, gate_up, down):
        return dense(x, gate, target, kept, gate_up, down)

    operands = (x, gate, gate_up, down)
    with jax.numpy_dtype_promotion("strict"):
        out, pull = jax.vjp(ours, *operands)
        gradient = pull(jnp.ones_like(out))
    exact, pull_exact = jax.vjp(oracle, *(a.astype(jnp.float32) for a in operands))
    assert out.dtype == jnp.float32
    assert float(jnp.std(out - exact) / jnp.std(exact)) < 0.01
    pairs = zip(gradient, pull_exact(jnp.ones_like(exact)), operands, strict=True)
    for a, b, operand in pairs:
        assert a.dtype == operand.dtype
        assert float(jnp.std(a.astype(jnp.float32) - b) / jnp.std(b)) < 0.01


def test_blocks_and_capacities_by_hand():
    assert [grouped.block_rows(n, 8, 0) for n in (3, 256, 272, 6144 * 3)] == [16, 16, 32, 128]
    assert [grouped.block_rows(n, 8, 72) for n in (3, 512, 544, 6144 * 3)] == [16, 16, 32, 128]
    means = (0.5, 8, 15.9, 16, 64, 256)
    assert [grouped.capacity(mean) for mean in means] == [0, 0, 0, 24, 72, 272]
