"""Every way of computing attention against the equation in NumPy float64, and memory in length."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models.moe import context, core_attention
from loong_jax.models.moe.core_attention import WholeScores, choose
from loong_jax.models.moe.kernels import AttentionMask, Operands
from loong_jax.models.moe.kernels.blockwise import Blockwise
from loong_jax.models.moe.kernels.splash import Splash
from loong_jax.models.products import accumulate
from loong_jax.sharding import ShardingRules, make_mesh
from tests.sweeps import thinned

ALONE = ShardingRules()
WAYS = [
    WholeScores(),
    Blockwise(query_block=4, key_block=6),
    Blockwise(query_block=7, key_block=3),
    Blockwise(),
]


def random_operands(batch, num_queries, num_keys, heads=3, seed=0, widths=(5, 4, 7, 6)):
    nope, rope, rank, value = widths
    normal = np.random.default_rng(seed).normal
    return Operands(
        *(
            normal(size=shape).astype(np.float32)
            for shape in (
                (batch, num_queries, heads, nope + rope),
                (batch, num_keys, rank),
                (batch, num_keys, rope),
                (rank, heads, nope),
                (rank, heads, value),
            )
        )
    )


def in_order(segments):
    segments = np.asarray(segments, np.int32)
    index = np.broadcast_to(np.arange(segments.shape[1], dtype=np.int32), segments.shape)
    return AttentionMask(*map(jnp.asarray, (segments, index, segments, index)))


def packed(batch=2, length=23):
    """Rows of padding, then a few segments, of lengths that meet no block."""
    return in_order(np.sort(np.random.default_rng(1).integers(0, 4, (batch, length)), axis=1))


def sharing(batch=2, length=23):
    """The same where all segments but the first see that one too, as responses their prompt."""
    mask = packed(batch, length)
    return mask._replace(query_parent=jnp.minimum(mask.query_segment, 1))


def unwritten(batch=2, num_queries=9, num_keys=29):
    """Queries somewhere in a cache that is written up to the last of them, one of them padding."""
    first = np.array([3, 17])[:batch, None]
    last = num_queries - 2
    query_index = (first + np.minimum(np.arange(num_queries), last)).astype(np.int32)
    key_index = np.broadcast_to(np.arange(num_keys, dtype=np.int32), (batch, num_keys))
    key_segment = (key_index <= first + last).astype(np.int32)
    query_segment = (np.arange(num_queries) <= last).astype(np.int32)[None]
    query_segment = np.broadcast_to(query_segment, query_index.shape)
    return AttentionMask(*map(jnp.asarray, (query_segment, query_index, key_segment, key_index)))


def oracle(operands, mask):
    """One query after the other in float64; a query that sees nothing mixes zeros."""
    query, latent, rope_key, key_up, value_up = (np.asarray(a, np.float64) for a in operands)
    parent = mask.query_segment if mask.query_parent is None else mask.query_parent
    mask, parent = AttentionMask(*map(np.asarray, mask[:4])), np.asarray(parent)
    batch, num_queries, heads, _ = query.shape
    out = np.zeros((batch, num_queries, heads, value_up.shape[-1]))
    for b, t, n in np.ndindex(batch, num_queries, heads):
        seen = [
            s
            for s in range(latent.shape[1])
            if mask.key_segment[b, s] in (mask.query_segment[b, t], parent[b, t])
            and mask.key_index[b, s] <= mask.query_index[b, t]
        ]
        if seen:
            keys = np.concatenate([latent[b, seen] @ key_up[:, n], rope_key[b, seen]], axis=1)
            score = keys @ query[b, t, n]
            weight = np.exp(score - score.max())
            out[b, t, n] = weight @ (latent[b, seen] @ value_up[:, n]) / weight.sum()
    return out


@pytest.mark.parametrize("make_mask", [packed, sharing])
@pytest.mark.parametrize("way", [*WAYS, None], ids=str)
def test_the_equation_and_its_derivatives(way, make_mask, monkeypatch):
    monkeypatch.setattr(core_attention, "_CAUSAL_QUERIES", 9)  # 23 queries in three parts
    operands, mask = random_operands(2, 23, 23), make_mask()
    direction = np.random.default_rng(2).normal(size=(2, 23, 3, 6)).astype(np.float32)

    @jax.jit
    @jax.grad
    def gradient(operands):
        return jnp.sum(core_attention.whole(operands, mask, ALONE, way) * direction)

    mixed = jax.jit(lambda operands: core_attention.whole(operands, mask, ALONE, way))(operands)
    np.testing.assert_allclose(mixed, oracle(operands, mask), rtol=0, atol=1e-5)
    for name, got in gradient(operands)._asdict().items():
        along = np.random.default_rng(3).normal(size=got.shape)
        ahead, behind = (
            oracle(operands._replace(**{name: getattr(operands, name) + step * along}), mask)
            for step in (1e-5, -1e-5)
        )
        expected = ((ahead - behind) * direction).sum() / 2e-5
        assert (np.asarray(got) * along).sum() == pytest.approx(expected, rel=1e-4, abs=1e-3), name


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_queries_over_a_cache_and_zeros_where_nothing_is_seen(way):
    operands, mask = random_operands(2, 9, 29), unwritten()
    mixed = jax.jit(lambda o: core_attention.cached(o, mask, ALONE, way))(operands)
    np.testing.assert_allclose(mixed, oracle(operands, mask), rtol=0, atol=1e-5)
    assert not np.any(mixed[:, -1])


def test_blocks_that_nothing_sees_are_not_touched():
    way = Blockwise(query_block=4, key_block=6)
    operands, mask = random_operands(1, 9, 29), unwritten(batch=1)
    operands.latent[:, 12:] = np.nan  # the last written entry is 10, in the block that ends at 12
    mixed = jax.jit(lambda o: core_attention.cached(o, mask, ALONE, way))(operands)
    np.testing.assert_allclose(mixed, oracle(operands, mask), rtol=0, atol=1e-5)
    operands, mask = random_operands(1, 23, 23), in_order(np.ones((1, 23)))
    operands.latent[:, 12:] = np.nan  # the future of the first three blocks of queries
    mixed = jax.jit(lambda o: core_attention.whole(o, mask, ALONE, way))(operands)
    np.testing.assert_allclose(mixed[:, :12], oracle(operands, mask)[:, :12], rtol=0, atol=1e-5)


def test_bfloat16_is_as_exact_in_blocks_as_at_once():
    operands, mask = random_operands(2, 64, 64), in_order(np.ones((2, 64)))
    rounded = Operands(*(jnp.asarray(a, jnp.bfloat16) for a in operands))
    exact = Operands(*(np.asarray(a, np.float32) for a in rounded))
    direction = np.random.default_rng(2).normal(size=(2, 64, 3, 6)).astype(np.float32)

    def mixed_and_gradient(operands, way):
        def loss(operands):
            mixed = core_attention.whole(operands, mask, ALONE, way)
            assert mixed.dtype == operands.query.dtype
            return jnp.sum(mixed.astype(jnp.float32) * direction), mixed

        gradient, mixed = jax.jit(jax.grad(loss, has_aux=True))(operands)
        return [np.asarray(a, np.float64) for a in (mixed, *gradient)]

    def errors(way):
        got = mixed_and_gradient(rounded, way)
        pairs = zip(got, expected, strict=True)
        return np.array([np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)) for a, b in pairs])

    expected = mixed_and_gradient(exact, WholeScores())
    at_once = errors(WholeScores())
    in_blocks = errors(Blockwise(query_block=16, key_block=16))
    assert at_once.max() < 0.02
    assert np.all(in_blocks < 1.3 * at_once), (at_once, in_blocks)


def test_products_of_bfloat16_add_up_and_arrive_in_float32():
    ones = jnp.ones((1, 257), jnp.bfloat16)
    total = accumulate("TH,SH->TS", ones, ones)
    assert total.dtype == jnp.float32
    assert total[0, 0] == 257  # bfloat16 has no such number


def temporary_bytes(way, length, differentiate):
    shapes = jax.eval_shape(lambda: random_operands(1, length, length, heads=2))
    mask = jax.eval_shape(lambda: in_order(np.ones((1, length))))

    def value(operands, mask):
        return core_attention.whole(operands, mask, ALONE, way)

    def through_two_layers(operands, mask):
        def layer(query, _):
            return query + jnp.mean(value(operands._replace(query=query), mask)), None

        return jnp.sum(jax.lax.scan(layer, operands.query, length=2)[0])

    gradient = jax.grad(through_two_layers)  # a loop may keep what is the same in every layer

    compiled = jax.jit(gradient if differentiate else value).lower(shapes, mask).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("differentiate", thinned([False, True], 1), ids=["forward", "backward"])
def test_memory_grows_with_the_length_and_not_with_its_square(differentiate):
    size = functools.partial(temporary_bytes, differentiate=differentiate)
    blocks = [size(Blockwise(query_block=128, key_block=128), t) for t in (1024, 2048, 4096, 8192)]
    growth = np.diff(blocks) / [1024, 2048, 4096]
    assert growth.max() < 1.5 * growth.min(), blocks  # bytes per token
    if not differentiate:
        assert size(WholeScores(), 2048) > 3 * size(WholeScores(), 1024)


def test_lengths_and_platform_choose():
    assert choose(152, 152, "tpu") == WholeScores()
    assert choose(64, 1024, "cpu") == WholeScores()
    assert choose(1024, 4096, "tpu") == Splash()
    assert choose(1000, 4096, "tpu") == choose(1024, 4096, "gpu") == Blockwise()
    assert choose(1024, 4096, "cpu") == Blockwise(query_block=128, key_block=256)


def test_sizes_of_blocks_are_checked():
    for change in (dict(query_block=0), dict(key_block=-1)):
        with pytest.raises(ConfigError, match=next(iter(change))):
            dataclasses.replace(Blockwise(), **change)
        with pytest.raises(ConfigError, match=next(iter(change))):
            Splash(**{name: 64 for name in change})
    with pytest.raises(ConfigError, match="100 tokens"):
        core_attention.whole(
            random_operands(1, 100, 100), in_order(np.ones((1, 100))), ALONE, Splash()
        )


@pytest.mark.parametrize(
    ("sizes", "zigzag"),
    thinned([(dict(), False), (dict(context=2, tensor=2), False), (dict(context=2), True)], 1),
    ids=str,
)
def test_splash_attention_is_the_same_function(sizes, zigzag):
    operands, mask = random_operands(1, 256, 256, heads=2), packed(1, 256)
    way = Splash(query_block=128, key_block=128)
    rules = ShardingRules(mesh=make_mesh(**sizes) if sizes else None, zigzag=zigzag)
    check_on_mesh(operands, mask, rules, way)


MESHES = [
    (dict(context=2, data=2), True),
    (dict(context=4, tensor=2), False),
    (dict(context=4, fsdp=2), True),
    (dict(context=8), True),
]


@pytest.mark.parametrize("way", WAYS[:2], ids=str)
@pytest.mark.parametrize(("sizes", "zigzag"), thinned(MESHES, 0, 1), ids=str)
def test_a_mesh_changes_nothing(sizes, zigzag, way):
    operands, mask = random_operands(4, 16, 16, heads=4), sharing(4, 16)
    check_on_mesh(operands, mask, ShardingRules(mesh=make_mesh(**sizes), zigzag=zigzag), way)


def check_on_mesh(operands, mask, rules, way):
    direction = np.random.default_rng(2).normal(size=(*operands.query.shape[:3], 6))
    direction = direction.astype(np.float32)

    def loss(operands, mask, direction, rules, way):
        mixed = core_attention.whole(operands, mask, rules, way)
        return jnp.sum(mixed * direction), mixed

    run = jax.jit(jax.grad(loss, has_aux=True), static_argnums=(3, 4))
    expected = run(operands, mask, direction, ALONE, WholeScores())
    order = context.order(operands.query.shape[1], rules)

    def moved(a):
        return None if a is None else np.asarray(a)[:, order]

    operands = Operands(*map(moved, operands[:3]), *operands[3:])
    mask = AttentionMask(*map(moved, mask[:2]), *mask[2:4], moved(mask.query_parent))
    gradient, mixed = run(*place(operands, mask, moved(direction), rules), rules, way)
    found = (*gradient[:3], mixed)
    back = [np.asarray(a)[:, np.argsort(order)] for a in found]
    assert_alike([*back[:3], *gradient[3:], back[3]], expected)


def assert_alike(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(1, np.abs(b).max()))


def place(operands, mask, direction, rules):
    """The arguments where they lie while the model runs."""

    def put(a, *axes):
        return None if a is None else rules.place(jnp.asarray(a), *axes)

    tokens, whole, heads = ("act_batch", "act_length"), ("act_batch", None), (None, "heads", None)
    axes = (*tokens, "heads", None), (*tokens, None), (*tokens, None), heads, heads
    operands = Operands(*(put(a, *names) for a, names in zip(operands, axes, strict=True)))
    axes = tokens, tokens, whole, whole, tokens
    mask = AttentionMask(*(put(a, *names) for a, names in zip(mask, axes, strict=True)))
    return operands, mask, put(direction, *tokens, "heads", None)
