"""The paged engine against the one with slots of its own: the same samples, whatever the pages."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import nnx

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models import moe
from loong_jax.models.families import family_of
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.pages import OutOfPages
from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.replica import Replica
from tests.doubles import tiny
from tests.doubles.fake_model import fake_problem
from tests.rollout import engine_runs
from tests.rollout.engine_checks import check_pages, num_compiled
from tests.rollout.engine_runs import prompts_of, request

PAGES = PageConfig(num_pages=40, page_size=4)
SHAPES = tiny.engine_shapes(prefill_lengths=(8, 16), narrow_slots=(4,), chunked_prefill=True)
MODEL = tiny.smallest_config(
    num_layers=1,
    ngram=moe.NgramEmbedding(max_order=3, num_splits=2, base_rows=300, eos_token=2),
)
PROMPTS = prompts_of(3, 8, 11, 16)


@functools.cache
def setup():
    """Dense engine, paged engine, two versions of the weights."""
    _, weights = family_of(MODEL).init_weights(MODEL, jax.random.key(0))
    weights["head"] = weights["head"] * 3
    other = jax.tree.map(lambda a: a * 1.05, weights)
    return fresh(SHAPES), fresh(SHAPES, pages=PAGES), weights, other


class Run(engine_runs.Run):
    def fill(self, prompts, slots, names, **how):
        """A sample of a name draws from a stream of its own."""
        sampling = {"temperature": 0.8} | how.pop("sampling", {})
        requests = [request(name, **sampling) for name in names]
        return super().fill(prompts, slots, requests, names=names, **how)

    def end(self, slots, *, sequences=None, version=0):
        self.state = self.engine.cancel(self.state, slots)
        for i, slot in enumerate(slots):
            tokens = None if sequences is None else sequences[i]
            self.state = self.engine.release(self.state, slot, tokens=tokens, version=version)


def fresh(shapes, **changes):
    """An engine of its own, over the model of `setup`."""
    graphdef, _ = family_of(MODEL).abstract_weights(MODEL)
    shapes = dataclasses.replace(shapes, **changes)
    return engine_for(graphdef, MODEL, AsciiTokenizer(), shapes)


def filled(engine):
    """The four prompts, together."""
    return Run(engine, setup()[2]).fill(PROMPTS, [6, 0, 3, 5], range(4))


@functools.cache
def expected():
    """On the dense engine."""
    return filled(setup()[0]).decode(3)


def assert_equal(run, names, *, exactly=True, against=None):
    wanted = against or expected()
    for name in names:
        assert run.tokens[name] == wanted.tokens[name]
        if exactly:
            assert run.log_probs[name] == wanted.log_probs[name]
        else:
            np.testing.assert_allclose(run.log_probs[name], wanted.log_probs[name], atol=1e-5)


def test_pages_change_no_bit():
    run = filled(setup()[1]).decode()
    check_pages(run.state.allocator)
    assert_equal(run.decode(2), [0, 1, 2, 3])
    run.end([6, 0, 3, 5])
    check_pages(run.state.allocator)
    assert run.state.allocator.num_available == PAGES.num_pages
    assert not run.state.samples


@pytest.mark.slow
def test_a_short_view_equals_a_long_one_but_for_rounding():
    engine = fresh(SHAPES, pages=dataclasses.replace(PAGES, view_lengths=(16,)))
    run = Run(engine, setup()[2]).fill(PROMPTS[:2], [6, 0], [0, 1])
    num_compiled = []
    for _ in range(3):  # up to 12, 16 and then 20 positions
        run.decode()
        num_compiled.append(engine._decode_pages._cache_size())
    assert num_compiled == [1, 1, 2]
    assert_equal(run, [0, 1], exactly=False)


def test_a_group_shares_its_prompt():
    dense, paged, weights, _ = setup()
    runs = Run(dense, weights), Run(paged, weights)
    for run in runs:
        run.fill([PROMPTS[2]], [4, 1, 7, 0, 2], range(5), rows=[0] * 5).decode(3)
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
    first = Run(paged, weights)
    first.fill([PROMPTS[2]], [3], [2], sampling={"max_new_tokens": 6}).decode(2)
    turn = np.concatenate([PROMPTS[2], first.tokens[2]]).astype(np.int32)  # 17 tokens
    first.end([3], sequences=[turn])
    longer = np.concatenate([turn, PROMPTS[0]])  # 20 tokens: more than the largest bucket
    for version, num_found in ((1, 0), (0, 16)):
        begun = paged.find(first.state, [longer], version)
        assert (0 if begun is None else begun.start[0]) == num_found
    plain = Run(dense, weights).fill([longer], [1], [7]).decode(3)
    first.fill([longer], [1], [7], find=True).decode(3)
    assert_equal(first, [7], exactly=False, against=plain)
    assert first.state.allocator.counts.num_prefix_hits == 2
    assert first.state.allocator.counts.num_prefix_tokens == 32
    # Were pages found across versions, these tokens would be those of the old cache.
    alone = {"weights": other, "slots": np.array([2])}
    plain.fill([longer], [2], [8], weights=other).decode(3, **alone)
    first.fill([longer], [2], [8], weights=other, version=1, find=True).decode(3, **alone)
    assert_equal(first, [8], exactly=False, against=plain)
    first.end([1, 2])
    check_pages(first.state.allocator)


@pytest.mark.slow
def test_chunks_equal_one_whole_prefill():
    dense, paged, weights, _ = setup()
    whole = fresh(SHAPES, prefill_lengths=(32,), chunked_prefill=False)
    long = np.arange(27, dtype=np.int32) * 5 % 90 + 33
    runs = one, *_ = [Run(engine, weights) for engine in (whole, dense, paged)]
    for run in runs:
        run.fill([long, PROMPTS[0]], [2, 3], [0, 1], sampling={"max_new_tokens": 5}).decode()
    assert_equal(runs[1], [0, 1], exactly=False, against=one)
    assert_equal(runs[2], [0, 1], against=runs[1])


def test_two_versions_decode_in_one_pool_without_compiling_again():
    _, paged, weights, other = setup()
    apart = [
        Run(paged, params).fill([PROMPTS[name]], [name], [name]).decode(3, slots=np.array([name]))
        for params, name in ((weights, 2), (other, 3))
    ]
    compiled = num_compiled(paged)
    both = Run(paged, weights).fill([PROMPTS[2]], [2], [2])
    both.fill([PROMPTS[3]], [3], [3], weights=other, version=1)
    for _ in range(3):
        both.decode(slots=np.array([2])).decode(slots=np.array([3]), weights=other)
    for run, name in zip(apart, (2, 3), strict=True):
        assert_equal(both, [name], against=run)
    assert num_compiled(paged) == compiled
    assert apart[0].tokens[2] == expected().tokens[2]
    assert apart[1].tokens[3] != expected().tokens[3]


def test_a_sample_moves_to_another_slot_and_to_another_engine():
    _, paged, weights, _ = setup()
    pages = PageConfig(num_pages=9, page_size=8)
    second = fresh(SHAPES, pages=pages)
    run, target = filled(paged).decode(), Run(second, weights)
    moved = jax.device_get([paged.extract(run.state, slot) for slot in (3, 5)])
    run.end([3, 5])
    run.insert(moved[0], [1], [2])
    assert second.accepts(moved[1])
    target.tokens[3], target.log_probs[3] = run.tokens[3], run.log_probs[3]
    target.insert(moved[1], [7], [3])
    assert_equal(run.decode(2), [0, 1, 2])
    assert_equal(target.decode(2), [3])
    assert not second.accepts(moved[1].device)
    assert not fresh(SHAPES, cache_length=16, pages=pages).accepts(moved[1])
    run.end([0, 1, 6])
    assert run.state.allocator.num_available == PAGES.num_pages


def test_short_pages_are_told_before_they_hurt():
    weights = setup()[2]
    engine = fresh(SHAPES, pages=PageConfig(num_pages=8, page_size=4))
    prefix, _ = engine.prefill_batch(
        params=weights,
        prompts=PROMPTS[2:],
        rows=[0, 0, 1],
        requests=[request(i, temperature=0.8) for i in range(3)],
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


@pytest.mark.slow
def test_the_choices_of_the_router_are_recorded_for_every_token_that_was_read():
    """Against a full forward pass; prompt positions that were found, not read, have a sentinel."""
    graphdef, _ = family_of(MODEL).abstract_weights(MODEL)
    weights = setup()[2]
    engine = fresh(SHAPES, pages=PAGES, routing=True, prefill_lengths=(8,))
    prompt, state = PROMPTS[2], engine.init_decode_state()

    def sample(state, found):
        prefix, first = engine.prefill_batch(
            params=weights,
            prompts=[prompt],
            rows=[0],
            requests=[request(2, temperature=0.8)],
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
