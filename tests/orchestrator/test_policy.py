"""`decide` as a pure function: what it does in states written out by hand."""

import dataclasses

import pytest

from loong_jax.errors import ConfigError
from loong_jax.orchestrator import baselines, dora, policy, state
from loong_jax.orchestrator.actions import (
    Assign,
    Dispatch,
    Drain,
    EndStale,
    Issue,
    Score,
    SetIssueLimit,
    Train,
)
from loong_jax.orchestrator.policy import DoraPolicy, decide
from loong_jax.orchestrator.state import ReplicaState, RunState
from loong_jax.orchestrator.ticket_table import TicketState, TicketTable

P2 = DoraPolicy(groups_per_step=2, max_staleness=2, score_at_least=2, max_ahead=3.0)


def run_state(*tickets, replicas=(0, 0), **changes):
    """Tickets are (phase, version[, replica]) in the order of issue."""
    table = {
        number: TicketState(
            number=number,
            phase=ticket[0],
            version=ticket[1],
            replica=ticket[2] if len(ticket) > 2 else None,
        )
        for number, ticket in enumerate(tickets)
    }
    defaults = dict(
        total_steps=10,
        replicas=tuple(ReplicaState(version=version) for version in replicas),
        tickets=TicketTable(table.values()),
        num_issued=len(table),
    )
    return RunState(**(defaults | changes))


def test_first_replicas_take_up_the_newest_version():
    assert decide(run_state(replicas=(None, None)), P2, 4) == [Assign(0, 0)]


def test_free_places_are_filled_on_the_newest_version_first():
    drained = run_state(step=1, newest_version=1)
    drained = dataclasses.replace(
        drained, replicas=(ReplicaState(version=0, draining=True), ReplicaState(version=1))
    )
    drained = state.issue(drained, 0, 0)
    drained = state.move(drained, [0], "decoding", replica=0)
    assert decide(drained, P2, 3) == [Issue(3, 1)]


def test_admission_stops_where_staleness_could_be_exceeded():
    """Version 0 at step 1 with S = 2: two steps are left, so at most four groups may be open."""
    behind = run_state(("verifying", 0), ("verifying", 0), ("verifying", 0), replicas=(0,), step=1)
    assert decide(behind, P2, 8) == [Issue(1, 0)]
    assert decide(dataclasses.replace(behind, step=2), P2, 8) == []


def test_a_replica_with_running_responses_keeps_its_version():
    busy = run_state(
        ("decoding", 0, 0), ("decoding", 0, 1), replicas=(0, 0), step=1, newest_version=1
    )
    actions = decide(busy, P2, 1)
    assert actions == [Drain(0)]
    one_empty = run_state(("decoding", 0, 1), replicas=(0, 0), step=1, newest_version=1)
    assert decide(one_empty, P2, 1) == [Drain(0)]
    emptied = state.set_replica(one_empty, 0, draining=True)
    assert decide(emptied, P2, 1) == [Assign(0, 1)]


def test_the_others_keep_their_version_while_it_can_still_be_trained_on():
    """Two replicas, S = 2: one takes up each new version, the other follows at the next."""
    turned = run_state(("decoding", 0, 1), replicas=(1, 0), step=1, newest_version=1)
    assert not any(isinstance(action, Drain) for action in decide(turned, P2, 1))
    later = run_state(("decoding", 0, 1), replicas=(1, 0), step=2, newest_version=2)
    assert decide(later, P2, 1) == [Drain(1)]


def test_only_one_replica_is_emptied_at_a_time():
    busy = run_state(
        ("decoding", 0, 0), ("decoding", 0, 1), replicas=(0, 0), step=1, newest_version=1
    )
    busy = state.set_replica(busy, 0, draining=True)
    assert not any(isinstance(action, Drain) for action in decide(busy, P2, 1))


def test_judged_groups_are_scored_and_then_trained_oldest_version_first():
    judged = run_state(("judged", 1), ("judged", 0), ("judged", 1), step=1, newest_version=1)
    assert decide(judged, P2, 0) == [Score((0, 1))]
    ready = run_state(("ready", 1), ("ready", 0), ("ready", 1), step=1, newest_version=1)
    assert decide(ready, P2, 0) == [Train((0, 1))]
    assert decide(dataclasses.replace(ready, trainer="training"), P2, 0) != [Train((0, 1))]


def test_groups_past_the_bound_end_stale_and_those_at_it_do_not():
    at_bound = run_state(("ready", 0), replicas=(), step=2, newest_version=2)
    assert decide(at_bound, P2, 0) == []
    assert decide(dataclasses.replace(at_bound, step=3), P2, 0) == [EndStale((0,))]


def test_deterministic_batches_follow_the_order_of_issue():
    in_order = DoraPolicy(groups_per_step=2, max_staleness=1, deterministic=True)
    waiting = run_state(("decoding", 0, 0), ("judged", 0), ("judged", 0), replicas=(0,))
    assert policy.next_batch(waiting, in_order) is None
    there = run_state(("judged", 0), ("decoding", 0, 0), ("judged", 0), replicas=(0,))
    assert policy.next_batch(state.end(there, [1], "filtered"), in_order) == (0, 2)


def test_deterministic_mode_adds_exactly_what_filtering_took_away():
    in_order = DoraPolicy(groups_per_step=2, max_staleness=0, deterministic=True)
    short = state.end(run_state(("judged", 0), ("verifying", 0)), [1], "filtered")
    short = dataclasses.replace(short, issue_limit=2)
    assert decide(short, in_order, 0) == [SetIssueLimit(3)]
    assert decide(dataclasses.replace(short, issue_limit=3), in_order, 0) == [Issue(1, 0)]


def test_queued_tickets_go_to_replicas_of_their_version():
    restored = run_state(("queued", 0), ("queued", 1), replicas=(1, 0), step=1, newest_version=1)
    restored = state.set_replica(restored, 1, draining=True)
    full = DoraPolicy(groups_per_step=2, max_staleness=2)
    assert decide(restored, full, 2) == [Dispatch(0, (1,), 1), Dispatch(1, (0,), 0)]


def test_an_empty_replica_returns_to_a_version_that_queued_tickets_need():
    restored = run_state(("queued", 0), replicas=(1,), step=1, newest_version=1)
    assert decide(restored, P2, 2) == [Assign(0, 0)]


@pytest.mark.parametrize(
    "setting",
    [
        {"groups_per_step": 0},
        {"max_staleness": -1},
        {"max_ahead": 0.0},
        {"max_ahead": float("inf")},
        {"replicas_per_version": 0},
    ],
)
def test_refuses_settings_that_cannot_work(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        DoraPolicy(**({"groups_per_step": 2} | setting))


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "kind",
    [
        dora.MultiVersionPolicy,
        baselines.TailBatchingPolicy,
        baselines.PartialRolloutPolicy,
        baselines.DropAndReplacePolicy,
    ],
)
def test_refuses_more_ahead_than_can_be_counted(kind, value):
    with pytest.raises(ConfigError, match="over_provision"):
        kind(groups_per_step=2, over_provision=value)
