import dataclasses
import queue
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.errors import LoongError
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.records import (
    BlockDecoded,
    GroupGenerated,
    ReplicaFailed,
    ReplicaIdle,
    SamplingSettings,
)
from loong_jax.rollout.versions import VersionError, VersionStore
from tests.doubles.fake_model import fake_engine, fake_weights
from tests.processes import wait_until
from tests.rollout.written import Watched, content, groups_of

ENGINE = fake_engine()
GROUP_SIZE = 2
LONG = 20


class Harness(Watched):
    """A started group, its store with versions 0 and 1, and its events in order."""

    def __init__(self, num_replicas=1, max_new_tokens=LONG, **options):
        store = VersionStore(1)
        for version in range(2):
            store.put(version, fake_weights(version))
        group = LocalReplicaGroup(
            ENGINE,
            store,
            num_replicas=num_replicas,
            group_size=GROUP_SIZE,
            sampling=SamplingSettings(max_new_tokens=max_new_tokens),
            seed=0,
            **options,
        )
        super().__init__(group, store)

    def __exit__(self, *error):
        super().__exit__(*error)
        assert not [t for t in threading.enumerate() if t.name.startswith("replica-")]


class Gate(threading.Event):
    """As `after_block` it keeps a replica from its next block until the test has said all."""

    def __call__(self, replica):
        assert self.wait(60)


def test_groups_and_blocks_are_reported_with_their_version():
    with Harness() as h:
        assert h.group.groups_per_replica == 4
        h.group.assign(0, 0)
        h.dispatch(0, range(6), 0)
        events = h.until(ReplicaIdle)
        assert sorted(groups_of(events)) == list(range(6))
        assert {g.version for g in groups_of(events).values()} == {0}
        blocks = [e for e in events if isinstance(e, BlockDecoded)]
        num_tokens = sum(len(r.tokens) for g in groups_of(events).values() for r in g.rollouts)
        assert sum(block.num_tokens for block in blocks) == num_tokens
        assert all(b.start_s < b.end_s and b.version == b.replica == 0 for b in blocks)
        assert blocks[0].active_slots == 8


def test_a_version_changes_between_groups_and_is_held_meanwhile():
    with Harness() as h:
        h.group.assign(0, 0)
        h.dispatch(0, [0, 1], 0)
        first = groups_of(h.until(ReplicaIdle))
        h.store.retire(0)
        assert h.store.holders()[0] == {"replica-0": 1}
        h.group.assign(0, 1)
        h.dispatch(0, [0, 1], 1)
        second = groups_of(h.until(ReplicaIdle))
        assert list(h.store.holders()) == [1]
        assert {g.version for g in first.values()} == {0}
        assert {r.versions for g in second.values() for r in g.rollouts} == {((0, 1),)}
        assert content(first) != content(second)
    assert not any(h.store.holders().values())


def test_a_copy_of_a_version_is_gone_before_the_next_is_made(monkeypatch):
    """As where a replica has devices of its own, which need not hold two."""
    copies = []

    def copied(weights):
        assert not any(copy() is not None for copy in copies)
        made = jax.tree.map(jnp.copy, weights)
        copies.append(weakref.ref(made["table"]))
        return made

    monkeypatch.setattr(ENGINE, "load_params", copied)
    with Harness() as h:
        for version in (0, 1):
            h.group.assign(0, version)
            h.dispatch(0, [version], version)
            h.until(ReplicaIdle)
    assert len(copies) == 2


@pytest.mark.parametrize("keep_cache", [True, False])
def test_a_swap_goes_on_with_what_runs_and_only_a_buffer_for_it_takes_that(keep_cache):
    gate = Gate()
    with Harness(after_block=gate) as h:
        h.group.assign(0, 0)
        h.dispatch(0, [0, 1], 0)
        seen = h.until(BlockDecoded)
        h.group.swap(0, 1, keep_cache=keep_cache)
        h.dispatch(0, [2], 1)
        gate.set()
        groups = groups_of(seen + h.until(ReplicaIdle))
        assert list(h.store.holders().values()) == [{}, {"replica-0": 1}]
        h.group.swap(0, 1, keep_cache=keep_cache)  # of an empty replica
    assert sorted(groups) == [0, 1, 2]
    mixed = [r for n in (0, 1) for r in groups[n].rollouts if len(r.versions) > 1]
    assert mixed
    assert {r.versions[0] for r in mixed} == {(0, 0)}
    assert {r.versions[1][1] for r in mixed} == {1}
    assert {r.versions for r in groups[2].rollouts} == {((0, 1),)}
    assert (h.group.statistics()["num_tokens_reprefilled"] == 0) == keep_cache


def test_a_replica_scores_between_two_blocks_under_the_version_of_each_group():
    def score_group(weights, group):
        number = int(weights is store.get(1))
        return group.replace_rollouts(
            tuple(
                dataclasses.replace(r, behavior_logprob=np.array([number])) for r in group.rollouts
            )
        )

    def told(groups, version):
        h.group.score(0, [dataclasses.replace(g, version=version) for g in groups], answers.put)
        return answers.get(timeout=60)

    answers = queue.Queue()
    with Harness(score_group=score_group) as h:
        store = h.store
        h.group.assign(0, 0)
        h.dispatch(0, [0, 1], 0)
        groups = list(groups_of(h.until(ReplicaIdle)).values())
        h.dispatch(0, range(2, 8), 0)
        for version in range(2):
            found = told(groups, version)
            assert [r.behavior_logprob for g in found for r in g.rollouts] == [[version]] * 4
        assert told(groups, 7) is None
        assert not any("score-replica-0" in names for names in store.holders().values())
        assert len(groups_of(h.until(ReplicaIdle))) == 6
    with Harness(score_group=lambda weights, group: 1 / 0) as h:
        h.group.assign(0, 0)
        assert told(groups, 0) is None
        h.until(ReplicaFailed)
    with Harness() as h, pytest.raises(AssertionError, match="score_group"):
        told(groups, 0)


def test_reclaimed_replicas_stand_still_and_lose_nothing_until_they_are_lent():
    with Harness() as h:
        h.group.assign(0, 0)
        h.dispatch(0, range(6), 0)
        expected = groups_of(h.until(ReplicaIdle))
    gate = Gate()
    with Harness(num_replicas=2, num_elastic=1, after_block=gate) as h:
        assert h.group.elastic_replicas == (1,)
        with pytest.raises(AssertionError, match="are not all elastic"):
            h.group.reclaim([0, 1])
        for replica in range(2):
            h.group.assign(replica, 0)
        h.dispatch(1, range(4), 0)
        seen = h.until(BlockDecoded)
        h.group.reclaim([1])
        h.dispatch(0, [4, 5], 0)
        gate.set()
        wait_until(lambda: h.group.statistics().get("num_rests"))
        rested_s = time.monotonic()
        seen += h.until(ReplicaIdle)  # of replica 0 alone
        lent_s = time.monotonic()
        h.group.lend([1])
        seen += h.until(ReplicaIdle)
        blocks = [e for e in seen if isinstance(e, BlockDecoded) and e.replica == 1]
        assert all(e.end_s <= rested_s or e.start_s >= lent_s for e in blocks)
        assert blocks[-1].start_s >= lent_s
        counts = h.group.statistics()
    assert content(groups_of(seen)) == content(expected)
    assert (counts["num_rests"], counts["num_restarts"]) == (1, 0)
    assert counts["num_slots_rested"] > 0


def test_two_replicas_decode_two_versions_at_once():
    with Harness(num_replicas=2) as h:
        for replica in range(2):
            h.group.assign(replica, replica)
            h.dispatch(replica, range(replica * 2000, replica * 2000 + 2000), replica)
        events, versions = [], set()
        while versions != {0, 1}:
            events += h.until(BlockDecoded)
            versions.add(events[-1].version)
        assert not any(isinstance(event, ReplicaIdle) for event in events)
        events += h.until(GroupGenerated, 20)
        assert all(group.version == n // 2000 for n, group in groups_of(events).items())


def test_cancelled_tickets_are_not_reported():
    gate = Gate()
    with Harness(after_block=gate) as h:
        h.group.assign(0, 0)
        h.dispatch(0, range(40), 0)
        h.until(BlockDecoded)
        h.group.cancel(0, range(1, 40))
        gate.set()
        events = h.until(ReplicaIdle)
        assert len(groups_of(events)) < 12
        h.dispatch(0, [50], 0)
        assert sorted(groups_of(h.until(ReplicaIdle))) == [50]
        h.dispatch(0, [60], 0)
        h.group.cancel(0, [60])
        h.group.assign(0, 1)  # possible, since the replica is empty one way or the other
        h.dispatch(0, [70], 1)
        while 70 not in groups_of(h.until(GroupGenerated)):  # 60 may have come before its cancel
            pass


def test_an_error_becomes_an_event():
    with Harness() as h:
        h.group.assign(0, 0)
        h.dispatch(0, [0], 1)
        failed = h.until(ReplicaFailed)[-1]
        assert failed.replica == 0
        assert "version 1 came to a replica that hosts 0" in failed.error
    assert not any(h.store.holders().values())


def test_unknown_versions_are_refused_at_once():
    with Harness() as h, pytest.raises(VersionError):
        h.group.assign(0, 5)


def test_closing_does_not_wait_for_the_work_but_names_who_is_late():
    with Harness() as h:
        h.group.assign(0, 0)
        h.dispatch(0, range(3000), 0)
        h.until(BlockDecoded)
        began = time.monotonic()
    assert time.monotonic() - began < 10

    late = Harness()
    release = threading.Event()
    late.group.start(late.events.put)
    late.group.ask(0, lambda replica: release.wait(30))
    time.sleep(0.3)
    with pytest.raises(LoongError, match="replica-0"):
        late.group.close(0.05)
    release.set()
    late.group.close(10.0)


def test_the_clock_is_the_one_given():
    ticks = iter(np.arange(1000.0, 9000.0))
    with Harness(max_new_tokens=4, clock=lambda: float(next(ticks))) as h:
        h.group.assign(0, 0)
        h.dispatch(0, [0], 0)
        assert h.until(BlockDecoded)[0].start_s == 1000.0
