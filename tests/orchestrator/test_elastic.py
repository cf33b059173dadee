"""Elastic roles of real replicas: the trainer takes devices back and lends them, and no work is
lost on the way.
"""

import threading
import time

import pytest

from loong_jax.orchestrator.baselines import SynchronousPolicy
from loong_jax.orchestrator.changes import Assign
from loong_jax.orchestrator.dora import (
    ElasticGate,
    algorithm_1,
    decide,
)
from loong_jax.orchestrator.ledger import Balance, ReplicaState
from loong_jax.rl import events as rl_events
from loong_jax.rollout.versions import VersionStore
from tests.doubles.fake_model import fake_weights
from tests.orchestrator.ledgers import ledger_of
from tests.rollout import real_loop

NUM_REPLICAS, ELASTIC, NUM_STEPS, TRAINING_S = 3, (1, 2), 5, 0.2
LENDING = algorithm_1(
    **real_loop.RESTLESS,
    gate=ElasticGate(threshold=0.05, lowest=0.05, raised_by=0.1, lowered_by=0.05),
)


class BusyTrainer(real_loop.Trainer):
    """Needs its devices for a while; `windows` are the times of it."""

    def __init__(self, store):
        super().__init__(store)
        self.windows = []

    def train(self, step, groups):
        start_s = time.monotonic()

        def end():
            self.windows.append((start_s, time.monotonic()))
            self.emit(rl_events.StepTrained(step, {}, start_s, time.monotonic()))

        threading.Timer(TRAINING_S, end).start()


class Log(real_loop.Log):
    def __init__(self):
        super().__init__()
        self.blocks = []

    def event(self, record):
        super().event(record)
        if record["kind"] == "decode" and record["replica"] in ELASTIC:
            self.blocks.append(record)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", [LENDING, SynchronousPolicy(groups_per_step=2)], ids=type)
def test_lent_devices_generate_between_steps_and_what_they_wrote_goes_on(policy):
    store, log = VersionStore(policy.max_staleness), Log()
    store.put(0, fake_weights(0))
    replicas = real_loop.in_threads(store, num_replicas=NUM_REPLICAS, num_elastic=len(ELASTIC))
    trainer = BusyTrainer(store)
    run = real_loop.orchestrator(
        replicas, store, policy, num_steps=NUM_STEPS, trainer=trainer, log=log
    )
    assert [replica.elastic for replica in run.ledger.replicas] == [False, True, True]
    try:
        final = run.run()
    finally:
        replicas.close(60.0)
    counts = replicas.statistics()
    assert final.counts()["trained"] == NUM_STEPS * policy.groups_per_step
    assert counts["num_rests"] > 0
    assert (counts["num_restarts"], counts["num_tokens_reprefilled"]) == (0, 0)
    assert len(trainer.windows) == NUM_STEPS
    for start_s, end_s in trainer.windows:
        for replica in ELASTIC:
            inside = [
                b for b in log.blocks if b["replica"] == replica and start_s < b["start_s"] < end_s
            ]
            assert len(inside) <= 1, "no block after the one that reclaiming may have met"
    assert log.blocks, "and they do generate"
    for group in log.groups:
        assert real_loop.content(group) == real_loop.content(real_loop.written_alone(group))
    if policy is LENDING:
        assert counts["num_slots_rested"] > 0, "one staying replica cannot take all in"


@pytest.mark.parametrize(("version", "lets_go"), [(1, True), (2, False), (4, False), (None, False)])
def test_an_empty_replica_that_rests_holds_no_version_the_window_has_left(version, lets_go):
    """Its version would take the place of the next one in the version store."""
    away = ReplicaState(version=version, elastic=True, generating=False)
    ledger = ledger_of(
        replicas=(4, away),
        groups_per_replica=3,
        step=4,
        newest_version=4,
        trainer="training",
        balance=Balance(newest_version=4, num_generating=1),
    )
    actions = decide(ledger, LENDING)
    assert (Assign(1, 4) in actions) == lets_go
