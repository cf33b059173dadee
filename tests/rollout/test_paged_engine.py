"""The paged engine against the one with slots of its own: the same samples, whatever the pages."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import nnx

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.families import family_of
from loong_jax.rollout.engine_config import PageConfig, SampleRequest
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.pages import OutOfPages
from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.replica import Replica
from tests.doubles import tiny
from tests.doubles.fake_model import fake_problem
from tests.rollout.engine_checks import check_pages, num_compiled

PAGES = PageConfig(num_pages=40, page_size=4)
SHAPES = tiny.engine_shapes(prefill_lengths=(8, 16), narrow_slots=(4,), chunked_prefill=True)
MODEL = tiny.smallest_config(
    num_layers=1,
    ngram=moe.NgramEmbedding(max_order=3, num_splits=2, base_rows=300, eos_token=2),
)
PROMPTS = [np.arange(length, dtype=np.int32) * 7 % 90 + 33 for length in (3, 8, 11, 16)]


@functools.cache
def setup():
    """Dense engine, paged engine, two versions of the weights."""
    graphdef, weights = family_of(MODEL).init_weights(MODEL, jax.random.key(0))
    weights["head"] = weights["head"] * 3
    other = jax.tree.map(lambda a: a * 1.05, weights)
    dense = engine_for(graphdef, MODEL, AsciiTokenizer(), SHAPES)
    shapes = dataclasses.replace(SHAPES, pages=PAGES)
    return dense, engine_for(graphdef, MODEL, AsciiTokenizer(), shapes), weights, other


def request(attempt: int, **sampling) -> SampleRequest:
    settings = SamplingSettings(**{"max_new_tokens": 12, "temperature": 0.8} | sampling)
    return SampleRequest(stream=(9, 1, 2, 0, attempt), sampling=settings)


class Run:
    """Slots of one engine; gathers what each sample writes, by name."""

    def __init__(self, engine):
        self.engine, self.state = engine, engine.init_decode_state()
        self.tokens, self.log_probs, self.names = {}, {}, {}

    def fill(self, weights, prompts, rows, names, slots, *, version=0, find=False, **sampling):
        begun = self.engine.find(self.state, prompts, version) if find else None
        prefix, first = self.engine.prefill_batch(
            params=weights,
            prompts=prompts,
            rows=rows,
            requests=[request(name, **sampling) for name in names],
            existing_prefix=begun,
            version=version,
        )
        first = first.convert_to_numpy()
        for member, name in enumerate(names):
            self.tokens[name] = [int(first.data[member, 0])]
            self.log_probs[name] = [float(first.log_prob[member, 0])]
        self.insert(prefix, slots, names)

    def insert(self, prefix, slots, names):
        self.state = self.engine.bulk_insert(prefix, self.state, slots)
        self.names |= dict(zip(slots, names, strict=True))

    def decode(self, weights, slots=None, blocks=1):
        for _ in range(blocks):
            self.state, result = self.engine.generate(weights, self.state, slots=slots)
            result = result.convert_to_numpy()
            for row, slot in enumerate(range(8) if slots is None else slots):
                tokens, log_probs = result.written(row)
                if len(tokens):
                    self.tokens[self.names[slot]] += tokens.tolist()
                    self.log_probs[self.names[slot]] += log_probs.tolist()

    def end(self, slots, *, sequences=None, version=0):
        self.state = self.engine.cancel(self.state, slots)
        for i, slot in enumerate(slots):
            tokens = None if sequences is None else sequences[i]
            self.state = self.engine.release(self.state, slot, tokens=tokens, version=version)


@functools.cache
def expected():
    """The four prompts on the dense engine, together."""
    dense, _, weights, _ = setup()
    run = Run(dense)
    run.fill(weights, PROMPTS, [0, 1, 2, 3], [0, 1, 2, 3], [6, 0, 3, 5])
    run.decode(weights, blocks=3)
    return run


def assert_equal(run, names, *, exactly=True, against=None):
    wanted = against or expected()
    for name in names:
        assert run.tokens[name] == wanted.tokens[name]
        if exactly:
            assert run.log_probs[name] == wanted.log_probs[name]
        else:
            np.testing.assert_allclose(run.log_probs[name], wanted.log_probs[name], atol=1e-5)


def test_pages_change_no_bit():
    _, paged, weights, _ = setup()
    run = Run(paged)
    run.fill(weights, PROMPTS, [0, 1, 2, 3], [0, 1, 2, 3], [6, 0, 3, 5])
    run.decode(weights)
    check_pages(run.state.allocator)
    run.decode(weights, blocks=2)
    assert_equal(run, [0, 1, 2, 3])
    run.end([6, 0, 3, 5])
    check_pages(run.state.allocator)
    assert run.state.allocator.num_available == PAGES.num_pages
    assert not run.state.samples


@pytest.mark.slow
def test_a_short_view_equals_a_long_one_but_for_rounding():
    _, _, weights, _ = setup()
    graphdef, _ = family_of(MODEL).init_weights(MODEL, jax.random.key(0))
    pages = dataclasses.replace(PAGES, view_lengths=(16,))
    shapes = dataclasses.replace(SHAPES, pages=pages)
    engine = engine_for(graphdef, MODEL, AsciiTokenizer(), shapes)
    run = Run(engine)
    run.fill(weights, PROMPTS[:2], [0, 1], [0, 1], [6, 0])
    num_compiled = []
    for _ in range(3):  # up to 12, 16 and then 20 positions
        run.decode(weights)
        num_compiled.append(engine._decode_pages._cache_size())
    assert num_compiled == [1, 1, 2]
    assert_equal(run, [0, 1], exactly=False)


def test_a_group_shares_its_prompt():
    dense, paged, weights, _ = setup()
    runs = Run(dense), Run(paged)
    for run in runs:
        run.fill(weights, [PROMPTS[2]], [0] * 5, range(5), [4, 1, 7, 0, 2])
        run.decode(weights, blocks=3)
    assert len({tuple(tokens) for tokens in runs[1].tokens.values()}) == 5
    assert_equal(runs[1], range(5), against=runs[0])
    allocator = runs[1].state.allocator
    assert allocator.counts.num_pages_shared == 4 * 2
    # 11 + 11 positions are 6 pages a sample, of which 2 are one and the same.
    assert allocator.num_held == 2 + 5 * 4
    for slot in (4, 1, 7, 0, 2):
        check_pages(allocator)
        runs[1].end([slot])
    assert allocator.num_available == PAGES.num_pages


def test_a_later_turn_reads_only_what_is_new():
    """Generated tokens are found too, under their own version alone."""
    dense, paged, weights, other = setup()
    first = Run(paged)
    first.fill(weights, [PROMPTS[2]], [0], [2], [3], max_new_tokens=6)
    first.decode(weights, blocks=2)
    turn = np.concatenate([PROMPTS[2], first.tokens[2]]).astype(np.int32)  # 17 tokens
    first.end([3], sequences=[turn])
    longer = np.concatenate([turn, PROMPTS[0]])  # 20 tokens: more than the largest bucket
    for version, num_found in ((1, 0), (0, 16)):
        begun = paged.find(first.state, [longer], version)
        assert (0 if begun is None else begun.start[0]) == num_found
    plain = Run(dense)
    plain.fill(weights, [longer], [0], [7], [1])
    plain.decode(weights, blocks=3)
    first.fill(weights, [longer], [0], [7], [1], find=True)
    first.decode(weights, blocks=3)
    assert_equal(first, [7], exactly=False, against=plain)
    assert first.state.allocator.counts.num_prefix_hits == 2
    assert first.state.allocator.counts.num_prefix_tokens == 32
    # Were pages found across versions, these tokens would be those of the old cache.
    plain.fill(other, [longer], [0], [8], [2])
    plain.decode(other, np.array([2]), blocks=3)
    first.fill(other, [longer], [0], [8], [2], version=1, find=True)
    first.decode(other, np.array([2]), blocks=3)
    assert_equal(first, [8], exactly=False, against=plain)
    first.end([1, 2])
    check_pages(first.state.allocator)


@pytest.mark.slow
def test_chunks_equal_one_whole_prefill():
    dense, paged, weights, _ = setup()
    whole = dataclasses.replace(SHAPES, prefill_lengths=(32,), chunked_prefill=False)
    graphdef, _ = family_of(MODEL).init_weights(MODEL, jax.random.key(0))
    one = Run(engine_for(graphdef, MODEL, AsciiTokenizer(), whole))
    long = np.arange(27, dtype=np.int32) * 5 % 90 + 33
    runs = one, Run(dense), Run(paged)
    for run in runs:
        run.fill(weights, [long, PROMPTS[0]], [0, 1], [0, 1], [2, 3], max_new_tokens=5)
        run.decode(weights)
    assert_equal(runs[1], [0, 1], exactly=False, against=one)
    assert_equal(runs[2], [0, 1], against=runs[1])


def test_two_versions_decode_in_one_pool_without_compiling_again():
    _, paged, weights, other = setup()
    apart = [Run(paged), Run(paged)]
    for run, params, name in zip(apart, (weights, other), (2, 3), strict=True):
        run.fill(params, [PROMPTS[name]], [0], [name], [name])
        run.decode(params, np.array([name]), blocks=3)
    compiled = num_compiled(paged)
    both = Run(paged)
    both.fill(weights, [PROMPTS[2]], [0], [2], [2], version=0)
    both.fill(other, [PROMPTS[3]], [0], [3], [3], version=1)
    for _ in range(3):
        both.decode(weights, np.array([2]))
        both.decode(other, np.array([3]))
    for run, name in zip(apart, (2, 3), strict=True):
        assert_equal(both, [name], against=run)
    assert num_compiled(paged) == compiled
    assert apart[0].tokens[2] == expected().tokens[2]
    assert apart[1].tokens[3] != expected().tokens[3]


def test_a_sample_moves_to_another_slot_and_to_another_engine():
    _, paged, weights, _ = setup()
    graphdef, _ = family_of(MODEL).init_weights(MODEL, jax.random.key(0))
    shapes = dataclasses.replace(
        SHAPES, slots_per_replica=8, pages=PageConfig(num_pages=9, page_size=8)
    )
    second = engine_for(graphdef, MODEL, AsciiTokenizer(), shapes)
    run, target = Run(paged), Run(second)
    run.fill(weights, PROMPTS, [0, 1, 2, 3], [0, 1, 2, 3], [6, 0, 3, 5])
    run.decode(weights)
    moved = jax.device_get([paged.extract(run.state, slot) for slot in (3, 5)])
    run.end([3, 5])
    run.insert(moved[0], [1], [2])
    assert second.accepts(moved[1])
    target.tokens[3], target.log_probs[3] = run.tokens[3], run.log_probs[3]
    target.insert(moved[1], [7], [3])
    run.decode(weights, blocks=2)
    target.decode(weights, blocks=2)
    assert_equal(run, [0, 1, 2])
    assert_equal(target, [3])
    assert not second.accepts(moved[1].device)
    tiny = dataclasses.replace(SHAPES, cache_length=16, pages=PageConfig(num_pages=9, page_size=8))
    assert not engine_for(graphdef, MODEL, AsciiTokenizer(), tiny).accepts(moved[1])
    run.end([0, 1, 6])
    assert run.state.allocator.num_available == PAGES.num_pages


def test_short_pages_are_told_before_they_hurt():
    graphdef, weights = family_of(MODEL).init_weights(MODEL, jax.random.key(0))
    shapes = dataclasses.replace(SHAPES, pages=PageConfig(num_pages=8, page_size=4))
    engine = engine_for(graphdef, MODEL, AsciiTokenizer(), shapes)
    prefix, _ = engine.prefill_batch(
        params=weights, prompts=PROMPTS[2:], rows=[0, 0, 1], requests=[request(i) for i in range(3)]
    )
    state = engine.init_decode_state()
    assert engine.cache_pressure(state) == 0.0
    # The first member takes 4 pages (11 + 4 positions), the second 2 more, the third 5.
    assert engine.num_that_fit(prefix, state, [0, 1, 2]) == 2
    state = engine.bulk_insert(prefix, state, [0, 1], members=[0, 1])
    assert engine.cache_pressure(state) == 6 / 8
    with pytest.raises(OutOfPages, match="preempt"):
        engine.bulk_insert(prefix, state, [2], members=[2])
    state, _ = engine.generate(weights, state)
    state, _ = engine.generate(weights, state)
    assert not engine.reserve(state, [0, 1])
    with pytest.raises(OutOfPages, match="Extract or release"):
        engine.generate(weights, state)
    state = engine.release(engine.cancel(state, [1]), 1)
    assert engine.reserve(state, [0])
    state, _ = engine.generate(weights, state)
    check_pages(state.allocator)


@pytest.mark.parametrize(
    "changes",
    [
        {"pages": PageConfig(num_pages=7, page_size=4)},
        {"pages": PageConfig(num_pages=70, page_size=5)},
        {"pages": PageConfig(num_pages=70, page_size=4, view_lengths=(32,))},
    ],
)
def test_pages_that_do_not_fit_the_slots_are_refused(changes):
    with pytest.raises(ConfigError):
        dataclasses.replace(SHAPES, **changes)
    with pytest.raises(ConfigError):
        PageConfig(num_pages=4, page_size=4, view_lengths=(6,))


@pytest.mark.slow
def test_the_choices_of_the_router_are_recorded_for_every_token_that_was_read():
    """Against a full forward pass; prompt positions that were found, not read, have a sentinel."""
    graphdef, _ = family_of(MODEL).init_weights(MODEL, jax.random.key(0))
    _, _, weights, _ = setup()
    shapes = dataclasses.replace(SHAPES, pages=PAGES, routing=True, prefill_lengths=(8,))
    engine = engine_for(graphdef, MODEL, AsciiTokenizer(), shapes)
    prompt, state = PROMPTS[2], engine.init_decode_state()

    def sample(state, found):
        prefix, first = engine.prefill_batch(
            params=weights,
            prompts=[prompt],
            rows=[0],
            requests=[request(2)],
            existing_prefix=engine.find(state, [prompt], 0),
            version=0,
        )
        state, second = engine.generate(weights, engine.bulk_insert(prefix, state, [1]))
        one, two = first.convert_to_numpy(), second.convert_to_numpy()
        tokens = np.concatenate([prompt, one.tokens[0], two.tokens[1]])
        full = forward(weights, np.pad(tokens, (0, 32 - len(tokens)))[None])
        wanted = np.moveaxis(np.asarray(full), 0, 2)[0]  # [T, L, K]
        assert one.target[0].shape == (32, *wanted.shape[1:])
        np.testing.assert_array_equal(one.target[0][found:11], wanted[found:11])
        assert (one.target[0][:found] == -1).all()
        assert (one.target[0][11:] == -1).all()
        np.testing.assert_array_equal(two.target[1], wanted[11:15])
        assert (wanted >= MODEL.num_experts).any()  # zero-computation experts are among them
        return engine.release(engine.cancel(state, [1]), 1, tokens=tokens, version=0)

    forward = jax.jit(lambda w, x: nnx.merge(graphdef, nnx.State(w))(x).target)
    sample(sample(state, 0), 8)

    settings = SamplingSettings(max_new_tokens=6, temperature=0.8)
    replica = Replica(engine, group_size=2, sampling=settings, seed=1)
    replica.assign(0, weights)
    replica.submit([Ticket(number=0, problem=fake_problem(7))])
    groups = []
    while not replica.is_empty:
        groups += replica.step()[0]
    for rollout in groups[0].rollouts:
        tokens = np.concatenate([rollout.prompt, rollout.tokens])
        full = forward(weights, np.pad(tokens, (0, 32 - len(tokens)))[None])
        wanted = np.moveaxis(np.asarray(full), 0, 2)[0][: len(tokens)]
        np.testing.assert_array_equal(rollout.routing[:-1], wanted[:-1])
        assert (rollout.routing[-1] == -1).all()


@pytest.mark.parametrize("name", ["num_pages", "page_size"])
def test_no_pages_are_refused(name):
    with pytest.raises(ConfigError, match=f"{name}=0"):
        PageConfig(**({"num_pages": 4, "page_size": 4} | {name: 0}))
