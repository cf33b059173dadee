"""The back-ends of the experts' product against a dense one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.models.moe.kernels import expert_gemm
from loong_jax.sharding import ShardingRules, make_mesh
from tests.models.moe import hopper_kernels
from tests.models.moe.test_grouped import assert_alike, dense_sum, direction_of, problem
from tests.sweeps import thinned

GEMMS = [
    ("blocked", None, None),
    ("blocked", None, 17.0),  # fewer than there are
    ("blocked", None, 2.0),  # too few for a table
    ("ragged_dot", None, None),
    ("ragged_dot", 32, None),
    ("every", None, None),
    ("each", None, None),
    ("hopper", None, None),
    ("hopper", 32, None),
]


@pytest.mark.parametrize("apart", thinned([False, True], 1), ids=("together", "apart"))
@pytest.mark.parametrize(("gemm", "room", "mean_rows"), thinned(GEMMS, 1, 2, 4, 5, 6, 8), ids=str)
def test_forward_and_backward_equal_the_dense_product(monkeypatch, gemm, room, mean_rows, apart):
    """75 choices in groups of 32 are rounds of the grouped product, the last of them partial."""
    hopper_kernels.emulate(monkeypatch)
    target, kept, x, gate, gate_up, down = problem(50)
    assert kept.sum() > 64
    expert = jnp.asarray(np.where(kept, target, -1))

    def ours(x, gate, gate_up, down):
        both = (gate_up[:, :, 0], gate_up[:, :, 1])
        flat = both if apart else gate_up.reshape(*gate_up.shape[:2], -1)
        out = expert_gemm.expert_ffn(
            x, gate, expert, flat, down, gemm=gemm, room=room, mean_rows=mean_rows
        )
        assert out.dtype == jnp.float32
        return jnp.sum(out * direction_of(x))

    arguments = (x, gate, gate_up, down)
    found = jax.jit(jax.value_and_grad(ours, argnums=(0, 1, 2, 3)))(*arguments)
    assert_alike(found, dense_sum(target, kept, *arguments))


def test_rows_of_one_expert_stay_where_they_are_and_others_add_nothing():
    """The gate of a row that has no expert may even be no number."""
    random = np.random.default_rng(0)
    x, direction = random.normal(size=(2, 20, 8)).astype(np.float32)
    gate = random.normal(size=(20, 1)).astype(np.float32)
    gate_up, down = (
        random.normal(size=shape).astype(np.float32) for shape in ((1, 8, 10), (1, 5, 8))
    )
    is_used = random.uniform(size=(20, 1)) < 0.6
    expert = jnp.asarray(np.where(is_used, 0, -1))
    gate = np.where(is_used, gate, np.nan)

    def ours(x, gate, gate_up, down):
        out = expert_gemm.expert_ffn(x, gate, expert, gate_up, down, gemm="every")
        return jnp.sum(out * direction)

    def oracle(x, gate, gate_up, down):
        used = np.flatnonzero(is_used)
        both = x[used] @ gate_up[0]
        hidden = jax.nn.silu(both[:, :5]) * both[:, 5:] * gate[used]
        return jnp.sum(hidden @ down[0] * direction[used])

    arguments = (x, gate, gate_up, down)
    found, wanted = (
        jax.jit(jax.value_and_grad(of, argnums=(0, 1, 2, 3)))(*arguments) for of in (ours, oracle)
    )
    assert_alike(found, wanted)
    text = str(jax.make_jaxpr(jax.grad(ours))(*arguments))
    assert "dot_general" in text
    assert not any(name in text for name in ("ragged_dot", "sort[", "gather["))


@pytest.mark.parametrize(
    ("num_rows", "num_experts", "num_choices", "chosen"),
    [
        (70_000, 1, 70_000, "every"),  # one expert, whose rows lie where they are
        (640, 2, 640, "every"),  # a step of decoding
        (2048, 4, 2048, "ragged_dot"),
        (4096, 1, 1024, "ragged_dot"),  # rows of a whole group, most of them for others
    ],
)
def test_few_rows_meet_every_expert(num_rows, num_experts, num_choices, chosen):
    sizes = dict(num_rows=num_rows, num_experts=num_experts, num_choices=num_choices)
    assert expert_gemm.choose("auto", "tpu", **sizes) == chosen


def test_the_platform_of_the_program_decides_unless_asked_otherwise():
    many = dict(num_rows=4096, num_experts=2, num_choices=4096)
    assert expert_gemm.choose("auto", "cpu", **many) == "blocked"
    assert expert_gemm.choose("auto", "tpu", **many) == "ragged_dot"
    assert expert_gemm.choose("blocked", "tpu", **many) == "blocked"
    assert ShardingRules().platform == ShardingRules(mesh=make_mesh()).platform == "cpu"
