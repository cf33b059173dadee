"""Every exchange on every kind of mesh against one device; rounds; buffers; the emulation."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from loong_jax.errors import ConfigError
from loong_jax.models import decoder
from loong_jax.models.moe import attention, exchange, experts, overlap
from loong_jax.models.moe.exchange import buffers, equal, ragged
from loong_jax.models.moe.router import Routing
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.sweeps import thinned

CONFIG = tiny.smallest_config(num_layers=1)
B, T = 8, 12

GATHER = exchange.GatherExchange()
PADDED = exchange.PaddedExchange()
RAGGED = exchange.RaggedExchange()
SHARED = exchange.PaddedExchange(choices_per_row=2)
# Buffers that hold a fraction of what an even load needs: several rounds.
TIGHT = (
    exchange.PaddedExchange(buffer_factor=0.01),
    exchange.PaddedExchange(buffer_factor=0.01, choices_per_row=3),
    exchange.RaggedExchange(buffer_factor=0.3),
)


@functools.cache
def problem():
    """States, choices of which expert 0 gets most, gates, mask and a direction."""
    random = np.random.default_rng(0)
    score = random.normal([3, 0, 0, 1, 0, 1], size=(B, T, CONFIG.num_targets))
    target = np.argsort(-score)[..., : CONFIG.num_chosen].astype(np.int32)
    gate = random.uniform(size=target.shape).astype(np.float32)
    x, direction = random.normal(size=(2, B, T, CONFIG.hidden_size)).astype(np.float32)
    mask = random.uniform(size=(B, T)) < 0.9
    return x, target, gate, mask, direction


def mixture_and_gradient(config, sizes=None):
    """sum(mixture * direction), the mixture, its overflow and the gradient of all that is real."""
    rules = ShardingRules(mesh=sizes and make_mesh(**sizes))
    with rules.scope():
        return _mixture_and_gradient(config, rules)


class _WeightsAtHand:
    """Dense work beside the mixture that has nothing to gather."""

    def __init__(self):
        pass

    def sharded_matrices(self):
        return None

    def gathered(self, weights, x):
        return weights

    def with_matrices(self, weights):
        return self


class NoFFN(_WeightsAtHand, decoder.DenseFFN):
    pass


class NoAttention(_WeightsAtHand, attention.LatentAttention):
    pass


def _mixture_and_gradient(config, rules):
    graph, state = nnx.split(experts.Experts(config, rngs=nnx.Rngs(0), rules=rules), graph=False)
    weights = nnx.to_pure_dict(state)
    x, target, gate, mask, direction = problem()

    def loss(weights, x, gate):
        layer = jax.tree.map(lambda a: a[0], weights)
        here = nnx.merge(graph, nnx.State(layer))
        x, gate, routed = (
            rules.place(jnp.asarray(a), "act_batch", "act_length", None) for a in (x, gate, target)
        )
        moe = overlap.Overlap(here)
        x, _ = moe.dispatch(x, Routing(routed, gate), jnp.asarray(mask), NoFFN())
        x, _, _ = moe.compute(x, NoAttention(), NoFFN())
        out, _ = moe.combine(x)
        return jnp.sum(out * direction), (out, moe.num_overflowed)

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
    (_, (out, overflowed)), gradient = run(weights, x, gate)
    return out, int(overflowed), gradient


@functools.cache
def alone():
    return mixture_and_gradient(CONFIG)


def check(config, sizes):
    expected, _, wanted = alone()
    out, overflowed, gradient = mixture_and_gradient(config, sizes)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5 * abs(expected).max())
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * abs(b).max())
    return overflowed


MESHES = [
    (GATHER, dict(expert=4, tensor=2)),
    (PADDED, dict(expert=2, tensor=2, fsdp=2)),
    (RAGGED, dict(data=2, expert=2, context=2)),
    (SHARED, dict(expert=4, context=2)),
]


@pytest.mark.parametrize(("kind", "sizes"), thinned(MESHES, 0, 1), ids=str)
def test_mixture_and_gradient_are_those_of_one_device(kind, sizes):
    check(dataclasses.replace(CONFIG, exchange=kind), sizes)


@pytest.mark.parametrize("kind", thinned([PADDED, RAGGED, TIGHT[0]], 1), ids=str)
def test_so_it_is_with_one_expert_to_a_device_and_no_table(kind):
    config = dataclasses.replace(CONFIG, exchange=kind, expert_gemm="ragged_dot")
    check(config, dict(expert=CONFIG.num_experts, data=2))


CHUNKED = [
    (GATHER, dict(expert=2, context=2), 2),
    pytest.param(PADDED, dict(expert=2), 4, marks=pytest.mark.slow),
    pytest.param(RAGGED, dict(expert=2, fsdp=2), 2, marks=pytest.mark.slow),
    (PADDED, dict(expert=4, tensor=2), 2),
    (TIGHT[1], dict(expert=2), 2),
    (GATHER, dict(expert=2), 4),
    (RAGGED, dict(expert=2), 4),
    (SHARED, dict(expert=4, data=2), 4),
    (TIGHT[2], dict(expert=2), 4),
]


@pytest.mark.parametrize(("kind", "sizes", "token_chunks"), thinned(CHUNKED, 0, 1, 2), ids=str)
def test_chunks_of_tokens_change_no_mixture_and_no_gradient(kind, sizes, token_chunks):
    check(dataclasses.replace(CONFIG, exchange=kind, token_chunks=token_chunks), sizes)


@pytest.mark.parametrize("kind", thinned(TIGHT, 2), ids=str)
def test_no_choice_is_lost_when_buffers_overflow(kind):
    overflowed = check(dataclasses.replace(CONFIG, exchange=kind), dict(expert=2))
    _, target, _, mask, _ = problem()
    travelling = int(((target < CONFIG.num_experts) & mask[..., None]).sum())
    assert 0 < overflowed < travelling


def test_rows_of_eight_bits_are_finite_however_small_the_values():
    sizes = jnp.float32([0, 1e-44, 1e-37, 1e-30, 1, 1e30])[:, None]
    rows, scale = buffers.to_eight_bits(sizes * jnp.float32([[1, -0.5, 0]]), jnp.float8_e4m3fn)
    back = rows.astype(jnp.float32) * scale
    assert jnp.isfinite(back).all()
    np.testing.assert_allclose(back[3:], sizes[3:] * np.float32([[1, -0.5, 0]]), rtol=1e-6)
    assert (abs(back[:3]) <= abs(sizes[:3])).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn], ids=str)
def test_a_buffer_gives_back_every_bit_of_its_numbers(dtype):
    eight_bit = "float8_e4m3fn" if dtype == jnp.float8_e4m3fn else None
    cover = buffers.BufferLayout.fitting(3, 50, 40, 2, eight_bit)
    assert cover.rows >= 50
    assert cover.stride % (8 if eight_bit is None else 16) == 0  # whole tiles of TPU memory
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(3 * cover.stride, 40)), dtype)
    bits = random.integers(0, 2**32, size=(len(x), 2), dtype=np.uint32)
    bits = np.where(np.isnan(bits.view(np.float32)), 0, bits)  # any float32 but NaN
    expert = random.integers(-1, 512, size=(len(x), 2)).astype(np.int16)
    numbers = (jnp.asarray(bits.view(np.float32)), jnp.asarray(expert))
    unpack = jax.jit(lambda a: cover.unpack(a, (jnp.float32, 2), (jnp.int16, 2)))
    packed = jax.jit(cover.pack)(x, *numbers)
    assert (packed.dtype, packed.shape) == (dtype, (3, cover.stride, 40))
    x, numbers, (opened, *back) = jax.device_get((x, numbers, unpack(packed)))
    holds = np.tile(np.arange(cover.stride) < cover.rows, 3)
    np.testing.assert_array_equal(opened[holds].view(np.uint8), x[holds].view(np.uint8))
    for a, b in zip(back, numbers, strict=True):
        np.testing.assert_array_equal(a[holds], b[holds])
        assert not np.any(a[~holds])
    (program,) = jax.make_jaxpr(unpack)(packed).eqns
    inside = program.params["jaxpr"].eqns
    sliced = [e.invars[0].aval.shape for e in inside if e.primitive.name == "slice"]
    assert packed.shape not in sliced  # on TPU a slice of every block would move all rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", thinned([exchange.PaddedExchange, exchange.RaggedExchange], 0))
def test_eight_bit_rows_cost_a_few_percent_and_leave_gates_and_gradients_alone(kind):
    """The error is that of rounding to three bits behind the point, in the rows alone."""
    small = kind(dispatch_dtype="float8_e4m3fn")
    expected, _, wanted = alone()
    config = dataclasses.replace(CONFIG, exchange=small)
    out, _, gradient = mixture_and_gradient(config, dict(expert=4))
    pairs = zip(jax.tree.leaves((out, gradient)), jax.tree.leaves((expected, wanted)), strict=True)
    for a, b in pairs:
        error = float(jnp.std(a - b) / jnp.std(b))
        assert 1e-4 < error < 0.08


@pytest.mark.parametrize("per_row", [1, 2, 3])
def test_every_choice_rides_once_and_shares_its_row_with_its_token_only(per_row):
    _, target, _, mask, _ = problem()
    target, kept = target.reshape(-1, 3), (target < 4).reshape(-1, 3) & mask.reshape(-1, 1)
    sizes = exchange.Sizes(
        axes=("expert",), num_devices=2, num_tokens=len(target), num_chosen=3, num_local=2,
        mean_chosen=2.0, width=32, platform="cpu",
    )  # fmt: skip
    fitted = equal.Padded(
        exchange.PaddedExchange(buffer_factor=0.2, choices_per_row=per_row), sizes
    )
    plan, wanted = jax.jit(lambda *a: (plan := fitted.plan(*a), fitted.num_rounds(plan)))(
        target, kept
    )
    take_round = jax.jit(fitted.take_round)
    num_rounds, rows = int(wanted), fitted.layout.rows
    assert num_rounds > 1
    ridden = []
    for i in range(num_rounds):
        round = take_round(plan, i)
        choice, place = np.asarray(round.choice), np.asarray(round.place).reshape(-1)
        rides = choice < target.size
        ridden += [*choice[rides]]
        at = np.nonzero(rides)
        np.testing.assert_array_equal(place[choice[rides]], at[0])
        device = at[0] // fitted.layout.stride
        np.testing.assert_array_equal(target.reshape(-1)[choice[rides]] // 2, device)
        assert (at[0] % fitted.layout.stride < rows).all()
        token = np.where(rides, choice // 3, -1)
        assert all(len(set(row[row >= 0])) <= 1 for row in token)
    np.testing.assert_array_equal(np.sort(ridden), np.flatnonzero(kept))
    pairs = {(t, d) for t, d in zip(*np.nonzero(kept), strict=True)}
    most = max(int((kept & (target // 2 == p)).sum()) for p in range(2))
    assert len(pairs) == kept.sum()
    if per_row == 1:
        assert num_rounds == -(-most // rows)


def test_the_emulated_collective_moves_what_the_real_one_would():
    """Against its definition, device by device, in NumPy."""
    mesh, axes = make_mesh(expert=2, tensor=2), ("expert", "tensor")
    random = np.random.default_rng(3)
    size = random.integers(0, 4, size=(4, 4)).astype(np.int32)  # from, to
    departs = np.cumsum(size, axis=1) - size
    arrives = np.cumsum(size, axis=0) - size + 1  # row 0 is nobody's
    rows = random.normal(size=(4, 16, 2)).astype(np.float32)
    into = random.normal(size=(4, 14, 2)).astype(np.float32)
    expected = into.copy()
    for a in range(4):
        for b in range(4):
            for n in range(size[a, b]):
                expected[b, arrives[a, b] + n] = rows[a, departs[a, b] + n]

    def on_one_device(*operands):
        return ragged.ragged_all_to_all(*(a[0] for a in operands), axes=axes, emulated=True)[None]

    spec = PartitionSpec(axes)
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(a, jax.NamedSharding(mesh, spec))
            for a in (rows, into, departs, size, arrives, size.T.copy())
        ]
        run = jax.jit(jax.shard_map(on_one_device, mesh=mesh, in_specs=spec, out_specs=spec))
        np.testing.assert_array_equal(run(*placed), expected)


@pytest.mark.parametrize(
    ("dtype", "dispatch_dtype", "forms"),
    [
        ("float32", None, [(1, 32), (1, 32)]),
        ("bfloat16", None, [(2, 16), (2, 16)]),
        ("bfloat16", "float8_e4m3fn", [(4, 8), (2, 16)]),
    ],
)
def test_rows_leave_and_arrive_in_words_of_32_bits(dtype, dispatch_dtype, forms):
    """XLA for TPU would copy them into that form and back right beside the exchange."""
    x, target, gate, mask, _ = problem()
    carried = dataclasses.replace(RAGGED, dispatch_dtype=dispatch_dtype)
    config = dataclasses.replace(CONFIG, exchange=carried, dtype=dtype)
    rules = ShardingRules(mesh=make_mesh(data=2, expert=4))

    def there_and_back(weights, *operands):
        x, gate, routed, mask = (
            rules.place(a, "act_batch", "act_length", *[None] * (a.ndim - 2)) for a in operands
        )
        here = nnx.merge(graph, nnx.State(jax.tree.map(lambda a: a[0], weights)))
        moe = overlap.Overlap(here)
        x, _ = moe.dispatch(x, Routing(routed, gate), mask, NoFFN())
        (there,) = moe.chunks
        moe.compute(x, NoAttention(), NoFFN())
        (back,) = moe.chunks
        return there.rows.packed[0], back.rows

    with jax.set_mesh(rules.mesh):
        made = experts.Experts(config, rngs=nnx.Rngs(0), rules=rules)
        graph, weights = nnx.split(made, graph=False)
        operands = (jnp.asarray(a) for a in (x.astype(dtype), gate, target, mask))
        shapes = jax.eval_shape(there_and_back, nnx.to_pure_dict(weights), *operands)
    assert [a.shape[1:] for a in shapes] == forms
    assert [a.dtype for a in shapes] == [dispatch_dtype or dtype, dtype]


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (exchange.PaddedExchange, dict(buffer_factor=0.0), "buffer_factor"),
        (exchange.PaddedExchange, dict(choices_per_row=0), "choices_per_row"),
        (exchange.GatherExchange, dict(buffer_factor=-1.0), "buffer_factor"),
        (exchange.PaddedExchange, dict(dispatch_dtype="float8_e5m2"), "dispatch_dtype"),
        (exchange.RaggedExchange, dict(dispatch_dtype="float8_e5m2"), "dispatch_dtype"),
    ],
)
def test_settings_that_cannot_work_are_refused(kind, fields, message):
    with pytest.raises(ConfigError, match=message):
        kind(**fields)


def test_gradients_of_experts_are_summed_over_fsdp_where_they_are_scattered():
    mesh = make_mesh(fsdp=4, expert=2)
    rules = ShardingRules(mesh=mesh)
    x, target, gate, mask, direction = problem()
    with jax.set_mesh(mesh):
        here = experts.Experts(CONFIG, rngs=nnx.Rngs(0), rules=rules)
        graph, state = nnx.split(here, graph=False)
        weights = jax.tree.map(lambda a: a[0], nnx.to_pure_dict(state))
        x, gate, target = (
            rules.place(jnp.asarray(a), "act_batch", "act_length", None) for a in (x, gate, target)
        )

        def loss(weights):
            module = nnx.merge(graph, nnx.State(weights))
            return jnp.sum(module(x, Routing(target, gate), jnp.asarray(mask)) * direction)

        lowered = jax.jit(jax.grad(loss)).lower(weights)
    text = lowered.as_text()
    all_reduced = re.findall(r'"stablehlo.all_reduce".*?\}\) : \(tensor<([^>]*)>', text, re.DOTALL)
    whole = CONFIG.hidden_size * CONFIG.expert_ffn_hidden_size
    sizes = [math.prod(int(n) for n in re.findall(r"\d+(?=x)", shape)) for shape in all_reduced]
    assert all(size < whole for size in sizes), all_reduced
