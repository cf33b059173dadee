"""Decoding with drafts writes what decoding without them writes, and sometimes two at once."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.stats

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.rollout.engine_config import SampleRequest
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.records import SamplingSettings
from tests.doubles import tiny
from tests.rollout import drafting_model
from tests.sweeps import thinned

MODEL = drafting_model.MODEL
PROMPTS = [np.arange(length, dtype=np.int32) * 7 % 90 + 33 for length in (1, 2, 8, 13)]
SETTINGS = [
    {"greedy": True},
    {"temperature": 0.7},
    {"temperature": 0.5, "top_k": 5, "max_new_tokens": 5},
    {"temperature": 1.3, "top_p": 0.8, "min_p": 0.01, "stop_ids": (40,)},
]


def request(attempt, **settings):
    sampling = SamplingSettings(**{"max_new_tokens": 14} | settings)
    return SampleRequest(stream=(9, 1, 2, 0, attempt), sampling=sampling)


def run(engine, prompts, requests, slots=(6, 0, 3, 5), *, config=MODEL, num_blocks=4):
    """Tokens and log-probabilities of every sample, and the counts of drafts."""
    weights, state = drafting_model.model(config)[1], engine.init_decode_state()
    prefix, first = engine.prefill_batch(
        params=weights, prompts=prompts, rows=range(len(prompts)), requests=requests
    )
    state = engine.bulk_insert(prefix, state, slots)
    first = first.convert_to_numpy()
    columns = first.data, first.log_prob
    samples = [[tuple(c[i, 0] for c in columns)] for i in range(len(slots))]
    for _ in range(num_blocks):
        state, result = engine.generate(weights, state)
        result = result.convert_to_numpy()
        for sample, slot in zip(samples, slots, strict=True):
            count = result.num_valid[slot]
            valid = result.data[slot, result.tokens.shape[1] : -1]
            assert valid[:count].all()  # what was written stands together
            columns = result.tokens, result.log_prob
            sample += zip(*(column[slot, :count] for column in columns), strict=True)
            assert result.length[slot] == len(sample)
    return [np.array(sample, np.float64).T for sample in samples], engine.statistics(state)


@pytest.mark.parametrize("pages", thinned([False, True], 1))
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(MODEL, id="plain"),
        pytest.param(drafting_model.WITH_NGRAMS, id="ngrams", marks=pytest.mark.slow),
    ],
)
def test_drafts_change_no_sample(config, pages):
    requests = [request(i, **settings) for i, settings in enumerate(SETTINGS)]
    drafting = drafting_model.engine(config=config, pages=pages, drafts=True)
    plain, nothing = run(drafting_model.engine(config=config), PROMPTS, requests, config=config)
    drafted, counts = run(drafting, PROMPTS, requests, config=config)
    assert nothing == {}
    for wanted, found in zip(plain, drafted, strict=True):
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_allclose(found[1:], wanted[1:], atol=1e-5)
    assert 0 < counts["num_drafts_kept"] < counts["num_drafts_proposed"]
    # A step writes one token and one more per draft that was kept; the first ones cost no step.
    written = sum(sample.shape[1] - 1 for sample in plain)
    assert counts["num_drafts_proposed"] + counts["num_drafts_kept"] == written


@pytest.mark.release
def test_samples_with_drafts_have_the_distribution_of_the_model():
    """n = 4096 samples of three tokens, each among the likeliest three; chi-square, alpha 1e-3."""
    temperature, size, num_runs = 0.7, 32, 128
    prompt = PROMPTS[2]
    sampling = dict(temperature=temperature, top_k=3, max_new_tokens=3)
    engine, weights = drafting_model.engine(drafts=True), drafting_model.model()[1]
    found, kept = [], 0
    for i in range(num_runs):
        requests = [request(size * i + j, **sampling) for j in range(size)]
        prefix, first = engine.prefill_batch(
            params=weights, prompts=[prompt], rows=[0] * size, requests=requests
        )
        state = engine.bulk_insert(prefix, engine.init_decode_state(), range(size))
        state, result = engine.generate(weights, state)
        later = result.convert_to_numpy()
        found.append(np.concatenate([first.data[:, :1], later.data[:, :2]], axis=1))
        kept += engine.statistics(state)["num_drafts_kept"]
    assert kept > 100  # third tokens that came with a draft
    counts: dict[tuple[int, ...], int] = {}
    for cell in np.concatenate(found).tolist():
        counts[tuple(cell)] = counts.get(tuple(cell), 0) + 1

    def joint(temperature):
        """Probability of every three tokens, by full forward passes."""
        cells = {(): 1.0}
        for _ in range(3):
            logits = drafting_model.logits_of([np.array([*prompt, *c]) for c in cells], 9)
            following = {}
            for row, (cell, probability) in enumerate(cells.items()):
                at = logits[row, len(prompt) + len(cell) - 1]
                top = np.argsort(-at, kind="stable")[:3]
                share = np.exp((at[top] - at[top[0]]) / temperature)
                for token, p in zip(top.tolist(), share / share.sum(), strict=True):
                    following[(*cell, token)] = probability * p
            cells = following
        return cells

    def p_value(cells):
        assert set(counts) <= set(cells)
        common = [cell for cell, p in cells.items() if p * size * num_runs >= 5]
        observed = [counts.get(cell, 0) for cell in common]
        expected = [cells[cell] * size * num_runs for cell in common]
        rest = size * num_runs - sum(expected)
        statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
        statistic += (size * num_runs - sum(observed) - rest) ** 2 / max(rest, 1.0)
        return scipy.stats.chi2.sf(statistic, len(common))

    assert p_value(joint(temperature)) > 1e-3
    assert p_value(joint(temperature * 1.15)) < 1e-3  # n tells these two apart


def test_what_cannot_draft_is_refused():
    graphdef, _ = drafting_model.model()
    shapes = drafting_model.engine(drafts=True).config
    model = tiny.smallest_config()
    with pytest.raises(ConfigError, match="num_mtp_layers=1"):
        engine_for(graphdef, model, AsciiTokenizer(), shapes)
    with pytest.raises(ConfigError, match="plain decode steps"):
        dataclasses.replace(shapes, routing=True)


def test_every_length_of_what_is_written_is_reached():
    """Limits of 1 to 5 tokens: a kept draft never writes past the end of a sample."""
    lengths = list(itertools.islice(itertools.cycle(range(1, 6)), 20))
    requests = [request(i, greedy=True, max_new_tokens=n) for i, n in enumerate(lengths)]
    engine, weights = drafting_model.engine(drafts=True), drafting_model.model()[1]
    prefix, _ = engine.prefill_batch(
        params=weights, prompts=PROMPTS, rows=[i % 4 for i in range(20)], requests=requests
    )
    state = engine.bulk_insert(prefix, engine.init_decode_state(), range(20))
    _, result = engine.generate(weights, state)
    np.testing.assert_array_equal(result.num_valid[:20], [n - 1 for n in lengths])
