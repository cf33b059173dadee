"""What the mixture of experts may wait for, and what may wait for it, read off the jaxpr."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from loong_jax.models import moe, products
from loong_jax.models.moe import exchange, overlap
from loong_jax.models.moe.exchange import transport
from loong_jax.models.moe.kernels import AttentionMask
from loong_jax.models.moe.layer import ShortcutLayer
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny

CONFIG = tiny.smallest_config(num_layers=1, exchange=exchange.PaddedExchange())
BARRIER = "optimization_barrier"
DENSE = {"ffn_0", "attention_1", "ffn_1"}


def layer_jaxpr(config=CONFIG, **sizes):
    """The equations of one logical layer on a mesh, traced and never compiled."""
    rules = ShardingRules(mesh=make_mesh(**sizes) if sizes else None)

    def build(key):
        layers = ShortcutLayer(config, rngs=nnx.Rngs(key), rules=rules)
        graph, state = nnx.split(layers, graph=False)
        layer = nnx.merge(graph, jax.tree.map(lambda a: a[0], state))
        x = rules.place(jnp.ones((8, 4, config.hidden_size)), "act_batch", "act_length", None)
        mask = rules.place(jnp.ones((8, 4), bool), "act_batch", "act_length")
        position = jnp.zeros((8, 4), jnp.int32)
        position = rules.place(position, "act_batch")
        one = jnp.ones_like(position)
        attention_mask = AttentionMask(one, position, one, position)
        return layer(x, mask, lambda i, attention, x: attention(x, position, attention_mask)[0])

    with rules.scope():
        return jax.make_jaxpr(build)(jax.random.key(0)).jaxpr


def scope(equation):
    return set(str(equation.source_info.name_stack).split("/"))


def reached(jaxpr, start, *, through_barriers):
    """The equations that need an output of `start`.

    A barrier hands each operand on as the result in the same place; `through_barriers` lets every
    result need every operand, as the schedule does.
    """
    return spread(jaxpr, set(start.outvars), through_barriers)


def spread(jaxpr, needed, through_barriers):
    found = []
    for equation in jaxpr.eqns:
        touched = [isinstance(v, jax.extend.core.Var) and v in needed for v in equation.invars]
        if not any(touched):
            continue
        if equation.primitive.name == "custom_vjp_call":
            inner = equation.params["call_jaxpr"].jaxpr
            within = {v for v, is_touched in zip(inner.invars, touched, strict=True) if is_touched}
            found += spread(inner, within, through_barriers)
            pairs = zip(equation.outvars, inner.outvars, strict=True)
            needed.update(
                out for out, v in pairs if isinstance(v, jax.extend.core.Var) and v in within
            )
            continue
        found.append(equation)
        if equation.primitive.name == BARRIER and not through_barriers:
            pairs = zip(equation.outvars, touched, strict=True)
            needed.update(out for out, is_touched in pairs if is_touched)
        else:
            needed.update(equation.outvars)
    return found


def moe_steps(jaxpr):
    """What runs device by device in the mixture, without the router's choice."""
    found = [e for e in jaxpr.eqns if e.primitive.name == "shard_map" and "moe" in scope(e)]
    assert "top_k" in str(found[0])
    return found[1:]


def phases(jaxpr):
    """pack, dispatch, compute, combine and mix; all fits here, so `compute` exchanges nothing."""
    found = moe_steps(jaxpr)
    assert ["all_to_all" in str(e) for e in found] == [False, True, False, True, False]
    return found


def dense_of(equations):
    return {name for e in equations if e.primitive.name != BARRIER for name in scope(e) & DENSE}


def test_no_path_leads_from_the_mixture_to_the_dense_path_beside_it():
    jaxpr = layer_jaxpr(expert=4, data=2)
    _, dispatch, _, combine, mix = phases(jaxpr)
    assert dense_of(jaxpr.eqns) == DENSE
    # By data, nothing of the dense path needs anything of the mixture.
    beside = reached(jaxpr, dispatch, through_barriers=False)
    assert mix in beside
    assert dense_of(beside) == set()
    # The schedule may run FFN 0 before the dispatch ends, and the rest before the combine does.
    assert dense_of(reached(jaxpr, dispatch, through_barriers=True)) == {"attention_1", "ffn_1"}
    assert dense_of(reached(jaxpr, combine, through_barriers=True)) == set()


def test_the_exchanges_end_after_the_dense_work_that_hides_them():
    jaxpr = layer_jaxpr(expert=4, data=2)
    pack, _, compute, _, mix = phases(jaxpr)
    for start, name, end in ((pack, "ffn_0", compute), (compute, "attention_1", mix)):
        products = [e for e in jaxpr.eqns if e.primitive.name == "dot_general" and name in scope(e)]
        assert set(map(id, products)) <= ids(reached(jaxpr, start, through_barriers=True))
        assert all(id(end) in ids(reached(jaxpr, e, through_barriers=True)) for e in products)


def chunked_phases(jaxpr):
    """Of two chunks: (dispatch, compute, combine) of each, in the order of the schedule."""
    maps = moe_steps(jaxpr)
    travels = ["all_to_all" in str(e) for e in maps]
    assert travels == [False, False, True, True, False, True, False, True, False]
    _, _, dispatch_1, dispatch_2, compute_1, combine_1, compute_2, combine_2, _ = maps
    return (dispatch_1, compute_1, combine_1), (dispatch_2, compute_2, combine_2)


def test_chunks_need_nothing_of_each_other_and_pass_in_order():
    jaxpr = layer_jaxpr(dataclasses.replace(CONFIG, token_chunks=2), expert=4, data=2)
    first, second = chunked_phases(jaxpr)
    for own, other in ((first, second), (second, first)):  # by data
        needs = reached(jaxpr, own[0], through_barriers=False)
        assert ids(own[1:]) <= ids(needs)
        assert not ids(other) & ids(needs)
        assert dense_of(needs) == set()

    def after(one):
        return ids(reached(jaxpr, one, through_barriers=True))

    (dispatch_1, compute_1, combine_1), (dispatch_2, compute_2, combine_2) = first, second
    # Dispatch 2 leaves when dispatch 1 is there, runs beside compute 1, and ends before compute 2.
    assert ids([dispatch_2, compute_1]) <= after(dispatch_1)
    assert not ids([compute_1]) & after(dispatch_2)
    assert not ids([dispatch_2]) & after(compute_1)
    assert ids([compute_2]) <= after(dispatch_2) & after(compute_1)
    # Combine 1 runs beside compute 2; both end before combine 2 and the dense path beside it.
    assert not ids([compute_2]) & after(combine_1)
    assert not ids([combine_1]) & after(compute_2)
    assert ids([combine_2]) <= after(combine_1) & after(compute_2)
    beside = reached(jaxpr, compute_2, through_barriers=True)
    assert {"attention_1", "ffn_1"} <= dense_of(beside)
    assert dense_of(reached(jaxpr, combine_2, through_barriers=True)) == set()
    assert "ffn_0" not in dense_of(reached(jaxpr, dispatch_1, through_barriers=True))


def ids(equations):
    return {id(e) for e in equations}


@pytest.mark.parametrize("sizes", [dict(), dict(data=2, tensor=2)], ids=str)
def test_nothing_is_pinned_where_no_row_leaves_its_device(sizes):
    jaxpr = layer_jaxpr(**sizes)
    pinned = [e for e in jaxpr.eqns if e.primitive.name == BARRIER]
    assert all(scope(e) & {"attention_0", "attention_1"} for e in pinned)  # angles only
    assert "all_to_all" not in str(jaxpr)


def test_weights_are_gathered_while_no_rows_travel():
    jaxpr = layer_jaxpr(expert=4, fsdp=2)
    _, dispatch, compute, _, _ = phases(jaxpr)
    sizes = {(CONFIG.hidden_size, CONFIG.ffn_hidden_size)}
    sizes |= {shape[::-1] for shape in sizes}
    gathers = [e for e in jaxpr.eqns if e.primitive.name == "reshard" and "moe" in scope(e)]
    gathers = [e for e in gathers if e.outvars[0].aval.shape in sizes]
    ffn_0, ffn_1 = gathers[:3], gathers[3:]
    assert len(ffn_1) == 3
    assert all(id(dispatch) in ids(reached(jaxpr, e, through_barriers=True)) for e in ffn_0)
    route = next(e for e in jaxpr.eqns if e.primitive.name == "shard_map" and "top_k" in str(e))
    assert all(id(route) in ids(reached(jaxpr, e, through_barriers=True)) for e in ffn_0)
    arrived = ids(reached(jaxpr, dispatch, through_barriers=True))
    assert not ids(ffn_0) & arrived
    assert ids(ffn_1) <= arrived
    assert not ids(ffn_1) & ids(reached(jaxpr, compute, through_barriers=True))


def test_the_second_attention_has_its_weights_before_rows_go_back():
    jaxpr = layer_jaxpr(expert=4, fsdp=2)
    _, dispatch, compute, combine, _ = phases(jaxpr)
    ahead = [e for e in jaxpr.eqns if e.primitive.name == "reshard" and "moe" in scope(e)]
    shapes = [e.outvars[0].aval.shape for e in ahead]
    c = CONFIG
    out = (c.num_heads, c.v_head_dim, c.hidden_size)
    ahead = [e for e, shape in zip(ahead, shapes, strict=True) if shape == out]
    assert len(ahead) == 1
    assert ids(ahead) <= ids(reached(jaxpr, dispatch, through_barriers=True))
    assert not ids(ahead) & ids(reached(jaxpr, compute, through_barriers=True))
    after = reached(jaxpr, ahead[0], through_barriers=True)
    assert id(combine) in ids(after)
    assert "attention_1" in dense_of(after)


def test_a_gradient_leaves_after_what_it_is_to_wait_for():
    def waits(before):
        def pull(there, shadow, x, before, grads):
            def run(shadow, x):
                rows = transport.InTransit(there, shadow)
                rows, x = overlap.together(rows, x, before_gradient=before)
                return rows.shadow, x

            return jax.vjp(run, shadow, x)[1](grads)

        a = jnp.ones(3)
        jaxpr = jax.make_jaxpr(pull)(jnp.ones(3, jnp.int8), a, a, before, (a, a)).jaxpr
        barrier = [e for e in jaxpr.eqns if e.primitive.name == BARRIER][-1]
        return len(barrier.invars)

    assert waits((jnp.ones(5), jnp.ones(7))) == waits(()) + 2


def test_a_gradient_passes_on_with_the_others_and_values_alone():
    def barriers(function):
        jaxpr = jax.make_jaxpr(function)(jnp.ones(3), jnp.ones(5)).jaxpr
        return [len(e.invars) for e in jaxpr.eqns if e.primitive.name == BARRIER]

    def both(x, weight):
        return jax.vjp(products.together_going_back, x, weight)[1]((x, weight))

    assert barriers(products.together_going_back) == []
    assert barriers(both) == [2]


def test_values_pass_on_together_and_gradients_alone():
    def barriers(function):
        jaxpr = jax.make_jaxpr(function)(jnp.ones(3), jnp.ones(5)).jaxpr
        return str(jaxpr).count(f"{BARRIER} ")

    def back(x, weight):
        return jax.vjp(overlap.together_going_forth, x, weight)[1]((x, weight))

    assert barriers(overlap.together_going_forth) == 1
    assert barriers(back) == 1  # of the values


@functools.cache
def gradient_jaxpr(remat):
    config = dataclasses.replace(CONFIG, remat=remat, num_layers=2)
    rules = ShardingRules(mesh=make_mesh(expert=4, data=2))
    with jax.set_mesh(rules.mesh):
        graph, weights = moe.abstract_weights(config, rules)

        def loss(weights):
            tokens = jnp.zeros((8, 4), jnp.int32)
            return jnp.sum(nnx.merge(graph, nnx.State(weights))(tokens).logits)

        return str(jax.make_jaxpr(jax.grad(loss))(weights))


@pytest.mark.release
def test_what_arrived_is_kept_for_the_backward_pass_and_not_sent_again():
    def count(remat):
        return gradient_jaxpr(remat).count("all_to_all[")

    # Per layer: two forward, two backward, and what is done again; later rounds have their own.
    assert count("layer") > count("all_but_dispatched") >= count("off")


def test_what_arrived_is_kept_without_a_copy():
    assert "reduce_precision" in gradient_jaxpr(("residual",))  # of every float that is kept
    assert "reduce_precision" not in gradient_jaxpr("all_but_dispatched")
