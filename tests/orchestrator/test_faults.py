"""Failures of infrastructure and of data, apart: each with its budget, its pause and its error."""

import collections
import dataclasses

import pytest

from loong_jax.orchestrator import faults
from loong_jax.orchestrator.baselines import OneStepOffPolicy
from loong_jax.orchestrator.dora import DoraPolicy, algorithm_1
from loong_jax.orchestrator.executor import Inbox
from loong_jax.orchestrator.faults import BudgetSpent, FaultBudget, RunStalled, WorkerLost
from loong_jax.orchestrator.ledger import ReplicaState
from loong_jax.rl import events as rl_events
from loong_jax.rollout import records
from tests.doubles.fake_world import FakeTimes, FakeWorld
from tests.orchestrator.ledgers import ledger_of
from tests.orchestrator.test_loop import make_run


class MortalWorld(FakeWorld):
    """Replicas die at given moments, or every time they are given work."""

    def __init__(self, *, deaths=(), always_dies=(), **kwargs):
        super().__init__(**kwargs)
        self.always_dies, self.mended, self.sent = set(always_dies), [], collections.Counter()
        self.dead, self.tickets = set(), {}
        for at_s, replica in deaths:
            self._after(at_s, lambda r=replica: self.die(r))

    def die(self, replica):
        if replica not in self.dead:
            self.dead.add(replica)
            self.decoding[replica].clear()
            self.hosted[replica] = None
            self.put(records.ReplicaFailed(replica, "its machine is gone"))

    def assign(self, replica, version):
        assert replica not in self.dead, "a replica in quarantine is left alone"
        super().assign(replica, version)

    def dispatch(self, replica, tickets, version):
        assert replica not in self.dead, "a replica in quarantine is given no work"
        self.sent.update((t.number, version) for t in tickets)
        self.tickets |= {ticket.number: ticket for ticket in tickets}
        super().dispatch(replica, tickets, version)
        if replica in self.always_dies:
            self._after(0.01, lambda: self.die(replica))

    def migrate(self, source, target, ticket_numbers):
        for number in set(ticket_numbers) & self.decoding[source]:
            self.decoding[source].remove(number)
            super().dispatch(target, [self.tickets[number]], self.hosted[target])
        event = records.GroupsMigrated(source, target, tuple(ticket_numbers), 0, 0)
        self.put(event)

    def mend(self, replica):
        self.mended.append((self.now, replica))
        self.dead.discard(replica)


POLICIES = {
    "dora": DoraPolicy(groups_per_step=3, max_staleness=1),
    "ordered": DoraPolicy(groups_per_step=3, max_staleness=1, deterministic=True),
    "several versions": algorithm_1(groups_per_step=3, max_staleness=1),
    "one step off": OneStepOffPolicy(groups_per_step=3),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", POLICIES)
def test_groups_of_a_dead_replica_are_written_again_under_their_version(kind):
    deaths = [(0.2, 0), (2.0, 1), (2.1, 0), (5.0, 1)]
    world = MortalWorld(seed=2, num_replicas=2, deaths=deaths)
    run = make_run(world, policy=POLICIES[kind])
    counts = run.run().counts()
    assert counts["trained"] == 18
    assert len(world.mended) >= 3
    versions = collections.defaultdict(set)
    for ticket, version in world.sent:
        versions[ticket].add(version)
    assert all(len(found) == 1 for found in versions.values())
    assert max(world.sent.values()) > 1, "some group was sent twice"
    written = [ticket for ticket, _ in world.versions_seen]
    assert len(set(written)) == len(written)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", POLICIES)
def test_a_run_survives_its_only_replica_at_any_moment(kind):
    for moment in range(1, 30):
        world = MortalWorld(seed=moment, num_replicas=1, deaths=[(0.3 * moment, 0)])
        counts = make_run(world, policy=POLICIES[kind], total_steps=4).run().counts()
        assert counts["trained"] == 12


def test_an_alarm_that_is_due_comes_before_events_that_wait():
    now = 0.0
    inbox = Inbox(lambda: now, None)
    inbox.alarm(2.0, "alarm")
    for event in range(3):
        inbox.put(event)
    assert inbox.next(1.0) == 0
    now = 2.0
    assert [inbox.next(1.0) for _ in range(3)] == ["alarm", 1, 2]


def test_quarantine_doubles_and_ends_with_the_budget():
    world = MortalWorld(seed=1, num_replicas=1, always_dies=[0])
    run = make_run(world, policy=DoraPolicy(groups_per_step=2))
    run.settings = dataclasses.replace(run.settings, faults=FaultBudget(replica_losses=4))
    with pytest.raises(WorkerLost, match=r"5 times in a row.*allows 4.*machine is gone"):
        run.run()
    at_s = [moment for moment, _ in world.mended]
    pauses = [b - a for a, b in zip([0.0, *at_s], at_s, strict=False)]
    assert pauses == pytest.approx([1.01, 2.01, 4.01, 8.01])


def test_one_bad_replica_does_not_stop_the_others():
    world = MortalWorld(seed=1, num_replicas=3, always_dies=[1], times=FakeTimes(train_s=0.1))
    run = make_run(world, policy=DoraPolicy(groups_per_step=2), total_steps=4)
    run.settings = dataclasses.replace(run.settings, faults=FaultBudget(replica_losses=100))
    assert run.run().counts()["trained"] == 8


def test_a_trainer_that_fails_is_told_of_once_and_what_then_goes_on():
    world = FakeWorld(seed=1)
    failed = rl_events.WorkerFailed("trainer/train", "own.py:Mine gave 7. Return 8.")
    world._after(0.1, lambda: world.put(failed))
    with pytest.raises(
        WorkerLost, match=r"Return 8\. What is saved is intact; once the cause is mended, .*\.$"
    ):
        make_run(world, policy=DoraPolicy(groups_per_step=2)).run()


def test_an_answer_whose_verifier_was_lost_is_judged_again():
    """And only that answer; the group trains as if nothing had been."""
    asked = collections.Counter()

    def first_time_lost(uid, number, attempt):
        asked[number, attempt] += 1
        return "broken" if attempt == 1 and asked[number, attempt] == 1 else "mixed"

    world = FakeWorld(seed=1, outcome_of=first_time_lost)
    final = make_run(world, policy=DoraPolicy(groups_per_step=2)).run()
    assert final.counts()["ungradable"] == 0
    judged = {number for step, batch in world.trained for number, _ in batch}
    for number in judged:
        assert [asked[number, attempt] for attempt in range(4)] == [1, 2, 1, 1]


def test_a_verifier_that_stays_lost_makes_the_answer_ungradable_in_the_end():
    asked = collections.Counter()

    def lost(uid, number, attempt):
        asked[number, attempt] += 1
        return "broken"

    world = FakeWorld(seed=1, outcome_of=lost)
    run = make_run(world, policy=DoraPolicy(groups_per_step=2))
    run.settings = dataclasses.replace(run.settings, faults=FaultBudget(failed_tickets=7))
    with pytest.raises(BudgetSpent, match="7 tickets since step 0"):
        run.run()
    assert max(asked.values()) == FaultBudget().verifications


def test_data_failures_are_not_tried_again():
    asked = collections.Counter()

    def slow_answers(uid, number, attempt):
        asked[number, attempt] += 1
        return "timeout" if number % 2 else "mixed"

    final = make_run(
        FakeWorld(seed=1, outcome_of=slow_answers), policy=DoraPolicy(groups_per_step=2)
    ).run()
    assert final.counts()["ungradable"] > 0
    assert max(asked.values()) == 1


@pytest.mark.parametrize(
    ("times", "blocker"),
    [
        (FakeTimes(generate_s=1e9), r"replicas \[0.*\] are silent while they decode"),
        (FakeTimes(verify_s=1e9), "no verdict came for tickets"),
        (FakeTimes(train_s=1e9), "the trainer is still training"),
        (FakeTimes(score_s=1e9), "the trainer is still scoring"),
        (FakeTimes(publish_s=1e9), "the trainer is still publishing"),
    ],
)
def test_the_watchdog_names_what_blocks(times, blocker):
    policy = DoraPolicy(groups_per_step=2, max_staleness=0)
    with pytest.raises(RunStalled, match=blocker):
        make_run(FakeWorld(seed=1, times=times), policy=policy).run()


def test_what_blocks_when_nobody_is_at_work():
    lost = ledger_of(replicas=[ReplicaState(quarantined=True)])
    assert faults.what_blocks(lost) == "every replica is in quarantine"
    assert "decides nothing" in faults.what_blocks(ledger_of(replicas=(1,)))
    assert "versions [0]" in faults.what_blocks(ledger_of(("queued", 0), replicas=(1,)))


def test_pauses_double_up_to_a_limit_however_long_it_lasts():
    budget = FaultBudget(verifications=10_000, back_off_s=1.0, max_back_off_s=60.0)
    assert [budget.pause_s(n) for n in (1, 2, 6, 7, 5000)] == [1, 2, 32, 60, 60]
    assert FaultBudget(back_off_s=0.0).pause_s(5000) == 0
