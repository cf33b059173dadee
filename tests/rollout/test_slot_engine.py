"""The engine over the real architecture, against full forward passes of the same model."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.families import family_of
from loong_jax.rollout.engine_config import EngineSettings, SampleRequest
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.records import SamplingSettings
from tests.doubles import tiny
from tests.rollout.engine_checks import num_compiled

SHAPES = tiny.engine_shapes(prefill_lengths=(8, 16), narrow_slots=(4,))
MODEL = tiny.smallest_config()
PROMPTS = [np.arange(length, dtype=np.int32) * 7 % 90 + 33 for length in (3, 8, 11, 16)]


@functools.cache
def setup():
    graphdef, weights = family_of(MODEL).init_weights(MODEL, jax.random.key(0))
    # Sharper logits, so that greedy choices are not near-ties and temperatures matter.
    weights["head"] = weights["head"] * 3
    engine = engine_for(graphdef, MODEL, AsciiTokenizer(), SHAPES)
    return engine, weights, graphdef


def request(attempt: int, **sampling) -> SampleRequest:
    settings = SamplingSettings(**{"max_new_tokens": 12} | sampling)
    return SampleRequest(stream=(9, 1, 2, 0, attempt), sampling=settings)


def decode(engine, weights, state, num_blocks, slots=None):
    """Tokens and log-probabilities of every slot (or row), without what was not written."""
    tokens, log_probs = {}, {}
    for _ in range(num_blocks):
        state, result = engine.generate(weights, state, slots=slots)
        result = result.convert_to_numpy()
        for row in range(result.data.shape[0]):
            for found, column in zip((tokens, log_probs), result.written(row), strict=True):
                found.setdefault(row, []).extend(column)
    return state, tokens, log_probs


def run(engine, weights, prompts, rows, requests, slots):
    """Whole samples, first tokens included, by member."""
    state = engine.init_decode_state()
    prefix, first = engine.prefill_batch(
        params=weights, prompts=prompts, rows=rows, requests=requests
    )
    state = engine.bulk_insert(prefix, state, slots)
    _, tokens, log_probs = decode(engine, weights, state, 3)
    first = first.convert_to_numpy()
    return [
        (
            [int(first.data[i, 0]), *map(int, tokens[slot])],
            np.array([first.log_prob[i, 0], *log_probs[slot]], np.float32),
        )
        for i, slot in enumerate(slots)
    ]


@functools.cache
def samples(temperature: float, greedy: bool):
    engine, weights, _ = setup()
    requests = [request(i, temperature=temperature, greedy=greedy) for i in range(4)]
    return run(engine, weights, PROMPTS, [0, 1, 2, 3], requests, [6, 0, 3, 5])


@functools.cache
def plain_forward():
    _, _, graphdef = setup()
    return jax.jit(lambda w, x, mask: nnx.merge(graphdef, nnx.State(w))(x, mask=mask).logits)


def full_log_probs(prompt, tokens, temperature) -> np.ndarray:
    """[len(tokens), V] by one forward pass over the whole sequence, normalised in float64."""
    _, weights, _ = setup()
    sequence = np.concatenate([prompt, tokens]).astype(np.int32)
    padded = np.zeros((1, SHAPES.cache_length), np.int32)
    padded[0, : len(sequence)] = sequence
    mask = np.arange(SHAPES.cache_length)[None] < len(sequence)
    logits = np.asarray(plain_forward()(weights, padded, mask), np.float64)[0] / temperature
    logits = logits[len(prompt) - 1 : len(sequence) - 1]
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(("temperature", "greedy"), [(1.0, True), (0.8, False)])
def test_equals_the_plain_model(temperature, greedy):
    for prompt, (tokens, log_probs) in zip(PROMPTS, samples(temperature, greedy), strict=True):
        assert len(tokens) == 12 or tokens[-1] == AsciiTokenizer.eos_id
        full = full_log_probs(prompt, tokens, temperature)
        chosen = full[np.arange(len(tokens)), tokens]
        np.testing.assert_allclose(log_probs, chosen, atol=1e-5)
        if greedy:
            assert tokens == full.argmax(axis=-1).tolist()


def test_a_model_with_an_ngram_embedding_is_given_the_tokens_before():
    """Through prefill, slots, a move to another slot and narrow blocks: every n-gram is whole."""
    end = int(PROMPTS[3][-2])  # no n-gram reaches over it
    ngram = moe.NgramEmbedding(max_order=3, num_splits=2, base_rows=300, eos_token=end)
    config = dataclasses.replace(MODEL, ngram=ngram, num_layers=1)
    graphdef, weights = moe.init_weights(config, jax.random.key(1))
    weights["head"] = weights["head"] * 3
    engine = engine_for(graphdef, config, AsciiTokenizer(), SHAPES)
    prompts = [PROMPTS[3], PROMPTS[0][:1], PROMPTS[0][:2]]
    requests = [request(i, temperature=0.8) for i in range(3)]
    prefix, first = engine.prefill_batch(
        params=weights, prompts=prompts, rows=[0, 1, 2], requests=requests
    )
    state = engine.bulk_insert(prefix, engine.init_decode_state(), [6, 0, 3])
    state, before, log_probs = decode(engine, weights, state, 1)
    moved = engine.extract(state, 3)
    state = engine.bulk_insert(moved, engine.cancel(state, [3]), [5])
    state, after, more = decode(engine, weights, state, 1, np.array([5, 0, 6], np.int32))
    forward = jax.jit(lambda w, x: nnx.merge(graphdef, nnx.State(w))(x).logits)
    for member, (slot, row) in enumerate(((6, 2), (0, 1), (3, 0))):
        tokens = [int(first.data[member, 0]), *before[slot], *after[row]]
        sequence = np.concatenate([prompts[member], tokens]).astype(np.int32)
        padded = np.pad(sequence, (0, SHAPES.cache_length - len(sequence)))[None]
        logits = forward(weights, padded)[0, len(prompts[member]) - 1 : len(sequence) - 1]
        chosen = jax.nn.log_softmax(logits / 0.8)[np.arange(len(tokens)), np.array(tokens)]
        found = [float(first.log_prob[member, 0]), *log_probs[slot], *more[row]]
        assert len(tokens) == 9
        np.testing.assert_allclose(found, chosen, atol=2e-5)


def test_a_sample_does_not_depend_on_slot_or_batch():
    engine, weights, _ = setup()
    together = samples(0.8, False)
    assert len({tuple(tokens) for tokens, _ in together}) == 4
    for i in (0, 2):
        alone = run(engine, weights, [PROMPTS[i]], [0], [request(i, temperature=0.8)], [i + 1])[0]
        if len(PROMPTS[i]) > 8:  # the same bucket as in the batch: the same shapes
            np.testing.assert_array_equal(alone[1], together[i][1])
        np.testing.assert_allclose(alone[1], together[i][1], atol=1e-5)
        assert alone[0] == together[i][0]


def test_group_prefill_equals_separate_prefills():
    engine, weights, _ = setup()
    requests = [request(i) for i in range(3)]
    group = run(engine, weights, [PROMPTS[2]], [0, 0, 0], requests, [0, 1, 2])
    separate = run(engine, weights, [PROMPTS[2]] * 3, [0, 1, 2], requests, [5, 4, 7])
    assert len({tuple(tokens) for tokens, _ in group}) == 3
    for one, other in zip(group, separate, strict=True):
        assert one[0] == other[0]
        np.testing.assert_array_equal(one[1], other[1])


def test_extract_and_insert_continue_the_sample_identically():
    engine, weights, _ = setup()
    expected = samples(0.8, False)[2]
    state = engine.init_decode_state()
    prefix, first = engine.prefill_batch(
        params=weights,
        prompts=[PROMPTS[2]],
        rows=[0],
        requests=[request(2, temperature=0.8)],
    )
    state = engine.bulk_insert(prefix, state, [1])
    state, before, _ = decode(engine, weights, state, 1)
    moved = engine.extract(state, 1)
    state = engine.cancel(state, [1])
    state = engine.bulk_insert(moved, state, [6])
    state, after, log_probs = decode(engine, weights, state, 2)
    assert not after[1]
    assert [int(first.data[0, 0]), *before[1], *after[6]] == expected[0]
    np.testing.assert_array_equal(np.array(log_probs[6], np.float32), expected[1][5:])


def test_a_narrow_block_equals_a_full_one():
    engine, weights, _ = setup()
    expected = samples(0.8, False)
    state = engine.init_decode_state()
    requests = [request(i, temperature=0.8) for i in range(4)]
    prefix, _ = engine.prefill_batch(
        params=weights, prompts=PROMPTS, rows=[0, 1, 2, 3], requests=requests
    )
    state = engine.bulk_insert(prefix, state, [6, 0, 3, 5])
    slots = np.array([3, 6, 5], np.int32)
    state, tokens, _ = decode(engine, weights, state, 1, slots)
    for row, member in ((0, 2), (1, 0), (2, 3)):
        assert tokens[row] == expected[member][0][1:5]
    state, tokens, log_probs = decode(engine, weights, state, 2)
    for slot, member in ((6, 0), (3, 2), (5, 3)):
        assert tokens[slot] == expected[member][0][5:]
        np.testing.assert_allclose(log_probs[slot], expected[member][1][5:], atol=1e-5)
    # The slot that was left out has not moved meanwhile.
    assert tokens[0] == expected[1][0][1:9]


def test_finished_and_cancelled_slots_write_nothing():
    engine, weights, _ = setup()
    requests = [request(i, max_new_tokens=n) for i, n in enumerate((1, 3, 12, 12))]
    prefix, _ = engine.prefill_batch(
        params=weights, prompts=PROMPTS, rows=[0, 1, 2, 3], requests=requests
    )
    state = engine.bulk_insert(prefix, engine.init_decode_state(), [0, 1, 2, 3])
    state = engine.cancel(state, [3])
    state, tokens, _ = decode(engine, weights, state, 2)
    assert [len(tokens[slot]) for slot in range(8)] == [0, 2, 8, 0, 0, 0, 0, 0]


def test_slots_that_are_not_in_use_meet_no_expert():
    """Their tokens, put through experts that are all NaN, would leave NaN in their own caches."""
    engine, weights, _ = setup()
    experts = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), weights["layers"]["experts"])
    spoilt = {**weights, "layers": {**weights["layers"], "experts": experts}}
    state, _ = engine.generate(spoilt, engine.init_decode_state())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.cache))


def test_versions_share_compiled_code():
    engine, weights, _ = setup()
    samples(1.0, True)
    compiled = num_compiled(engine)
    other = jax.tree.map(lambda a: a * 1.1, weights)
    changed = run(
        engine, other, PROMPTS, [0, 1, 2, 3], [request(i) for i in range(4)], [6, 0, 3, 5]
    )
    assert num_compiled(engine) == compiled
    assert [tokens for tokens, _ in changed] != [tokens for tokens, _ in samples(1.0, False)]


def test_the_stop_token_ends_a_sample_and_is_part_of_it(monkeypatch):
    engine, weights, _ = setup()
    expected = [tokens for tokens, _ in samples(0.8, False)]
    stop = expected[2][6]
    monkeypatch.setattr(engine.tokenizer, "end_ids", (stop,))
    requests = [request(i, temperature=0.8) for i in range(4)]
    stopped = run(engine, weights, PROMPTS, [0, 1, 2, 3], requests, [6, 0, 3, 5])
    for (tokens, log_probs), whole in zip(stopped, expected, strict=True):
        end = whole.index(stop) + 1 if stop in whole else len(whole)
        assert tokens == whole[:end]
        assert len(log_probs) == end


def test_what_does_not_fit_is_refused():
    engine, weights, _ = setup()
    prefill = functools.partial(engine.prefill_batch, params=weights)
    with pytest.raises(ValueError, match="largest bucket"):
        prefill(prompts=[np.ones(17, np.int32)], rows=[0], requests=[request(0)])
    with pytest.raises(ValueError, match="cache_length"):
        prefill(prompts=[PROMPTS[3]], rows=[0], requests=[request(0, max_new_tokens=18)])
    prefill(prompts=[PROMPTS[3]], rows=[0], requests=[request(0, max_new_tokens=17)])
    with pytest.raises(ValueError, match="no token"):
        prefill(prompts=[np.zeros(0, np.int32)], rows=[0], requests=[request(0)])
    with pytest.raises(ConfigError, match="top_p"):
        prefill(prompts=PROMPTS, rows=[0], requests=[request(0, top_p=0.9)])


@pytest.mark.parametrize(
    "changes",
    [
        {"slots_per_replica": 0},
        {"prefill_lengths": (16, 8)},
        {"prefill_lengths": (8, 40)},
        {"narrow_slots": (0,)},
    ],
)
def test_bad_shapes_are_refused(changes):
    fields = {"slots_per_replica": 8, "cache_length": 32, "prefill_lengths": (8,)} | changes
    with pytest.raises(ConfigError):
        EngineSettings(**fields)
