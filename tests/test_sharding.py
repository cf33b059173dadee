"""Meshes, and the rules from logical axes to mesh axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from loong_jax.errors import ConfigError
from loong_jax.models.products import project
from loong_jax.sharding import MESH_AXES, ShardingRules, make_mesh


def test_a_mesh_has_every_axis_and_all_are_explicit():
    mesh = make_mesh(fsdp=2, tensor=4)
    assert dict(mesh.shape) == dict(slice=1, data=1, fsdp=2, expert=1, tensor=4, context=1)
    order = "slice", "data", "fsdp", "expert", "tensor", "context"  # users may rely on it
    assert tuple(mesh.shape) == MESH_AXES == order
    assert set(mesh.axis_types) == {AxisType.Explicit}
    assert make_mesh().size == 1


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (dict(data=9), "devices"),
        (dict(data=0), "devices"),
        (dict(fsdp=4, tensor=4), "devices"),
        (dict(fsdp=999), r"mesh fsdp=999 needs 999 .*_count=999 makes them of a"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(sizes, said):
    with pytest.raises(ConfigError, match=said):
        make_mesh(**sizes)


def test_without_a_mesh_nothing_is_sharded():
    rules = ShardingRules()
    x = jnp.arange(6.0).reshape(2, 3)
    assert rules.spec("embed", "ffn") is None
    assert rules.place(x, "embed", "ffn") is x
    assert rules.gather(x, "embed", "ffn") is x
    assert rules.shard_map(abs, in_specs=None, out_specs=None) is abs
    assert rules.like(x) is None
    assert rules.size("tensor") == 1


def test_specs_follow_the_rules():
    rules = ShardingRules(mesh=make_mesh(fsdp=2, tensor=4), heads="data")
    assert rules.spec("embed", "ffn").spec == PartitionSpec("fsdp", "tensor")
    assert rules.spec("heads", None).spec == PartitionSpec("data", None)
    assert rules.partition("act_batch") == PartitionSpec(("slice", "data", "fsdp", "expert"))
    assert rules.gathered("embed", "ffn") == PartitionSpec(None, ("tensor",))
    assert rules.gathered("act_batch") == PartitionSpec(("slice", "data", "expert"))


def test_one_mesh_axis_cannot_shard_two_dimensions():
    rules = ShardingRules(embed=("fsdp", "data"), q_rank="data")
    with pytest.raises(ConfigError, match=r"'data'.*twice.*q_rank"):
        rules.spec("embed", "q_rank")
    with pytest.raises(ConfigError, match="twice"):
        ShardingRules().spec("ffn", "heads")


def test_a_gathered_weight_scatters_its_gradient_back():
    rules = ShardingRules(mesh=make_mesh(fsdp=4, tensor=2))
    weight = jax.device_put(np.arange(32.0).reshape(8, 4), rules.spec("embed", "ffn"))
    gathered = jax.jit(lambda w: rules.gather(w, "embed", "ffn"))(weight)
    assert gathered.sharding.spec == PartitionSpec(None, "tensor")
    gradient = jax.jit(jax.grad(lambda w: jnp.sum(rules.gather(w, "embed", "ffn") ** 2)))(weight)
    np.testing.assert_array_equal(gradient, 2 * np.asarray(weight))
    assert gradient.sharding.spec == weight.sharding.spec


def test_indexed_reads_agree_with_numpy_on_a_sharded_table():
    rules = ShardingRules(mesh=make_mesh(data=2, tensor=4))
    table = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    index = np.array([[1, 7, 3], [0, 0, 5]], np.int32)
    placed = jax.device_put(table, rules.spec("vocab", "embed"))
    index_BT = jax.device_put(index, rules.spec("act_batch", "act_length"))
    read = jax.jit(lambda t, i: rules.take(t, i, "act_embed"))
    np.testing.assert_array_equal(read(placed, index_BT), table[index])
    np.testing.assert_array_equal(
        ShardingRules().take(jnp.asarray(table), jnp.asarray(index)), table[index]
    )

    def loss(table, index):
        return jnp.sum(rules.take(table, index, "act_embed") * 3)

    expected = np.zeros_like(table)
    np.add.at(expected, index, 3)
    _, gradient = jax.jit(jax.value_and_grad(loss))(placed, index_BT)
    np.testing.assert_array_equal(gradient, expected)


@pytest.mark.parametrize(
    "rules_of",
    [
        lambda: ShardingRules(),
        lambda: ShardingRules(mesh=make_mesh(data=2, tensor=4)),
        lambda: ShardingRules(
            mesh=make_mesh(data=2, fsdp=2, expert=2),
            vocab=("tensor", "fsdp", "expert"),
            vocab_embed=None,
            gathered_at_use=("fsdp", "expert"),
        ),
    ],
    ids=("alone", "cut", "gathered"),
)
def test_gradients_of_a_row_that_is_taken_often_are_summed_in_float32(rules_of):
    """A sum of ones in bfloat16 stops at 256."""
    rules = rules_of()
    table = jnp.zeros((8, 8), jnp.bfloat16)
    index = jnp.zeros((8, 512), jnp.int32).at[:, 0].set(3)

    def loss(table, index):
        whole = rules.gather(table, "vocab", "vocab_embed")
        rows = rules.take(whole, index, "act_embed")
        assert rows.dtype == jnp.bfloat16
        return jnp.sum(rows.astype(jnp.float32))

    if rules.mesh is not None:
        table = jax.device_put(table, rules.spec("vocab", "vocab_embed"))
        index = jax.device_put(index, rules.spec("act_batch", "act_length"))
    gradient = np.asarray(jax.jit(jax.grad(loss))(table, index).astype(jnp.float32))
    expected = np.zeros((8, 8))
    expected[0], expected[3] = 8 * 511, 8
    np.testing.assert_allclose(gradient, expected, rtol=2**-8)


def test_gradients_of_gathered_weights_are_summed_where_they_are_scattered():
    rules = ShardingRules(
        mesh=make_mesh(data=2, fsdp=2, expert=2),
        embed=("fsdp", "expert"),
        gathered_at_use=("fsdp", "expert"),
    )
    x_BTD, w_DF = np.ones((8, 2, 8), np.float32), np.eye(8, 4, dtype=np.float32)

    def loss(w, x):
        gathered, x = jax.lax.optimization_barrier((rules.gather(w, "embed", "ffn", meets=x), x))
        return jnp.sum(project(x, gathered, out_sharding=rules.like(x)) ** 2)

    with jax.set_mesh(rules.mesh):
        w = jax.device_put(w_DF, rules.spec("embed", "ffn"))
        x = jax.device_put(x_BTD, rules.spec("act_batch", "act_length", "act_embed"))
        gradient = jax.jit(jax.grad(loss))(w, x)
        jaxpr = jax.make_jaxpr(jax.grad(loss))(w, x)
    assert gradient.sharding == w.sharding
    np.testing.assert_allclose(gradient, 2 * 16 * np.ones((8, 4)))
    barriers = [e for e in jaxpr.eqns if e.primitive.name == "optimization_barrier"]
    (summed_later,) = {v.aval.sharding.spec.unreduced for v in barriers[-1].invars} - {frozenset()}
    assert summed_later == {"slice", "data", "fsdp", "expert", "context"}
