"""The parts of the simulator against plain loops, and Algorithm 1's shares against their rule."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loong_jax.bench import asynchronous
from loong_jax.orchestrator import dora, rebalance
from loong_jax.orchestrator.changes import Assign, Migrate
from loong_jax.orchestrator.simulation.model import (
    TRACES,
    CostModel,
    LengthTrace,
    Running,
    SimulatedReplica,
)
from loong_jax.orchestrator.simulation.run import simulate
from loong_jax.orchestrator.simulation.world import Layout
from tests.orchestrator import agreement
from tests.sweeps import thinned

COST = CostModel(decode_base_s=0.02, decode_slot_s=1e-3, decode_context_s=1e-5)


def token_by_token(groups, num_slots):
    """When each group ends: one decode step after the other, context counted afresh each time."""
    waiting = [(ticket, length) for ticket, lengths in groups.items() for length in lengths]
    left = {ticket: len(lengths) for ticket, lengths in groups.items()}
    slots, now, ends = [], 0.0, {}
    while waiting or slots:
        while waiting and len(slots) < num_slots:
            ticket, length = waiting.pop(0)
            slots.append([ticket, length, 10])  # ticket, tokens left, context
        context = sum(slot[2] for slot in slots)
        now += COST.decode_base_s + COST.decode_slot_s * len(slots)
        now += COST.decode_context_s * (context + len(slots) / 2)  # the token in the making: half
        for slot in slots:
            slot[1], slot[2] = slot[1] - 1, slot[2] + 1
        for ticket, *_ in [slot for slot in slots if slot[1] == 0]:
            left[ticket] -= 1
            if left[ticket] == 0:
                ends[ticket] = now
        slots = [slot for slot in slots if slot[1] > 0]
    return ends


@settings(max_examples=40)
@given(
    groups=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=3), min_size=1, max_size=5),
    num_slots=st.integers(1, 6),
    looks=st.lists(st.floats(0.0, 3.0), max_size=5),
)
def test_a_replica_takes_as_long_as_token_by_token(groups, num_slots, looks):
    """However often it is looked at on the way."""
    table = dict(enumerate(groups))
    replica = SimulatedReplica(COST, num_slots)
    for ticket, lengths in table.items():
        replica.add(ticket, 10, [Running(i, 0, float(n)) for i, n in enumerate(lengths)])
    ends, looks = {}, sorted(looks)
    while (end := replica.next_end_s()) is not None:
        now = min(end, looks.pop(0)) if looks else end
        for ticket in replica.advance(max(now, replica.time_s)):
            ends[ticket] = replica.time_s
    assert ends == pytest.approx(token_by_token(table, num_slots), rel=1e-6)
    assert replica.active == 0
    assert replica.context == pytest.approx(0.0, abs=1e-6)
    assert replica.num_tokens == pytest.approx(sum(map(sum, groups)))


def test_a_group_that_moves_goes_on_where_it_was():
    origin, target = SimulatedReplica(COST, 4), SimulatedReplica(COST, 4)
    origin.add(7, 10, [Running(0, 0, 20.0), Running(1, 0, 5.0)])
    origin.advance(0.3)
    prompt, responses = origin.remove(7)
    assert origin.active == 0
    assert origin.context == pytest.approx(0.0, abs=1e-6)
    target.advance(0.3)
    target.add(7, prompt, responses)
    while (end := target.next_end_s()) is not None:
        done = target.advance(end)
    assert done == [7]
    assert origin.num_tokens + target.num_tokens == pytest.approx(25.0)


@given(seconds=st.floats(0.0, 1e4), active=st.integers(1, 2000), context=st.floats(0.0, 1e6))
def test_steps_and_seconds_are_inverse(seconds, active, context):
    steps = COST.decode_steps(seconds, active, context)
    assert COST.decode_s(steps, active, context) == pytest.approx(seconds, abs=1e-6)


@given(
    work=st.dictionaries(st.integers(0, 5), st.integers(0, 1000), max_size=5),
    num_replicas=st.integers(1, 40),
)
def test_shares_are_proportional_with_one_for_everybody(work, num_replicas):
    given_to = rebalance.shares(work, num_replicas)
    busy = {version for version, amount in work.items() if amount}
    if len(busy) > num_replicas:
        assert sorted(given_to) == sorted(busy)[:num_replicas], "the oldest come first"
    else:
        assert set(given_to) == busy
    assert all(count >= 1 for count in given_to.values())
    assert sum(given_to.values()) == (num_replicas if busy else 0)
    for more in given_to:
        for less in given_to:
            if work[more] > work[less]:
                assert given_to[more] >= given_to[less]


def test_shares_by_hand():
    assert rebalance.shares({3: 60, 4: 30, 5: 10}, 10) == {3: 6, 4: 3, 5: 1}
    assert rebalance.shares({3: 1, 4: 999}, 10) == {3: 1, 4: 9}
    assert rebalance.shares({}, 10) == {}


def test_the_trace_has_the_published_mean_and_is_the_same_for_everybody():
    trace = TRACES["dora-32b"]
    lengths = np.concatenate([trace.lengths(problem) for problem in range(3000)])
    assert 2200 < lengths.mean() < 2700, "2.4K to 2.6K are published"
    assert lengths.max() == trace.cap_tokens
    assert (trace.lengths(5) == LengthTrace(**vars(trace)).lengths(5)).all()
    assert (trace.lengths(5) != trace.lengths(5, issue=1)).any()
    hard = [trace.lengths(p).mean() for p in range(500) if trace.difficulty(p) > 1]
    easy = [trace.lengths(p).mean() for p in range(500) if trace.difficulty(p) < -1]
    assert np.mean(hard) > 3 * np.mean(easy)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", thinned(agreement.POLICIES, -1))
def test_sleeping_replicas_take_as_long_as_the_virtual_clock_says(name):
    errors = []
    while not errors or (min(errors) > 0.1 and len(errors) < 3):  # others may be at work beside
        row = agreement.measure(name)
        assert row["virtual_s"] > 10
        errors.append(abs(row["error"]))
    assert min(errors) < 0.1, errors  # on an idle machine 0.02 and less


@pytest.mark.release
def test_the_warm_up_is_long_enough():
    """Three times as many steps that are not counted move the result by less than 4 %."""
    trace = dataclasses.replace(TRACES["dora-32b"], group_size=4)
    given = asynchronous.Case(
        num_accelerators=16,
        groups_per_step=16,
        trace=trace,
        cost=CostModel(),
        slots_per_replica=16,
        num_steps=24,
        warm_up=8,
        seeds=(0, 1, 2, 3),
    )
    later = dataclasses.replace(given, warm_up=24)
    short, long = (
        asynchronous.run("DORA", case, 0.5).mean("tokens_per_device_s") for case in (given, later)
    )
    assert short == pytest.approx(long, rel=0.04)


@pytest.mark.release
@pytest.mark.timeout(900)
def test_a_thousand_replicas_run():
    """10^5 accelerators in one process: what is decided does not look at each replica each time."""
    layout = Layout(
        num_accelerators=100_000, accelerators_per_replica=100, slots_per_replica=4, num_elastic=100
    )
    trace = dataclasses.replace(TRACES["short"], group_size=2)
    policy = dora.algorithm_1(groups_per_step=16, max_staleness=1)
    report = simulate(policy, layout, trace, CostModel(), num_steps=1, warm_up=1)
    assert report.step_s > 0


def test_a_group_moves_once_per_decision():
    """What is still on its way to a replica cannot be asked of it."""
    planned = [
        Migrate(0, 1, (5, 6, 7)),
        Assign(0, 4),
        Migrate(1, 2, (6, 9)),
        Migrate(2, 1, (9,)),
    ]
    assert rebalance.straight(planned) == [
        Migrate(0, 1, (5, 7)),
        Migrate(0, 2, (6,)),
        Assign(0, 4),
    ]
