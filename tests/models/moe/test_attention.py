"""Both forms of latent attention, the cache between them, padding, and sequences spread out."""

import collections
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.moe import context, core_attention
from loong_jax.models.moe.attention import LatentAttention
from loong_jax.models.moe.core_attention import WholeScores
from loong_jax.models.moe.kernels import AttentionMask
from loong_jax.models.moe.kernels.blockwise import Blockwise
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.models.moe import reference
from tests.models.moe.test_model import (
    CONFIG,
    assert_same_gradient,
    call,
    fresh,
    loss_and_gradient,
    random_tokens,
)
from tests.sweeps import thinned

BLOCKS = dataclasses.replace(CONFIG, attention=Blockwise(query_block=5, key_block=3))


def one_attention(config):
    """The first attention of the first layer, alone, and its weights."""
    module = LatentAttention(config, rngs=nnx.Rngs(0), rules=ShardingRules())
    graphdef, state = nnx.split(module, graph=False)
    first = jax.tree.map(lambda a: a[0], nnx.to_pure_dict(state))
    return graphdef, first


def in_both_forms(graphdef, weights, x):
    """x [B T D] by the expanded form, and token after token by the absorbed one over a cache."""
    batch, length = x.shape[:2]
    attention = nnx.merge(graphdef, nnx.State(weights))
    index = jnp.broadcast_to(jnp.arange(length)[None], (batch, length))
    segment = jnp.ones((batch, length), jnp.int32)
    expanded, cached = attention(x, index, AttentionMask(segment, index, segment, index))
    one_by_one = [
        attention.absorbed(
            x[:, t : t + 1],
            index[:, t : t + 1],
            core_attention.over_latents((index <= index[:, t : t + 1])[:, None], *cached),
        )
        for t in range(length)
    ]
    return expanded, jnp.concatenate(one_by_one, axis=1)


def test_both_forms_follow_the_equations_in_float32_and_in_bfloat16():
    x = np.random.default_rng(0).normal(size=(2, 12, CONFIG.hidden_size)).astype(np.float32)
    for dtype in (jnp.float32, jnp.bfloat16):
        config = dataclasses.replace(CONFIG, dtype=dtype, param_dtype=dtype)
        graphdef, weights = one_attention(config)
        rounded = jnp.asarray(x, dtype)
        exact = jax.tree.map(lambda a: np.asarray(a, np.float64), (weights, rounded))
        expected = np.stack([reference.attention(row, exact[0], config) for row in exact[1]])
        both = jax.jit(in_both_forms, static_argnums=0)(graphdef, weights, rounded)
        error = [
            np.sqrt(np.mean((np.asarray(a, np.float64) - expected) ** 2) / np.mean(expected**2))
            for a in both
        ]
        assert max(error) < (1e-6 if dtype == jnp.float32 else 0.01), error
        assert max(error) < 2 * min(error), error


@pytest.mark.parametrize("sizes", [None, dict(data=2, fsdp=2, tensor=2)], ids=str)
def test_cutting_weights_instead_of_queries_changes_none_and_moves_no_pair_of_theirs(sizes):
    rules = ShardingRules(mesh=sizes and make_mesh(**sizes))
    x = np.random.default_rng(0).normal(size=(4, 12, CONFIG.hidden_size)).astype(np.float32)
    with rules.scope():
        module = LatentAttention(CONFIG, rngs=nnx.Rngs(0), rules=rules)
        graphdef, state = nnx.split(module, graph=False)
        attention = nnx.merge(graphdef, jax.tree.map(lambda a: a[0], state))
        position = rules.place(jnp.arange(48).reshape(4, 12), "act_batch", "act_length")
        x = rules.place(jnp.asarray(x), "act_batch", "act_length", "act_embed")

        def queries(x, cut):
            return attention.queries(x, position, cut_weights=cut)

        cut, whole = jax.jit(lambda x: (queries(x, True), queries(x, False)))(x)
        jaxpr = jax.make_jaxpr(lambda x: queries(x, True))(x)
    for a, b in zip(cut, whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    pairs = [v.aval.shape[:-2] for e in jaxpr.eqns for v in e.outvars if v.aval.shape[-1:] == (2,)]
    assert pairs == [(CONFIG.q_lora_rank, CONFIG.num_heads)]


def assert_same_cache(found, expected, lengths):
    for a, b in zip(map(np.asarray, found), expected, strict=True):
        for row, n in enumerate(lengths):
            np.testing.assert_allclose(a[:, :, row, :n], b[:, :, row, :n], rtol=0, atol=2e-5)


def chunks_of(tokens, lengths):
    """Every row cut at `lengths` [chunks, B]; the second of the chunks is padded on the left."""
    done = np.zeros(len(tokens), int)
    for number, length in enumerate(lengths):
        width = max(map(max, lengths)) + 2
        index = np.arange(width)[None] - (number % 2) * (width - length[:, None])
        mask = (index >= 0) & (index < length[:, None])
        at = np.clip(done[:, None] + index, 0, tokens.shape[1] - 1)
        yield np.where(mask, np.take_along_axis(tokens, at, axis=1), 77), mask, done.copy()
        done += length


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,  # few tokens take the absorbed form
        dataclasses.replace(BLOCKS, kv_lora_rank=80),  # many more latents than keys: expanded
    ],
    ids=["absorbed", "blocks"],
)
def test_a_prompt_in_chunks_equals_the_whole_prompt(config):
    graphdef, weights = fresh(config)
    tokens, lengths = random_tokens(3, 18), np.array([[9, 5, 7], [0, 6, 8], [7, 7, 3]])
    prefill = call(graphdef, "prefill")
    total = lengths.sum(axis=0)
    whole, at_once = jax.device_get(prefill(weights, tokens, np.arange(18)[None] < total[:, None]))
    cache = jax.tree.map(lambda a: a + 1e3, moe.LatentCache.zeros(config, 3, 20))
    for chunk, mask, start in chunks_of(tokens, lengths):
        output, cache = jax.device_get(prefill(weights, chunk, mask, cache, start))
        at = np.clip(start[:, None] + np.cumsum(mask, axis=1) - 1, 0, None)
        expected = np.take_along_axis(whole.logits, at[..., None], axis=1)
        np.testing.assert_allclose(output.logits[mask], expected[mask], rtol=0, atol=2e-5)
        assert np.isfinite(output.logits).all()
    assert_same_cache(cache, at_once, total)
    for a in cache:
        assert all(np.all(a[:, :, row, length:] == 1e3) for row, length in enumerate(total))


def test_cache_and_start_come_together():
    graphdef, weights = fresh()
    model = nnx.merge(graphdef, nnx.State(weights))
    tokens, mask = jnp.zeros((1, 4), int), jnp.ones((1, 4), bool)
    with pytest.raises(ValueError, match="cache and start"):
        model.prefill(tokens, mask, start=jnp.zeros(1, int))
    with pytest.raises(ValueError, match="cache and start"):
        model.prefill(tokens, mask, moe.LatentCache.zeros(CONFIG, 1, 4))


def test_prefill_puts_left_padded_prompts_where_they_belong():
    graphdef, weights = fresh()
    tokens, length = random_tokens(3, 18), np.array([13, 18, 5])
    right = np.arange(18)[None] < length[:, None]
    left = right[:, ::-1]
    moved = np.stack([np.roll(row, 18 - n) for row, n in zip(tokens, length, strict=True)])
    prefill = call(graphdef, "prefill")
    output, cache = jax.device_get(prefill(weights, moved, left))
    expected, expected_cache = jax.device_get(prefill(weights, tokens, right))
    np.testing.assert_allclose(output.logits[left], expected.logits[right], rtol=0, atol=2e-5)
    assert_same_cache(cache, expected_cache, length)


def test_padding_sees_no_token():
    """Its logits are finite and do not depend on what the tokens are."""
    graphdef, weights = fresh()
    prefill = call(graphdef, "prefill")
    cache, start = moe.LatentCache.zeros(CONFIG, 3, 20), np.array([0, 4, 2])
    for width, extra in ((18, ()), (11, (cache, start))):
        mask = np.arange(width)[None] < np.array([[6], [9], [width]])
        mask[1, :4] = False
        first, second = random_tokens(3, width), random_tokens(3, width, seed=1)
        second = np.where(mask, second, first)
        a, b = (
            np.asarray(prefill(weights, tokens, mask, *extra)[0].logits)
            for tokens in (first, second)
        )
        np.testing.assert_array_equal(a[~mask], b[~mask])
        assert np.isfinite(a).all()
        assert not np.array_equal(a[mask], b[mask])


@functools.cache
def on_one_device():
    graphdef, weights = fresh()
    tokens = random_tokens(4, 16)
    mask = np.arange(16)[None] < np.array([16, 11, 3, 15])[:, None]
    mask[3, :2] = False
    result = loss_and_gradient(graphdef)(weights, tokens, mask)
    return tokens, mask, result, call(graphdef, "prefill")(weights, tokens, mask)[1]


SPREAD = [
    pytest.param(dict(context=8), True, BLOCKS.attention, marks=pytest.mark.slow),
    (dict(context=4, expert=2), False, BLOCKS.attention),
    (dict(context=2, data=2, tensor=2), True, WholeScores()),
]


@pytest.mark.parametrize(("sizes", "zigzag", "attention"), thinned(SPREAD, 0), ids=["8", "4", "2"])
def test_sequences_spread_over_devices(sizes, zigzag, attention):
    """Logits, loads, gradients and the cache equal those of one device."""
    config = dataclasses.replace(CONFIG, attention=attention)
    rules = ShardingRules(mesh=make_mesh(**sizes), zigzag=zigzag)
    _, weights = fresh()
    graphdef, placed = tiny.on_mesh(config, rules, weights)
    tokens, mask, ((_, output), gradient), expected_cache = on_one_device()
    (_, spread), spread_gradient = loss_and_gradient(graphdef)(placed, tokens, mask)
    logits = np.asarray(spread.logits)
    np.testing.assert_allclose(logits[mask], output.logits[mask], rtol=0, atol=2e-5)
    np.testing.assert_array_equal(spread.load, output.load)
    assert_same_gradient(spread_gradient, gradient)
    _, cache = call(graphdef, "prefill")(placed, tokens, mask)
    assert_same_cache(cache, expected_cache, mask.sum(axis=1))


@pytest.mark.slow
def test_a_chunk_of_a_prompt_spread_over_devices():
    rules = ShardingRules(mesh=make_mesh(context=4, data=2))
    alone, weights = fresh()
    graphdef, placed = tiny.on_mesh(BLOCKS, rules, weights)
    tokens, mask, start = random_tokens(2, 16), np.ones((2, 8), bool), np.array([8, 5])
    _, cache = call(alone, "prefill")(weights, tokens, np.ones((2, 16), bool))
    chunk = np.stack([tokens[row, at : at + 8] for row, at in enumerate(start)])
    expected, expected_cache = call(alone, "prefill")(weights, chunk, mask, cache, start)
    empty = moe.LatentCache.zeros(BLOCKS, 2, 16, rules)
    cache = jax.tree.map(lambda a, b: jax.device_put(a, b.sharding), cache, empty)
    output, cache = call(graphdef, "prefill")(placed, chunk, mask, cache, start)
    np.testing.assert_allclose(output.logits, expected.logits, rtol=0, atol=2e-5)
    for a, b in zip(cache, expected_cache, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


def test_zigzag_order_there_and_back():
    rules = ShardingRules(mesh=make_mesh(context=4), zigzag=True)
    order = context.order(16, rules)
    np.testing.assert_array_equal(order, [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9])
    x = jax.device_put(np.arange(32).reshape(1, 16, 2), rules.spec(None, "act_length"))
    inside = context.enter(x, rules)
    np.testing.assert_array_equal(inside, np.asarray(x)[:, order])
    np.testing.assert_array_equal(context.leave(inside, rules), x)
    with pytest.raises(ConfigError, match="12 tokens cannot be cut into 8"):
        context.order(12, rules)


def test_devices_exchange_latents_and_never_keys():
    """One gather of C + R values per token each way, and one scatter of their gradient."""
    rules = ShardingRules(mesh=make_mesh(context=4))
    graphdef, weights = moe.abstract_weights(dataclasses.replace(CONFIG, num_layers=1), rules)
    tokens, mask = random_tokens(2, 16), np.ones((2, 16), bool)
    compiled = loss_and_gradient(graphdef).lower(weights, tokens, mask).compile().as_text()
    exchange = r"= f32\[([\d,]*)\]\S* (all-gather|reduce-scatter|all-to-all|collective-permute)\("
    found = collections.Counter(
        (match[2], match[1])
        for line in compiled.splitlines()
        if "attention_" in line and (match := re.search(exchange, line))
    )
    width = CONFIG.kv_lora_rank + CONFIG.qk_rope_head_dim
    expected = {("all-gather", f"2,16,{width}"): 2, ("reduce-scatter", f"2,4,{width}"): 2}
    assert found == expected  # for two attentions
    heads = f"{CONFIG.num_heads},{CONFIG.qk_nope_head_dim}", f"{CONFIG.num_heads},16"
    reduced = [line for line in compiled.splitlines() if re.search(r" all-reduce\(", line)]
    assert reduced
    assert not any(f"[2,16,{head}" in line for line in reduced for head in heads)
