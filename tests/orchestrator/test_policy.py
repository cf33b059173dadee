"""`decide` as a pure function: what it does in states written out by hand."""

import pytest

from loong_jax.errors import ConfigError
from loong_jax.orchestrator import baselines
from loong_jax.orchestrator.changes import (
    Assign,
    Dispatch,
    Drain,
    Ended,
    EndStale,
    Issue,
    Score,
    SetIssueLimit,
    Train,
)
from loong_jax.orchestrator.dora import DoraPolicy, decide
from loong_jax.orchestrator.ledger import ReplicaState
from tests.orchestrator.ledgers import ledger_of

P2 = DoraPolicy(groups_per_step=2, max_staleness=2, score_at_least=2, max_ahead=3.0)


def decided(ledger, policy, groups_per_replica):
    ledger.groups_per_replica = groups_per_replica
    return decide(ledger, policy)


def test_first_replicas_take_up_the_newest_version():
    assert decided(ledger_of(replicas=(None, None)), P2, 4) == [Assign(0, 0)]


def test_free_places_are_filled_on_the_newest_version_first():
    replicas = (ReplicaState(version=0, draining=True), 1)
    drained = ledger_of(("decoding", 0, 0), replicas=replicas, step=1, newest_version=1)
    assert decided(drained, P2, 3) == [Issue(3, 1)]


def test_admission_stops_where_staleness_could_be_exceeded():
    """Version 0 at step 1 with S = 2: two steps are left, so at most four groups may be open."""
    behind = ledger_of(("verifying", 0), ("verifying", 0), ("verifying", 0), replicas=(0,), step=1)
    assert decided(behind, P2, 8) == [Issue(1, 0)]
    behind.step = 2
    assert decided(behind, P2, 8) == []


def test_a_replica_with_running_responses_keeps_its_version():
    busy = ledger_of(
        ("decoding", 0, 0), ("decoding", 0, 1), replicas=(0, 0), step=1, newest_version=1
    )
    actions = decided(busy, P2, 1)
    assert actions == [Drain(0)]
    one_empty = ledger_of(("decoding", 0, 1), replicas=(0, 0), step=1, newest_version=1)
    assert decided(one_empty, P2, 1) == [Drain(0)]
    one_empty.enter(Drain(0))
    assert decided(one_empty, P2, 1) == [Assign(0, 1)]


def test_the_others_keep_their_version_while_it_can_still_be_trained_on():
    """Two replicas, S = 2: one takes up each new version, the other follows at the next."""
    turned = ledger_of(("decoding", 0, 1), replicas=(1, 0), step=1, newest_version=1)
    assert not any(isinstance(action, Drain) for action in decided(turned, P2, 1))
    later = ledger_of(("decoding", 0, 1), replicas=(1, 0), step=2, newest_version=2)
    assert decided(later, P2, 1) == [Drain(1)]


def test_only_one_replica_is_emptied_at_a_time():
    busy = ledger_of(
        ("decoding", 0, 0), ("decoding", 0, 1), replicas=(0, 0), step=1, newest_version=1
    )
    busy.enter(Drain(0))
    assert not any(isinstance(action, Drain) for action in decided(busy, P2, 1))


def test_judged_groups_are_scored_and_then_trained_oldest_version_first():
    judged = ledger_of(("judged", 1), ("judged", 0), ("judged", 1), step=1, newest_version=1)
    assert decided(judged, P2, 0) == [Score((0, 1))]
    ready = ledger_of(("ready", 1), ("ready", 0), ("ready", 1), step=1, newest_version=1)
    assert decided(ready, P2, 0) == [Train((0, 1))]
    ready.trainer = "training"
    assert decided(ready, P2, 0) != [Train((0, 1))]


def test_groups_past_the_bound_end_stale_and_those_at_it_do_not():
    at_bound = ledger_of(("ready", 0), replicas=(2,), step=2, newest_version=2)
    assert decided(at_bound, P2, 0) == []
    at_bound.step = 3
    assert decided(at_bound, P2, 0) == [EndStale((0,))]


def test_deterministic_batches_follow_the_order_of_issue():
    in_order = DoraPolicy(groups_per_step=2, max_staleness=1, deterministic=True)
    waiting = ledger_of(("decoding", 0, 0), ("judged", 0), ("judged", 0), replicas=(0,))
    assert in_order.next_batch(waiting) is None
    there = ledger_of(("judged", 0), ("decoding", 0, 0), ("judged", 0), replicas=(0,))
    there.enter(Ended((1,), "filtered"))
    assert in_order.next_batch(there) == (0, 2)


def test_deterministic_mode_adds_exactly_what_filtering_took_away():
    in_order = DoraPolicy(groups_per_step=2, max_staleness=0, deterministic=True)
    short = ledger_of(("judged", 0), ("verifying", 0), issue_limit=2)
    short.enter(Ended((1,), "filtered"))
    assert decided(short, in_order, 0) == [SetIssueLimit(3)]
    short.issue_limit = 3
    assert decided(short, in_order, 0) == [Issue(1, 0)]


def test_queued_tickets_go_to_replicas_of_their_version():
    restored = ledger_of(("queued", 0), ("queued", 1), replicas=(1, 0), step=1, newest_version=1)
    restored.enter(Drain(1))
    full = DoraPolicy(groups_per_step=2, max_staleness=2)
    assert decided(restored, full, 2) == [Dispatch(1, (0,), 0), Dispatch(0, (1,), 1)]


def test_an_empty_replica_returns_to_a_version_that_queued_tickets_need():
    restored = ledger_of(("queued", 0), replicas=(1,), step=1, newest_version=1)
    assert decided(restored, P2, 2) == [Assign(0, 0)]


@pytest.mark.parametrize(
    "setting",
    [
        {"groups_per_step": 0},
        {"max_staleness": -1},
        {"max_ahead": 0.0},
        {"max_ahead": float("inf")},
        {"replicas_per_version": 0},
        {"deterministic": True, "over_stale": "wait"},
    ],
)
def test_refuses_settings_that_cannot_work(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        DoraPolicy(**({"groups_per_step": 2} | setting))


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "kind",
    [
        baselines.TailBatchingPolicy,
        baselines.PartialRolloutPolicy,
        baselines.DropAndReplacePolicy,
    ],
)
def test_refuses_more_ahead_than_can_be_counted(kind, value):
    with pytest.raises(ConfigError, match="max_ahead"):
        kind(groups_per_step=2, max_ahead=value)
