"""The dense decoder against NumPy and transformers' own figures, and against itself."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from loong_jax.models import load_hf, rope, save_hf
from loong_jax.models.dense import DenseConfig, KeyValueCache, abstract_weights, init_weights
from loong_jax.rl import policy_model
from loong_jax.sharding import ShardingRules, decoding_rules, make_mesh
from tests.doubles import tiny
from tests.models.dense import reference
from tests.sweeps import thinned

FIXTURES = Path(__file__).parent / "fixtures"
YARN = rope.YarnScaling(factor=4.0, original_max_position=16, beta_fast=8.0, truncate=False)
LLAMA3 = rope.Llama3Scaling(factor=8.0, original_max_position=32)
TINY = DenseConfig.tiny(vocab_size=61, hidden_size=24, num_layers=2, head_dim=8, ffn_hidden_size=32)
ON_MESHES = dataclasses.replace(TINY, vocab_size=64, qk_norm=True, out_bias=True, ffn_bias=True)
TOKENS = np.random.default_rng(0).integers(0, 61, (3, 11))
EIGHT = np.tile(TOKENS, (3, 1))[:8, :8]


def model_of(config, seed=0):
    """With biases and norms that are not those of a fresh model."""
    graphdef, weights = init_weights(config, jax.random.key(seed))
    normal = np.random.default_rng(seed + 1).normal
    moved = jax.tree.map(
        lambda a: jnp.asarray(np.float32(np.asarray(a) + 0.2 * normal(size=a.shape))), weights
    )
    return nnx.merge(graphdef, nnx.State(moved))


def assert_close(found, wanted):
    rms = float(np.sqrt(np.mean(np.square(wanted))))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * max(1.0, rms))


@pytest.mark.parametrize(
    "config",
    [
        dict(qkv_bias=True, out_bias=True, ffn_bias=True, rope=LLAMA3, num_kv_heads=1),
        dict(qkv_bias=False, qk_norm=True, tied=False, rope=YARN, rope_theta=1e3),
        dict(num_kv_heads=4, rope=rope.LinearScaling(factor=3.0), num_layers=1),
    ],
)
def test_equals_numpy_over_the_files_it_is_exported_to(config, tmp_path):
    model = model_of(dataclasses.replace(TINY, **config))
    save_hf(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    wanted = reference.logits(
        tensors, json.loads((tmp_path / "config.json").read_text()), TOKENS[0]
    )
    assert_close(model(TOKENS[:1]).logits[0], wanted)
    assert load_hf(tmp_path).config == model.config


@pytest.mark.parametrize("folder", ["llama", "llama-biases", "qwen2", "qwen3"])
def test_equals_transformers(folder):
    model, expected = load_hf(FIXTURES / folder), np.load(FIXTURES / folder / "expected.npz")
    tokens, graphdef = expected["tokens"], nnx.split(model, graph=False)[0]
    assert_close(model(tokens).logits, expected["logits"])

    def loss(weights):
        nll = -jax.nn.log_softmax(nnx.merge(graphdef, nnx.State(weights))(tokens).logits[:, :-1])
        return jnp.mean(jnp.take_along_axis(nll, tokens[:, 1:, None], axis=-1))

    gradient = jax.jit(jax.grad(loss))(nnx.to_pure_dict(nnx.split(model, graph=False)[1]))
    assert_close(gradient["embedding"], expected["embedding_gradient"])
    query = gradient["layers"]["attention"]["query"][0]
    assert_close(query.reshape(query.shape[0], -1).T, expected["query_gradient"])
    _, written = greedy(model, tokens, 16)
    np.testing.assert_array_equal(written, expected["greedy"])


def greedy(model, tokens, count):
    batch, length = tokens.shape
    cache = KeyValueCache.zeros(model.config, batch, length + count)
    output, cache = model.prefill(tokens, cache=cache, start=0)
    token, written = jnp.argmax(output.logits[:, -1], axis=-1), []
    for step in range(count):
        written.append(token)
        logits, cache = model.decode(token, np.full(batch, length + step), cache)
        token = jnp.argmax(logits, axis=-1)
    return cache, np.stack(written, axis=1)


def test_every_way_in_is_the_same_function():
    model = model_of(TINY)
    whole = model(TOKENS).logits
    cache = KeyValueCache.zeros(TINY, 3, 14)
    first, cache = model.prefill(TOKENS[:, :5], cache=cache, start=0)
    mask = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]], bool)
    second, cache = model.prefill(TOKENS[:, 5:8], mask=mask, cache=cache, start=5)
    assert_close(first.logits, whole[:, :5])
    assert_close(second.logits[mask], whole[:, 5:8][mask])
    at = 5 + mask.sum(axis=1)
    rest = np.stack([TOKENS[row, start : start + 2] for row, start in enumerate(at)])
    pair, hidden, cache = model.layers_cut().extend(rest, at, cache)
    for row, start in enumerate(at):
        assert_close(pair[row], whole[row, start : start + 2])
    assert_close(model.logits_of(hidden), pair)
    packed = model(TOKENS[:1], segment_ids=[[2] * 4 + [0] + [1] * 6]).logits[0]
    assert_close(packed[:4], whole[0, :4])
    assert_close(packed[5:], model(TOKENS[:1, 5:]).logits[0])


def test_segments_see_their_parents_and_nothing_else():
    model = model_of(TINY)
    segment = np.array([[1] * 4 + [2] * 3 + [3] * 2 + [0] * 2])
    parent, position = np.where(segment > 1, 1, 0), [[0, 1, 2, 3, 4, 5, 6, 4, 5, 0, 0]]
    shared = model(TOKENS[:1], position, segment_ids=segment, parent_ids=parent)
    for start, end in ((4, 7), (7, 9)):
        row = np.concatenate([TOKENS[:1, :4], TOKENS[:1, start:end]], axis=1)
        alone = model(row).logits[0]
        assert_close(shared.logits[0, start:end], alone[4:])
        assert_close(shared.logits[0, :4], alone[:4])
    with pytest.raises(ValueError, match="positions"):
        model(TOKENS[:1], segment_ids=segment, parent_ids=parent)


def test_as_a_policy_it_makes_its_logits_from_states():
    model = model_of(TINY)
    graphdef, state = nnx.split(model, graph=False)
    policy = policy_model.policy_of(graphdef, TINY)
    assert policy is policy_model.policy_of(graphdef, TINY)
    weights, tokens = nnx.to_pure_dict(state), jnp.asarray(TOKENS)
    position, segment = jnp.broadcast_to(jnp.arange(11), tokens.shape), jnp.ones_like(tokens)
    batch = dict(tokens=tokens, positions=position, segment_ids=segment)
    hidden, load, _ = policy.states(weights, batch)
    assert load.shape == (0, 0)
    logits = model(tokens, position, segment_ids=segment).logits
    made = policy.logits(weights, TOKENS.size)(hidden[:1])
    np.testing.assert_array_equal(made, logits[:1])


def loss_and_gradient(graphdef, weights):
    def loss(weights):
        logits = nnx.merge(graphdef, nnx.State(weights))(EIGHT).logits
        return jnp.mean(jnp.tanh(logits) ** 2)

    return jax.jit(jax.value_and_grad(loss))(weights)


def test_how_it_is_run_changes_no_gradient():
    graphdef, weights = init_weights(TINY, jax.random.key(0))
    other = dataclasses.replace(TINY, remat="layer", chunk_tokens=11, unroll_layers=True)
    found = loss_and_gradient(abstract_weights(other)[0], weights)
    jax.tree.map(assert_close, found, loss_and_gradient(graphdef, weights))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_cpu_keeps_products_with_weights_alone(monkeypatch, platform):
    """And makes the weights of attention again, which elsewhere are kept for all layers."""
    monkeypatch.setattr(ShardingRules, "platform", platform)
    graphdef, weights = init_weights(TINY, jax.random.key(0))
    program = jax.make_jaxpr(lambda weights: loss_and_gradient(graphdef, weights))(weights)
    of_all_layers = "f32[2,2,8,16,8]"  # layers, keys, sequences, queries of a key, keys seen
    assert (of_all_layers in str(program)) == (platform == "gpu")


@functools.cache
def alone():
    """Of one device: weights, loss and gradient, and logits of the tokens and one more."""
    graphdef, weights = init_weights(ON_MESHES, jax.random.key(0))
    longer = np.concatenate([EIGHT, EIGHT[:, :1]], axis=1)
    logits = nnx.merge(graphdef, nnx.State(weights))(longer).logits
    return weights, loss_and_gradient(graphdef, weights), np.asarray(logits)


MESHES = [
    (lambda mesh: ShardingRules(mesh=mesh), dict(data=2, fsdp=2, tensor=2)),
    (lambda mesh: ShardingRules(mesh=mesh), dict(fsdp=2, tensor=2, context=2)),
    (decoding_rules, dict(data=4, tensor=2)),  # decode, and do not train
]


@pytest.mark.parametrize(
    ("rules_on", "sizes"), thinned(MESHES, 1, 2), ids=["training", "context", "decoding"]
)
def test_a_mesh_changes_nothing(rules_on, sizes):
    rules = rules_on(make_mesh(**sizes))
    weights, expected, wanted = alone()
    with jax.set_mesh(rules.mesh):
        graphdef, weights = tiny.on_mesh(ON_MESHES, rules, weights)
        if rules_on is not decoding_rules:
            jax.tree.map(
                assert_close, jax.device_get(loss_and_gradient(graphdef, weights)), expected
            )
        model = nnx.merge(graphdef, nnx.State(weights))
        cache = KeyValueCache.zeros(ON_MESHES, 8, 12, rules)
        output, cache = model.prefill(EIGHT, cache=cache, start=0)
        logits, _ = model.decode(EIGHT[:, 0], np.full(8, 8), cache)
    assert_close(output.logits, wanted[:, :8])
    assert_close(logits, wanted[:, 8])
