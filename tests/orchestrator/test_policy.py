"""`decide` as a pure function: what it does in states written out by hand."""

import functools
import math

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
from loong_jax.orchestrator.curriculum import GrowingContext, PassRates
from loong_jax.orchestrator.dora import DoraPolicy, decide
from loong_jax.orchestrator.faults import FaultBudget
from loong_jax.orchestrator.ledger import ReplicaState
from loong_jax.orchestrator.simulation.world import Layout
from loong_jax.rollout.reuse import GroupReuse
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


def refused(make, *settings):
    return [(make, one, said) for one, said in settings]


DORA = functools.partial(DoraPolicy, groups_per_step=2)
LAYOUT = functools.partial(Layout, num_accelerators=8, num_elastic=1)
AHEAD = [({"max_ahead": value}, "max_ahead") for value in (0.5, math.nan, math.inf)]


@pytest.mark.parametrize(
    ("make", "setting", "said"),
    [
        *refused(
            DORA,
            ({"groups_per_step": 0}, "groups_per_step"),
            ({"max_staleness": -1}, "max_staleness"),
            ({"max_ahead": 0.0}, "max_ahead"),
            ({"max_ahead": math.inf}, "max_ahead"),
            ({"replicas_per_version": 0}, "replicas_per_version"),
            ({"deterministic": True, "over_stale": "wait"}, "deterministic"),
        ),
        *refused(functools.partial(baselines.TailBatchingPolicy, groups_per_step=2), *AHEAD),
        *refused(functools.partial(baselines.PartialRolloutPolicy, groups_per_step=2), *AHEAD),
        *refused(functools.partial(baselines.DropAndReplacePolicy, groups_per_step=2), *AHEAD),
        *refused(
            GroupReuse,
            ({"share": 1.0}, r"\[0, 1\)"),
            ({"share": -0.1}, r"\[0, 1\)"),
            ({"share": 0.5, "max_reads": 0}, "at least 1"),
            ({"share": 0.75}, "Raise max_reads"),
        ),
        *refused(
            FaultBudget,
            ({"replica_losses": 0}, "replica_losses"),
            ({"back_off_s": -1.0}, "back_off_s"),
        ),
        *refused(
            LAYOUT,  # those that cannot train, or are not whole
            ({"num_accelerators": 10}, "are not replicas of 4"),
            ({"num_elastic": 3}, "num_elastic"),
            ({"num_elastic": 0}, "no accelerator can train"),
        ),
        *refused(
            PassRates,
            ({"floors": ((1, 0.1),)}, "begin with step 0"),
            ({"floors": ((0, 0.1), (0, 0.2))}, "rising steps"),
            ({"ceilings": ((0, 1.1),)}, r"outside \[0, 1\]"),
            ({"floors": ((0, 0.0), (5, 0.8)), "ceilings": ((0, 0.7),)}, "at step 5 the floor 0.8"),
            ({"weight": 0.0}, "weight=0.0"),
            ({"pause": 0}, "pause=0"),
        ),
        *refused(
            GrowingContext,
            ({"limits": (0, 8)}, "rising numbers"),
            ({"limits": (8, 8)}, "rising numbers"),
            ({"limits": (8,), "near": 1.5}, "near=1.5"),
        ),
    ],
)
def test_refuses_settings_that_cannot_work(make, setting, said):
    with pytest.raises(ConfigError, match=said):
        make(**setting)
