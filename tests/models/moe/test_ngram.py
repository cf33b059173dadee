"""The n-gram embedding: hashes in Python's integers, and the relations of the model with it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.moe import ngram
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.models.moe import reference
from tests.models.moe.test_model import call

EOS = 5
NGRAM = moe.NgramEmbedding(max_order=3, num_splits=2, base_rows=300, eos_token=EOS)
CONFIG = tiny.smallest_config(ngram=NGRAM, num_layers=1)


def tokens_with_ends(rows, length, vocab_size=CONFIG.vocab_size):
    random = np.random.default_rng(0)
    tokens = random.integers(0, vocab_size, (rows, length))
    return np.where(random.random((rows, length)) < 0.2, EOS, tokens).astype(np.int32)


def hashes(sequence, config):
    """Row of every table for every token of one sequence, in integers of any length."""
    settings, result = config.ngram, []
    for t in range(len(sequence)):
        rows = []
        for order, modulus in zip(settings.orders, settings.rows, strict=True):
            total = 0
            for j in range(order):
                between = sequence[max(t - j, 0) : t]
                if t - j < 0 or settings.eos_token in between:
                    break
                total += int(sequence[t - j]) * config.vocab_size**j
            rows.append(total % modulus)
        result.append(rows)
    return np.array(result)


def model_input(weights, sequence, config):
    """What the first layer is given, in float64."""
    tables = weights["ngram"]
    starts = np.cumsum([0, *config.ngram.rows[:-1]])
    rows = hashes(sequence, config) + starts
    added = sum(
        np.asarray(tables["table"], np.float64)[rows[:, i]]
        @ np.asarray(tables["projection"], np.float64)[i]
        for i in range(rows.shape[1])
    )
    return (np.asarray(weights["embedding"], np.float64)[sequence] + added) / (1 + rows.shape[1])


def logits_of(weights, sequence, config=CONFIG):
    inputs = model_input(weights, sequence, config)
    return reference.model(weights | {"embedding": inputs}, np.arange(len(sequence)), config)[0]


@pytest.fixture(scope="module")
def fresh():
    return moe.init_weights(CONFIG, jax.random.key(0))


@pytest.mark.parametrize("sizes", [None, dict(data=2, expert=2, tensor=2)], ids=str)
def test_gradients_of_a_row_that_is_met_often_are_summed_in_float32(sizes):
    """A sum in bfloat16 stops growing after some hundred summands."""
    rules = ShardingRules(mesh=sizes and make_mesh(**sizes))
    config = dataclasses.replace(CONFIG, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    word = np.zeros((8, 256, config.hidden_size), jnp.bfloat16)
    recent = np.ones((8, 256, NGRAM.max_order), np.int32)
    with rules.scope():
        tables = ngram.NgramTables(config, rngs=nnx.Rngs(0), rules=rules)
        graph, state = nnx.split(tables, graph=False)

        def loss(state):
            places = (rules.place(jnp.asarray(a), "act_batch", None, None) for a in (word, recent))
            return jnp.sum(nnx.merge(graph, state)(*places).astype(jnp.float32))

        gradient = nnx.to_pure_dict(jax.jit(jax.grad(loss))(state))["table"]
    gradient = np.asarray(gradient).astype(np.float64)
    projection = np.asarray(nnx.to_pure_dict(state)["projection"], np.float64)
    expected = 8 * 256 * projection.sum(-1) / (1 + len(NGRAM.rows))
    starts = np.cumsum([0, *NGRAM.rows[:-1]])
    met = starts + hashes([1, 1, 1], config)[-1]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(gradient[met], expected, atol=0.02 * scale)


def test_hashes_of_the_published_size_are_exact():
    config = moe.MoEConfig.lite()
    random = np.random.default_rng(1)
    sequence = random.integers(131_000, 131_072, 40)
    sequence[[7, 20, 22]] = config.ngram.eos_token
    seen = np.arange(40)[:, None] >= np.arange(config.ngram.max_order)
    recent = ngram.recent_tokens(
        jnp.asarray(sequence[None], jnp.int32), jnp.asarray(seen[None]), config.ngram
    )
    expected = hashes(sequence, config)
    for i, (order, modulus) in enumerate(zip(config.ngram.orders, config.ngram.rows, strict=True)):
        found = ngram.hashed(recent[..., :order], config.vocab_size, modulus)
        np.testing.assert_array_equal(found[0], expected[:, i])


def test_logits_follow_the_equations_packed_and_padded(fresh):
    graphdef, weights = fresh
    model = call(graphdef)
    (first, second) = tokens_with_ends(2, 9)
    second = second[:4]
    packed = np.concatenate([first, second, [3]])[None].astype(np.int32)
    segments = np.array([[1] * 9 + [2] * 4 + [0]])
    output = model(weights, packed, segment_ids=segments)
    np.testing.assert_allclose(output.logits[0, :9], logits_of(weights, first), atol=2e-5)
    np.testing.assert_allclose(output.logits[0, 9:13], logits_of(weights, second), atol=2e-5)
    left = np.concatenate([[7] * 10, second])[None].astype(np.int32)
    mask = np.arange(14)[None] >= 10
    padded = model(weights, left, mask=mask)
    np.testing.assert_allclose(padded.logits[0, 10:], logits_of(weights, second), atol=2e-5)


def test_decoding_with_history_equals_the_whole(fresh):
    graphdef, weights = fresh
    tokens = tokens_with_ends(2, 8)
    whole = call(graphdef)(weights, tokens).logits
    decode = call(graphdef, "decode")
    cache = moe.LatentCache.zeros(CONFIG, 2, 8)
    padded = np.pad(tokens, ((0, 0), (2, 0)), constant_values=9)  # 9 stands for nothing
    for t in range(8):
        history = padded[:, t : t + 2]
        logits, cache = decode(weights, tokens[:, t], jnp.full(2, t), cache, history=history)
        np.testing.assert_allclose(logits, whole[:, t], rtol=0, atol=2e-5)
    with pytest.raises(ConfigError, match="history"):
        decode(weights, tokens[:, 0], jnp.zeros(2, int), cache)


@pytest.mark.parametrize(
    "sizes", [None, pytest.param(dict(data=2, context=2), marks=pytest.mark.slow)], ids=str
)
def test_chunks_of_a_prompt_equal_the_whole(fresh, sizes):
    """Padding on either side of a chunk, chunks shorter than the reach of an n-gram."""
    graphdef, weights = fresh
    tokens = tokens_with_ends(2, 9)
    whole = call(graphdef)(weights, tokens).logits
    rules = ShardingRules(mesh=sizes and make_mesh(**sizes))
    if sizes:
        graphdef, weights = tiny.on_mesh(CONFIG, rules, weights)
    prefill = call(graphdef, "prefill")
    cache = moe.LatentCache.zeros(CONFIG, 2, 12, rules)
    start = np.zeros(2, np.int32)
    for lengths, left in (([1, 4], [3, 0]), ([2, 1], [1, 2]), ([4, 1], [0, 3]), ([2, 3], [2, 1])):
        chunk, history = np.full((2, 4), 7, np.int32), np.full((2, 2), 9, np.int32)
        mask = np.zeros((2, 4), bool)
        for b in range(2):
            here = slice(left[b], left[b] + lengths[b])
            mask[b, here] = True
            chunk[b, here] = tokens[b, start[b] : start[b] + lengths[b]]
            seen = tokens[b, max(start[b] - 2, 0) : start[b]]
            history[b, 2 - len(seen) :] = seen
        output, cache = prefill(weights, chunk, mask, cache, start, history=history)
        for b in range(2):
            np.testing.assert_allclose(
                np.asarray(output.logits)[b, mask[b]],
                whole[b, start[b] : start[b] + lengths[b]],
                rtol=0,
                atol=2e-5,
            )
        start = start + np.array(lengths, np.int32)
    assert start.tolist() == [9, 9]
    with pytest.raises(ConfigError, match="history"):
        prefill(weights, chunk, mask, cache, start)


def test_sharded_tables_equal_whole_ones(fresh):
    graphdef, weights = fresh
    rules = ShardingRules(mesh=make_mesh(data=1, fsdp=2, expert=2, tensor=2))
    sharded, placed = tiny.on_mesh(CONFIG, rules, weights)
    tokens = jnp.asarray(tokens_with_ends(4, 6))

    def loss(graphdef, weights):
        def function(tables):
            model = nnx.merge(graphdef, nnx.State(weights | {"ngram": tables}))
            return jnp.sum(jnp.square(model(tokens).logits)) / 100

        return jax.jit(jax.value_and_grad(function))(weights["ngram"])

    assert placed["ngram"]["table"].sharding.spec[1] == ("fsdp", "expert", "tensor")
    expected, gradient = loss(graphdef, weights)
    found, sharded_gradient = loss(sharded, placed)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    for name, value in gradient.items():
        np.testing.assert_allclose(
            sharded_gradient[name], value, rtol=0, atol=1e-5 * abs(value).max()
        )
