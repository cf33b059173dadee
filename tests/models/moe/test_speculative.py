"""Speculative decoding writes what plain decoding would: token for token, or in distribution."""

import dataclasses
import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import nnx

from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.moe import speculative
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.models.moe.test_model import call, perturbed
from tests.sweeps import thinned

CONFIG = tiny.smallest_config(num_mtp_layers=1, num_layers=1, vocab_size=4)
# As far back as three tokens, further than some prompts are long; a token 3 is in the way.
N_GRAMS = moe.NgramEmbedding(max_order=4, num_splits=1, base_rows=90, eos_token=3)
WITH_N_GRAMS = dataclasses.replace(CONFIG, ngram=N_GRAMS, hidden_size=36)


@functools.cache
def fresh(config=CONFIG):
    """Weights whose greedy drafts are sometimes right."""
    graphdef, weights = moe.init_weights(config, jax.random.key(4))
    return graphdef, perturbed(weights)


@functools.partial(jax.jit, static_argnames=("graphdef", "num_tokens", "temperature"))
def generate(graphdef, weights, tokens, mask, keys, *, num_tokens, temperature):
    model = nnx.merge(graphdef, nnx.State(weights))
    return speculative.generate(
        model, tokens, mask, keys, num_tokens=num_tokens, temperature=temperature
    )


def keys_of(batch, seed=0):
    return jax.random.split(jax.random.key(seed), batch)


@functools.cache
def greedy():
    """Right-padded tokens, the length of each prompt, and what plain decoding writes after it."""
    graphdef, weights = fresh(WITH_N_GRAMS)
    batch, width, num_tokens = 6, 4, 9
    tokens = np.random.default_rng(0).integers(0, 4, (batch, width)).astype(np.int32)
    length = np.array([4, 1, 3, 2, 4, 2])
    whole = np.zeros((batch, width + num_tokens), np.int32)
    whole[:, :width] = tokens
    for i in range(num_tokens):
        logits = call(graphdef)(weights, whole).logits
        at = length + i
        whole[np.arange(batch), at] = np.argmax(logits[np.arange(batch), at - 1], -1)
    return tokens, length, np.stack([whole[b, n : n + num_tokens] for b, n in enumerate(length)])


def rolled(rows, by):
    return np.stack([np.roll(row, n) for row, n in zip(rows, by, strict=True)])


@pytest.mark.parametrize(
    "before", thinned(["nothing", "half", "all"], 1)
)  # of the padding of each row
def test_greedy_equals_plain_greedy_token_for_token(before):
    graphdef, weights = fresh(WITH_N_GRAMS)
    tokens, length, expected = greedy()
    (batch, width), num_tokens = tokens.shape, expected.shape[1]
    first = {"nothing": 0, "half": (width - length) // 2, "all": width - length}[before]
    first = np.broadcast_to(first, length.shape)
    tokens = rolled(tokens, first)
    mask = rolled(np.arange(width)[None] < length[:, None], first)
    written, state = generate(
        graphdef, weights, tokens, mask, keys_of(batch), num_tokens=num_tokens, temperature=0.0
    )
    np.testing.assert_array_equal(written, expected)
    proposed, accepted = np.asarray(state.num_proposed), np.asarray(state.num_accepted)
    assert 0 < accepted.sum() < proposed.sum()  # both ways were taken
    # The first token comes of the prefill; a step brings one token, or two when it accepts.
    np.testing.assert_array_equal(state.position - length, proposed + accepted)
    assert ((proposed + accepted + 1 == num_tokens) | (proposed + accepted == num_tokens)).all()


def test_samples_have_the_distribution_of_the_model():
    temperature = 0.7
    graphdef, weights = fresh()
    weights = {**weights, "head": 0.7 * weights["head"]}
    batch, prompt, num_tokens = 8192, [2, 0], 3
    tokens = np.broadcast_to(np.array([prompt], np.int32), (batch, 2))
    written, state = generate(
        graphdef,
        weights,
        tokens,
        np.ones((batch, 2), bool),
        keys_of(batch, seed=1),
        num_tokens=num_tokens,
        temperature=temperature,
    )
    cells = list(itertools.product(range(4), repeat=num_tokens))
    whole = np.array([[*prompt, *cell] for cell in cells], np.int32)
    logits = np.asarray(call(graphdef)(weights, whole).logits, np.float64)[:, 1:-1] / temperature
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    joint = np.exp(np.take_along_axis(log_p, whole[:, 2:, None], -1)[..., 0].sum(-1))
    assert joint.sum() == pytest.approx(1, abs=1e-5)

    index = np.ravel_multi_index(np.asarray(written).T, (4,) * num_tokens)
    found = np.bincount(index, minlength=len(cells)) / batch
    common = joint * batch >= 5  # where the chi-square statistic is one
    rest = [1 - part[common].sum() for part in (found, joint)]
    observed, expected = (
        np.append(part[common], r) * batch for part, r in zip((found, joint), rest, strict=True)
    )
    statistic = ((observed - expected) ** 2 / np.maximum(expected, 1)).sum()
    assert scipy.stats.chi2.sf(statistic, len(expected) - 1) > 1e-3
    noise = np.sqrt(joint * (1 - joint) / batch).sum() / 2  # of the total variation, or above it
    assert abs(found - joint).sum() / 2 < 1.5 * noise
    acceptance = float(state.num_accepted.sum() / state.num_proposed.sum())
    assert 0.2 < acceptance < 0.98


@pytest.mark.release
def test_drafts_are_those_of_the_whole_sequence_whether_the_last_was_kept_or_not():
    graphdef, weights = fresh()
    batch, width = 16, 4
    tokens = np.random.default_rng(0).integers(0, 4, (batch, width)).astype(np.int32)

    @jax.jit
    def two_steps(weights, tokens, keys):
        model = nnx.merge(graphdef, nnx.State(weights))
        state = speculative.begin(model, tokens, jnp.ones_like(tokens, bool), keys, capacity=16)
        written = [state.token[:, None]]
        for _ in range(2):
            state, step = speculative.speculate(model, state, keys)
            second = jnp.where(step.accepted, step.tokens[:, 1], -1)
            written.append(jnp.stack([step.tokens[:, 0], second], axis=1))
        return jnp.concatenate([tokens, *written], axis=1), step.accepted, state

    written, accepted, state = jax.tree.map(np.asarray, two_steps(weights, tokens, keys_of(batch)))
    assert 0 < accepted.sum() < batch
    whole = np.zeros((batch, 10), np.int32)
    for row, found in zip(whole, written, strict=True):
        found = found[found >= 0]
        row[: len(found)] = found
    hidden = call(graphdef)(weights, whole).hidden
    logits, _ = call(graphdef, "draft")(weights, hidden, np.roll(whole, -1, axis=1))
    expected = jax.nn.softmax(logits[np.arange(batch), state.position - 1])
    np.testing.assert_allclose(state.draft_probability, expected, atol=1e-5)


@pytest.mark.slow
def test_a_sequence_depends_neither_on_its_neighbours_nor_on_the_mesh():
    graphdef, weights = fresh(WITH_N_GRAMS)
    tokens = np.random.default_rng(3).integers(0, 4, (8, 4)).astype(np.int32)
    mask = np.arange(4)[None] < np.array([4, 1, 3, 2, 4, 2, 4, 3])[:, None]
    keys, settings = keys_of(8, seed=2), dict(num_tokens=5, temperature=1.0)
    expected, alone = generate(graphdef, weights, tokens, mask, keys, **settings)
    order = np.random.default_rng(0).permutation(8)
    other, _ = generate(graphdef, weights, tokens[order], mask[order], keys[order], **settings)
    np.testing.assert_array_equal(np.asarray(expected)[order], other)

    rules = ShardingRules(mesh=make_mesh(data=2, expert=2, tensor=2))
    sharded, placed = moe.init_weights(WITH_N_GRAMS, jax.random.key(4), rules)
    placed = jax.tree.map(lambda a, b: jax.device_put(b, a.sharding), placed, weights)
    first = np.array([0, 3, 1, 0, 0, 2, 0, 1])  # nor on the side of the padding
    written, state = generate(
        sharded, placed, rolled(tokens, first), rolled(mask, first), keys, **settings
    )
    np.testing.assert_array_equal(written, expected)
    np.testing.assert_array_equal(state.num_accepted, alone.num_accepted)


def test_what_cannot_be_decoded_is_refused():
    graphdef, weights = fresh()
    model, tokens = nnx.merge(graphdef, nnx.State(weights)), jnp.zeros((3, 2), jnp.int32)
    mask = jnp.ones_like(tokens, bool)
    unchecked = inspect.unwrap(speculative.begin)  # as without the checks of annotations
    for keys in (jax.random.key(0), keys_of(2)):
        with pytest.raises(ValueError, match=r"keys of shape .* one for each of 3 sequences"):
            unchecked(model, tokens, mask, keys, capacity=4)
    with pytest.raises(ConfigError, match="temperature=-1"):
        speculative.distribution(jnp.zeros((3, 4)), -1.0)


@pytest.mark.parametrize("same", [False, True])
def test_verified_tokens_have_the_distribution_of_the_target(same):
    random = np.random.default_rng(0)
    target = random.dirichlet(np.ones(5))
    proposal = target if same else random.dirichlet(np.ones(5))
    batch = 50_000
    draft = random.choice(5, size=batch, p=proposal).astype(np.int32)
    keys = keys_of(batch)

    @jax.jit
    def run(draft, uniform):
        p, q = (jnp.broadcast_to(jnp.float32(a)[None], (batch, 5)) for a in (target, proposal))
        return speculative.verify(
            p,
            q,
            draft,
            uniform=uniform,
            draw=lambda weights: jax.vmap(jax.random.categorical)(keys, jnp.log(weights)),
        )

    accepted, token = run(draft, random.uniform(size=batch).astype(np.float32))
    observed = np.bincount(np.asarray(token), minlength=5)
    assert scipy.stats.chisquare(observed, target * batch).pvalue > 1e-3
    assert float(accepted.mean()) == pytest.approx(np.minimum(target, proposal).sum(), abs=0.01)
