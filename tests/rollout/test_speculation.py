"""Decoding with drafts writes what decoding without them writes, and sometimes two at once."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest
import scipy.stats

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.rollout.paged_engine import engine_for
from tests.doubles import tiny
from tests.rollout import drafting_model
from tests.rollout.engine_runs import Run, prompts_of, request
from tests.sweeps import thinned

MODEL = drafting_model.MODEL
PROMPTS = prompts_of(1, 2, 8, 13)
SETTINGS = [
    {"greedy": True},
    {"temperature": 0.7},
    {"temperature": 0.5, "top_k": 5, "max_new_tokens": 5},
    {"temperature": 1.3, "top_p": 0.8, "min_p": 0.01, "stop_ids": (40,)},
]


def requests_of(settings):
    return [request(i, **{"max_new_tokens": 14} | one) for i, one in enumerate(settings)]


def run(config=MODEL, **kind):
    """Samples of an engine of this kind, and its counts of drafts."""
    engine = drafting_model.engine(config=config, **kind)
    found = Run(engine, drafting_model.model(config)[1])
    found.fill(PROMPTS, [6, 0, 3, 5], requests_of(SETTINGS)).decode(4)
    return found, engine.statistics(found.state)


@pytest.mark.parametrize("pages", thinned([False, True], 1))
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(MODEL, id="plain"),
        pytest.param(drafting_model.WITH_NGRAMS, id="ngrams", marks=pytest.mark.slow),
    ],
)
def test_drafts_change_no_sample(config, pages):
    plain, nothing = run(config)
    drafted, counts = run(config, pages=pages, drafts=True)
    assert nothing == {}
    assert drafted.tokens == plain.tokens
    for name, wanted in plain.log_probs.items():
        np.testing.assert_allclose(drafted.log_probs[name], wanted, atol=1e-5)
    assert 0 < counts["num_drafts_kept"] < counts["num_drafts_proposed"]
    # A step writes one token and one more per draft that was kept; the first ones cost no step.
    written = sum(map(len, plain.tokens.values())) - len(PROMPTS)
    assert counts["num_drafts_proposed"] + counts["num_drafts_kept"] == written


@pytest.mark.release
def test_samples_with_drafts_have_the_distribution_of_the_model():
    """n = 4096 samples of three tokens, each among the likeliest three; chi-square, alpha 1e-3."""
    temperature, size, num_runs = 0.7, 32, 128
    prompt = PROMPTS[2]
    sampling = dict(temperature=temperature, top_k=3, max_new_tokens=3)
    engine, weights = drafting_model.engine(drafts=True), drafting_model.model()[1]
    counts, kept = collections.Counter(), 0
    for i in range(num_runs):
        requests = [request(size * i + j, **sampling) for j in range(size)]
        found = Run(engine, weights).fill([prompt], range(size), requests, rows=[0] * size).decode()
        counts.update(tuple(found.tokens[j]) for j in range(size))
        kept += engine.statistics(found.state)["num_drafts_kept"]
    assert kept > 100  # third tokens that came with a draft

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
    requests = requests_of({"greedy": True, "max_new_tokens": n} for n in lengths)
    found = Run(drafting_model.engine(drafts=True), drafting_model.model()[1])
    found.fill(PROMPTS, range(20), requests, rows=[i % 4 for i in range(20)]).decode()
    assert [len(found.tokens[i]) for i in range(20)] == lengths
