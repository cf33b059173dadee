"""Replicas in other processes write what replicas in threads write, and may die at any time."""

import os
import queue
import signal
import time
from typing import Any

import jax
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.rollout.hosted_replicas import HostedReplicaGroup
from loong_jax.rollout.hosts import HostSetup
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.process_hosts import ProcessLauncher
from loong_jax.rollout.publishing import Publisher
from loong_jax.rollout.records import (
    BlockDecoded,
    GroupGenerated,
    GroupsMigrated,
    ReplicaFailed,
    ReplicaIdle,
    SamplingSettings,
)
from loong_jax.rollout.versions import VersionStore
from tests.doubles.fake_model import fake_engine, fake_weights
from tests.doubles.scoring import scored_as_sampled
from tests.processes import wait_until
from tests.rollout.real_loop import slowed
from tests.rollout.written import Watched, content, groups_of

pytestmark = pytest.mark.timeout(900)  # processes that start, beside whatever else runs
GROUP_SIZE = 2
SAMPLING = SamplingSettings(max_new_tokens=20)
SETUP = HostSetup(
    make_engine=fake_engine,
    group_size=GROUP_SIZE,
    sampling=SAMPLING,
    seed=0,
    groups_per_replica=4,
    max_staleness=1,
    heartbeat_s=0.2,
    report_s=0.0,
)


def slow_engine():
    """Takes a second for a response."""
    return slowed(fake_engine(decode_steps=1), 0.05)


class Harness(Watched):
    """A started group, its store with versions 0 and 1, and its events in order."""

    def __init__(self, num_hosts=1, publisher=None, place: Any = ProcessLauncher, **setup):
        store = VersionStore(1)
        store.put(0, fake_weights(0))
        setup = SETUP._replace(**setup)
        group = HostedReplicaGroup(place(), store, setup, num_hosts=num_hosts, publisher=publisher)
        super().__init__(group, store)

    def tell(self, replica, method):
        self.group._post(replica, method, replica=replica)

    def __exit__(self, *error):
        super().__exit__(*error)
        wait_until(lambda: not any(is_alive(pid) for pid in self.group.pids() if pid), 10)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split()[2] != "Z"


@pytest.fixture(scope="module")
def expected():
    """What replicas in threads write, by version."""
    store, found = VersionStore(1), {}
    how = dict(num_replicas=1, group_size=GROUP_SIZE, sampling=SAMPLING, seed=0)
    with Watched(LocalReplicaGroup(fake_engine(), store, **how), store) as h:
        for version in range(2):
            store.put(version, fake_weights(version))
            h.group.assign(0, version)
            h.dispatch(0, range(24), version)
            found[version] = content(groups_of(h.until(ReplicaIdle)))
    return found


def on_ray():
    return pytest.importorskip("loong_jax.rollout.ray_hosts").RayLauncher(num_cpus=0.1)


places = pytest.mark.parametrize(
    "place",
    [ProcessLauncher, pytest.param(on_ray, marks=[pytest.mark.ray, pytest.mark.slow])],
    ids=["processes", "ray"],
)


@places
def test_a_process_writes_what_a_thread_writes_under_every_version(expected, place):
    """One life: two versions, cancelling, pausing; the store's holders; counters."""
    where = place()
    publisher = Publisher(chunk_bytes=1000, share=where.share)  # many chunks
    with Harness(publisher=publisher, place=lambda: where) as h:
        h.group.assign(0, 0)
        h.dispatch(0, range(4), 0)
        events = h.until(ReplicaIdle)
        assert content(groups_of(events)).items() <= expected[0].items()
        assert len(content(groups_of(events))) == 4 * GROUP_SIZE
        blocks = [e for e in events if isinstance(e, BlockDecoded)]
        assert all(b.start_s < b.end_s <= time.monotonic() and b.version == 0 for b in blocks)
        h.store.put(1, fake_weights(1))  # published to the host before `put` returns
        assert publisher.num_bytes == 2 * h.store.get(0)["table"].nbytes
        h.store.retire(0)
        assert h.store.holders()[0] == {"replica-0": 1}
        h.group.assign(0, 1)
        assert list(h.store.holders()) == [1]
        h.tell(0, "pause")
        h.dispatch(0, [4, 5, 6], 1)
        h.group.cancel(0, [5])
        h.tell(0, "resume")
        events = h.until(ReplicaIdle)
        assert content(groups_of(events)).items() <= expected[1].items()
        assert {number for number, _ in content(groups_of(events))} == {4, 6}
    assert h.group.statistics()["num_slots_held"] == 0
    assert not any(h.store.holders().values())


def kill(group, host):
    os.kill(group.pids()[host] or 0, signal.SIGKILL)


@places
def test_killed_processes_cost_what_they_had_not_told_and_groups_move_between_hosts(
    expected, place
):
    """Groups move from one process to another; then each is killed in mid-run, mended, and goes
    on from the drafts: every sample comes out as it would have.
    """
    with Harness(num_hosts=2, place=place, make_engine=slow_engine) as h:
        for replica in range(2):
            h.group.assign(replica, 0)
        h.tell(1, "pause")
        h.dispatch(0, range(8), 0)
        seen = h.until(BlockDecoded, 2)
        h.group.migrate(0, 1, [2, 3, 4, 5, 6, 7])
        seen += h.until(GroupsMigrated)
        moved = seen[-1]
        assert moved[:2] == (0, 1)
        assert moved.num_tokens_moved > 0
        assert moved.num_tokens_reprefilled == 0
        h.tell(1, "resume")
        seen += h.until(BlockDecoded, 4)
        kill(h.group, 1)
        seen += h.until(ReplicaFailed, allowed=[ReplicaFailed])
        assert seen[-1].replica == 1
        assert ("SIGKILL" if place is ProcessLauncher else "ActorDied") in seen[-1].error
        done = {number for number, _ in content(groups_of(seen))}
        h.group.mend(1)
        h.group.assign(1, 0)
        left = [n for n in moved.ticket_numbers if n not in done]
        assert h.group._sent.partials(left, 0), "some of it was told"
        h.dispatch(1, left, 0)
        seen += h.until(GroupGenerated, 8 - len({number for number, _ in content(groups_of(seen))}))
        assert content(groups_of(seen)) == {key: e for key, e in expected[0].items() if key[0] < 8}
        h.group.mend(0)  # nothing to mend
    counts = h.group.statistics()
    assert counts["num_restarts"] > 0
    assert counts["num_tokens_reprefilled"] > 0


def test_a_swap_in_a_process_goes_on_with_what_runs():
    with Harness(make_engine=slow_engine) as h:
        h.store.put(1, fake_weights(1))
        h.group.assign(0, 0)
        h.dispatch(0, [0, 1], 0)
        seen = h.until(BlockDecoded)
        h.group.swap(0, 1, keep_cache=True)
        h.store.retire(0)
        seen += h.until(ReplicaIdle)
        versions = {
            r.versions for e in seen if isinstance(e, GroupGenerated) for r in e.group.rollouts
        }
        assert {tuple(v for _, v in of) for of in versions} == {(0, 1)}
        assert list(h.store.holders()) == [1]
    assert h.group.statistics()["num_tokens_reprefilled"] == 0


def test_a_host_scores_what_it_is_given_or_says_that_it_cannot():
    answers = queue.Queue()
    with Harness(make_engine=coarse_engine, make_scorer=make_scorer) as h:
        assert h.group.scorers(0) == ()  # until it is ready
        h.group.assign(0, 0)
        h.dispatch(0, [0, 1], 0)
        events = h.until(ReplicaIdle)
        assert (h.group.scorers(0), h.group.scorers(1)) == ((0,), ())
        groups = [event.group for event in events if isinstance(event, GroupGenerated)]
        h.group.score(0, groups, answers.put)
        assert content_of(answers.get(timeout=60)) == content_of(scored_as_sampled(groups))
        os.kill(h.group.pids()[0] or 0, signal.SIGSTOP)
        h.group.score(0, groups, answers.put)
        kill(h.group, 0)
        assert answers.get(timeout=60) is None
        assert h.group.scorers(0) == ()
        h.group.score(0, groups, answers.put)
        assert answers.get(timeout=60) is None


def coarse_engine():
    return fake_engine(mantissa_bits=1)


def make_scorer():
    def score(weights, group):
        """By the version's own weights, not as the engine rounds them."""
        jax.tree.map(np.testing.assert_array_equal, weights, fake_weights(group.version))
        return scored_as_sampled([group])[0]

    return score


def content_of(groups):
    return [(r.ticket, r.attempt, r.behavior_logprob.tolist()) for g in groups for r in g.rollouts]


def test_a_host_that_ends_at_once_or_stays_silent_is_lost():
    with Harness(make_engine=no_engine) as h:
        h.group.assign(0, 0)
        failed = h.until(ReplicaFailed, allowed=[ReplicaFailed])[-1]
        assert failed.error == "host 0: RuntimeError: no engine here"
    with Harness() as h:
        h.group.assign(0, 0)
        h.dispatch(0, range(400), 0)
        h.until(BlockDecoded)
        h.group._silence_timeout_s = 1.0
        os.kill(h.group.pids()[0] or 0, signal.SIGSTOP)
        failed = h.until(ReplicaFailed, allowed=[ReplicaFailed])[-1]
        assert "silent for" in failed.error
    assert not any(h.store.holders().values())


def no_engine():
    raise RuntimeError("no engine here")


def test_an_error_in_a_replica_leaves_its_process_alone(expected):
    with Harness() as h:
        h.group.assign(0, 0)
        h.dispatch(0, [0], 1)
        failed = h.until(ReplicaFailed, allowed=[ReplicaFailed])[-1]
        assert "version 1 came to a replica that hosts 0" in failed.error
        pid = h.group.pids()
        h.group.mend(0)
        h.group.assign(0, 0)
        h.dispatch(0, [1], 0)
        assert content(groups_of(h.until(ReplicaIdle))).items() <= expected[0].items()
        assert h.group.pids() == pid


def test_cores_that_there_are_not_are_refused():
    with pytest.raises(ConfigError, match="cores"):
        ProcessLauncher(cores=(4096,))
