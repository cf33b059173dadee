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
from loong_jax.recipes import ProcessReplicas
from loong_jax.rollout.engine_config import EngineSettings, PageConfig
from loong_jax.rollout.paged_engine import engine_for
from tests.doubles import tiny
from tests.rollout.engine_checks import num_compiled
from tests.rollout.engine_runs import Run, prompts_of, request

SHAPES = tiny.engine_shapes(prefill_lengths=(8, 16), narrow_slots=(4,))
MODEL = tiny.smallest_config()
PROMPTS = prompts_of(3, 8, 11, 16)
SLOTS = [6, 0, 3, 5]


@functools.cache
def setup():
    graphdef, weights = family_of(MODEL).init_weights(MODEL, jax.random.key(0))
    # Sharper logits, so that greedy choices are not near-ties and temperatures matter.
    weights["head"] = weights["head"] * 3
    engine = engine_for(graphdef, MODEL, AsciiTokenizer(), SHAPES)
    return engine, weights, graphdef


def requests_of(count=4, **sampling):
    return [request(i, **sampling) for i in range(count)]


def run(prompts, slots, requests, *, rows=None, engine=None, weights=None):
    """Whole samples, first tokens included, by member."""
    ours, trained, _ = setup()
    found = Run(engine or ours, weights or trained).fill(prompts, slots, requests, rows=rows)
    found.decode(3)
    return [(found.tokens[i], found.log_probs[i]) for i in range(len(slots))]


@functools.cache
def samples(temperature: float, greedy: bool):
    return run(PROMPTS, SLOTS, requests_of(temperature=temperature, greedy=greedy))


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
    found = Run(engine, weights).fill(prompts, [6, 0, 3], requests_of(3, temperature=0.8))
    found.decode().move(3, 5, 2).decode(slots=np.array([5, 0, 6], np.int32))
    forward = jax.jit(lambda w, x: nnx.merge(graphdef, nnx.State(w))(x).logits)
    for member, prompt in enumerate(prompts):
        tokens = found.tokens[member]
        sequence = np.concatenate([prompt, tokens]).astype(np.int32)
        padded = np.pad(sequence, (0, SHAPES.cache_length - len(sequence)))[None]
        logits = forward(weights, padded)[0, len(prompt) - 1 : len(sequence) - 1]
        chosen = jax.nn.log_softmax(logits / 0.8)[np.arange(len(tokens)), np.array(tokens)]
        assert len(tokens) == 9
        np.testing.assert_allclose(found.log_probs[member], chosen, atol=2e-5)


def test_a_sample_does_not_depend_on_slot_or_batch():
    together = samples(0.8, False)
    assert len({tuple(tokens) for tokens, _ in together}) == 4
    for i in (0, 2):
        alone = run([PROMPTS[i]], [i + 1], [request(i, temperature=0.8)])[0]
        if len(PROMPTS[i]) > 8:  # the same bucket as in the batch: the same shapes
            assert alone[1] == together[i][1]
        np.testing.assert_allclose(alone[1], together[i][1], atol=1e-5)
        assert alone[0] == together[i][0]


def test_group_prefill_equals_separate_prefills():
    group = run([PROMPTS[2]], [0, 1, 2], requests_of(3), rows=[0, 0, 0])
    assert len({tuple(tokens) for tokens, _ in group}) == 3
    assert group == run([PROMPTS[2]] * 3, [5, 4, 7], requests_of(3))


def test_extract_and_insert_continue_the_sample_identically():
    engine, weights, _ = setup()
    found = Run(engine, weights).fill([PROMPTS[2]], [1], [request(2, temperature=0.8)])
    found.decode().move(1, 6, 0).decode(2)
    assert (found.tokens[0], found.log_probs[0]) == samples(0.8, False)[2]


def test_a_narrow_block_equals_a_full_one():
    engine, weights, _ = setup()
    expected = samples(0.8, False)
    found = Run(engine, weights).fill(PROMPTS, SLOTS, requests_of(temperature=0.8))
    found.decode(slots=np.array([3, 6, 5], np.int32))
    assert [len(found.tokens[member]) for member in range(4)] == [5, 1, 5, 5]
    found.decode(2)
    for member, (tokens, log_probs) in enumerate(expected):
        count = 9 if member == 1 else 12  # the slot that was left out has not moved meanwhile
        assert found.tokens[member] == tokens[:count]
        np.testing.assert_allclose(found.log_probs[member], log_probs[:count], atol=1e-5)


def test_finished_and_cancelled_slots_write_nothing():
    engine, weights, _ = setup()
    requests = [request(i, max_new_tokens=n) for i, n in enumerate((1, 3, 12, 12))]
    found = Run(engine, weights).fill(PROMPTS, [0, 1, 2, 3], requests)
    found.state = engine.cancel(found.state, [3])
    found.decode(2)
    assert [len(found.tokens[member]) for member in range(4)] == [1, 3, 9, 1]


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
    changed = run(PROMPTS, SLOTS, requests_of(), weights=other)
    assert num_compiled(engine) == compiled
    assert [tokens for tokens, _ in changed] != [tokens for tokens, _ in samples(1.0, False)]


def test_the_stop_token_ends_a_sample_and_is_part_of_it(monkeypatch):
    engine, _, _ = setup()
    expected = [tokens for tokens, _ in samples(0.8, False)]
    stop = expected[2][6]
    monkeypatch.setattr(engine.tokenizer, "end_ids", (stop,))
    stopped = run(PROMPTS, SLOTS, requests_of(temperature=0.8))
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
    ("changes", "said"),
    [
        ({"slots_per_replica": 0}, "slots_per_replica"),
        ({"prefill_lengths": (16, 8)}, "prefill_lengths"),
        ({"prefill_lengths": (8, 40)}, "prefill_lengths"),
        ({"narrow_slots": (0,)}, "narrow_slots"),
        ({"mantissa_bits": 0}, "bfloat16"),
        ({"mantissa_bits": 24}, "bfloat16"),
        ({"pages": PageConfig(num_pages=7, page_size=4)}, "num_pages"),
        ({"pages": PageConfig(num_pages=70, page_size=5)}, "page_size"),
        ({"pages": PageConfig(num_pages=70, page_size=4, view_lengths=(32,))}, "view_lengths"),
        ({"num_elastic": 3}, r"num_elastic=3 is not in 0\.\.2"),
        ({"num_elastic": 1, "placement": ProcessReplicas()}, "ThreadReplicas"),
        (
            {"num_replicas": 3, "placement": ProcessReplicas(replicas_per_process=2)},
            "num_replicas=3 is no multiple of the 2",
        ),
    ],
)
def test_bad_shapes_are_refused(changes, said):
    fields = {"slots_per_replica": 8, "cache_length": 32, "prefill_lengths": (8,)}
    with pytest.raises(ConfigError, match=said):
        EngineSettings(**({"num_replicas": 2} | fields | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_pages": 0}, "num_pages=0"),
        ({"page_size": 0}, "page_size=0"),
        ({"view_lengths": (6,)}, "view_lengths"),
    ],
)
def test_bad_pages_are_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        PageConfig(**({"num_pages": 4, "page_size": 4} | changes))
