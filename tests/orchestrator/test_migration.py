"""DORA with Algorithm 1 on real replicas: the loop moves running groups, and no token changes."""

import pytest

from loong_jax.orchestrator.dora import algorithm_1
from loong_jax.rollout.hosted_replicas import HostedReplicaGroup
from loong_jax.rollout.hosts import HostSetup
from loong_jax.rollout.process_hosts import ProcessLauncher
from loong_jax.rollout.records import GroupsMigrated
from loong_jax.rollout.versions import VersionStore
from tests.doubles.fake_model import fake_weights
from tests.rollout import real_loop
from tests.rollout.real_loop import GROUP_SIZE, SAMPLING, SEED, slow_engine

NUM_REPLICAS, MOST_STEPS = 3, 1000  # far more than it takes, however slowly a process starts
POLICY = algorithm_1(**real_loop.RESTLESS, gate=None)


def in_threads(store):
    return real_loop.in_threads(store, num_replicas=NUM_REPLICAS)


def in_processes(store):
    setup = HostSetup(
        make_engine=slow_engine,
        group_size=GROUP_SIZE,
        sampling=SAMPLING,
        seed=SEED,
        groups_per_replica=3,
        max_staleness=POLICY.max_staleness,
        heartbeat_s=0.2,
    )
    return HostedReplicaGroup(ProcessLauncher(), store, setup, num_hosts=NUM_REPLICAS)


class Enough(Exception):
    """What the test waits for has happened."""


class UntilMovedGroupsTrain(real_loop.Log):
    """Ends the run once a group with written tokens has moved, and trained."""

    def step(self, step, metrics, groups):
        super().step(step, metrics, groups)
        moved = {
            n for move in self.moves if move["num_tokens_moved"] for n in move["ticket_numbers"]
        }
        if moved & {group.ticket.number for group in self.groups}:
            raise Enough


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "make_replicas", [in_threads, pytest.param(in_processes, marks=pytest.mark.slow)]
)
def test_the_loop_moves_running_groups_and_every_token_stays(make_replicas):
    store, log = VersionStore(POLICY.max_staleness), UntilMovedGroupsTrain()
    store.put(0, fake_weights(0))
    replicas = make_replicas(store)
    run = real_loop.orchestrator(replicas, store, POLICY, num_steps=MOST_STEPS, log=log)
    try:
        with pytest.raises(Enough):
            run.run()
    finally:
        replicas.close(60.0)
    counts = replicas.statistics()
    assert counts["num_tickets_taken"] >= sum(len(move["ticket_numbers"]) for move in log.moves) > 0
    assert counts["num_restarts"] == 0, "nothing is read again when it moves"
    assert set(log.moves[0]) >= set(GroupsMigrated._fields)
    for group in log.groups:
        assert real_loop.content(group) == real_loop.content(real_loop.written_alone(group))
