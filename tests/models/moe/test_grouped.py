"""The grouped product of the experts against a dense one, and what never enters it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.models.moe import grouped
from loong_jax.models.moe.experts import Experts
from loong_jax.models.moe.router import Routing
from loong_jax.sharding import ShardingRules
from loong_jax.testing import tiny


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
    chosen_TKE = (target[..., None] == np.arange(len(down))) & kept[..., None]
    return jnp.einsum("TK,TKE,TED->TD", gate, chosen_TKE.astype(np.float32), out_TED)


@pytest.mark.parametrize(("num_tokens", "rows"), [(1, 16), (50, 4), (150, 64), (7, 1)])
def test_forward_and_backward_equal_the_dense_product(num_tokens, rows):
    target, kept, x, gate, gate_up, down = problem(num_tokens)
    direction = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)

    def ours(x, gate, gate_up, down):
        blocks = grouped.arrange(jnp.asarray(target), jnp.asarray(kept), len(down), rows)
        return jnp.sum(grouped.expert_ffn(x, gate, blocks, gate_up, down) * direction)

    def oracle(x, gate, gate_up, down):
        return jnp.sum(dense(x, gate, target, kept, gate_up, down) * direction)

    arguments = tuple(map(jnp.asarray, (x, gate, gate_up, down)))
    value, gradient = jax.jit(jax.value_and_grad(ours, argnums=(0, 1, 2, 3)))(*arguments)
    expected, wanted = jax.jit(jax.value_and_grad(oracle, argnums=(0, 1, 2, 3)))(*arguments)
    assert float(value) == pytest.approx(float(expected), rel=1e-5, abs=1e-4)
    for a, b in zip(gradient, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, abs(b).max()))


@pytest.mark.parametrize("rows", [1, 8, 32, 128])
def test_rows_are_exactly_the_kept_choices_sorted_by_expert(rows):
    target, kept, *_ = problem(200, seed=2)
    blocks = grouped.arrange(jnp.asarray(target), jnp.asarray(kept), 4, rows)
    choice, slot = np.asarray(blocks.choice).reshape(-1), np.asarray(blocks.slot)
    used = choice[choice < target.size]
    assert len(used) == kept.sum()  # no zero-computation choice, no masked token, none dropped
    np.testing.assert_array_equal(np.sort(used), np.flatnonzero(kept))
    np.testing.assert_array_equal(choice[slot[kept]], np.flatnonzero(kept))
    assert (slot[~kept] == len(choice)).all()
    np.testing.assert_array_equal(used, sorted(used, key=lambda c: (target.reshape(-1)[c], c)))
    expert_of_row = np.full(len(choice), -1)
    begin = 0
    for size, end in enumerate(np.asarray(blocks.num_up_to), start=1):
        for block in np.asarray(blocks.by_size)[begin:end]:
            rows_of_block = np.arange(size * blocks.unit) + int(blocks.first_row[block])
            assert (expert_of_row[rows_of_block] == -1).all()  # blocks do not overlap
            expert_of_row[rows_of_block] = blocks.expert[block]
        begin = end
    is_used = choice < target.size
    np.testing.assert_array_equal(expert_of_row[is_used], target.reshape(-1)[used])
    counts = [(kept & (target == e)).sum() for e in range(4)]
    assert begin == sum(-(-count // rows) for count in counts)
    assert (expert_of_row >= 0).sum() == sum(-(-c // blocks.unit) * blocks.unit for c in counts)


def test_there_is_room_when_every_choice_is_kept_or_one_expert_takes_all():
    everything = jnp.zeros((10, 3), jnp.int32)
    blocks = grouped.arrange(everything, jnp.ones((10, 3), bool), 4, 8)
    np.testing.assert_array_equal(blocks.choice.reshape(-1)[:30], np.arange(30))
    assert int(blocks.num_up_to[-1]) == 4
    nothing = grouped.arrange(everything, jnp.zeros((10, 3), bool), 4, 8)
    assert int(nothing.num_up_to[-1]) == 0
    few = grouped.arrange(everything, jnp.ones((10, 3), bool), 1, 128)
    assert len(few.num_up_to) * few.unit <= few.choice.size  # no block is longer than all rows
    assert int(few.num_up_to[-1]) == 1


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
    mixed = nnx.merge(graph, poisoned)(u, Routing(target, gate), jnp.ones((2, 3), bool))
    np.testing.assert_allclose(mixed, np.sum(gate, -1, keepdims=True) * u, rtol=1e-6)


def test_blocks_grow_with_the_share_of_an_expert():
    assert [grouped.block_rows(n, 8) for n in (3, 128, 136, 6144 * 3)] == [16, 16, 32, 128]


def test_bfloat16_sums_in_float32():
    target, kept, *floats = problem(50)
    x, gate, gate_up, down = (jnp.asarray(a, jnp.bfloat16) for a in floats)
    gate = gate.astype(jnp.float32)
    blocks = grouped.arrange(jnp.asarray(target), jnp.asarray(kept), 4, 8)
    out = grouped.expert_ffn(x, gate, blocks, gate_up, down)
    exact = dense(
        *(a.astype(jnp.float32) for a in (x, gate)),
        target,
        kept,
        gate_up.astype(jnp.float32),
        down.astype(jnp.float32),
    )
    assert out.dtype == jnp.float32
    assert float(jnp.std(out - exact) / jnp.std(exact)) < 0.01
