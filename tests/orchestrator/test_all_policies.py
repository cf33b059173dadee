"""Every policy on any simulated schedule: nothing lost, nothing too old, nothing starved."""

import hashlib
import itertools
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loong_jax.orchestrator import baselines
from loong_jax.orchestrator.dora import DoraPolicy, ElasticGate, Triggers, algorithm_1
from loong_jax.orchestrator.simulation.model import CostModel, LengthTrace
from loong_jax.orchestrator.simulation.run import QuietLog, orchestrator_for
from loong_jax.orchestrator.simulation.world import Layout, SimulatedWorld
from loong_jax.rollout import records
from tests.processes import run_python

STEPS = 5


@st.composite
def dora_policies(draw, **common):
    over_stale = draw(st.sampled_from(["avoid", "wait", "regenerate"]))
    triggers = draw(st.sampled_from([None, Triggers(period_s=5.0, least_gap_s=1.0)]))
    may_be_ordered = over_stale == "avoid" and triggers is None
    return DoraPolicy(
        **common,
        over_stale=over_stale,
        max_ahead=draw(st.sampled_from([0.5, 1.0, 1.5, 3.0])),
        triggers=triggers,
        replicas_per_version=draw(st.sampled_from([None, 1, 2, 3])),
        gate=draw(st.sampled_from([None, ElasticGate()])),
        score_at_least=draw(st.sampled_from([None, 1, 8])),
        generators_score=draw(st.booleans()),
        deterministic=may_be_ordered and draw(st.booleans()),
    )


@st.composite
def policies(draw):
    groups, staleness = draw(st.integers(1, 5)), draw(st.integers(0, 3))
    common = {"groups_per_step": groups}
    ahead = {"max_ahead": draw(st.sampled_from([1.0, 1.5, 3.0]))}
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return baselines.SynchronousPolicy(**common)
    if kind == 1:
        return baselines.TailBatchingPolicy(**common, **ahead)
    if kind == 2:
        return baselines.OneStepOffPolicy(**common)
    if kind == 3:
        keep = draw(st.booleans())
        return baselines.PartialRolloutPolicy(
            **common, **ahead, max_staleness=staleness, keep_cache=keep
        )
    if kind == 4:
        return baselines.DropAndReplacePolicy(**common, **ahead, max_staleness=staleness)
    return draw(dora_policies(**common, max_staleness=staleness))


@st.composite
def worlds(draw):
    num_replicas, elastic = draw(st.integers(1, 5)), draw(st.integers(0, 5))
    elastic = min(elastic, num_replicas)
    trace = LengthTrace(
        median_tokens=20,
        sigma=draw(st.sampled_from([0.0, 1.0, 2.0])),
        cap_tokens=400,
        group_size=draw(st.integers(1, 3)),
        prompt_tokens=8,
        seed=draw(st.integers(0, 2**20)),
    )
    cost = CostModel(
        decode_base_s=0.03,
        train_device_s=draw(st.sampled_from([1e-4, 1e-2, 0.1])),
        step_fixed_s=0.5,
        cache_capacity_tokens=draw(st.sampled_from([50.0, 1e6])),
    )
    own = draw(st.integers(0 if elastic else 1, 2))
    layout = Layout(
        num_accelerators=num_replicas + own,
        accelerators_per_replica=1,
        slots_per_replica=draw(st.integers(1, 8)),
        num_elastic=elastic,
        num_trainer_accelerators=own,
    )
    return SimulatedWorld(layout=layout, trace=trace, cost=cost, reuses_cache=draw(st.booleans()))


def writes_once(policy):
    """True where every problem trains in its first issue, so within S + 1 steps of it."""
    if isinstance(policy, DoraPolicy):
        return policy.over_stale == "wait"
    waiting = (
        baselines.SynchronousPolicy,
        baselines.OneStepOffPolicy,
        baselines.PartialRolloutPolicy,
    )
    return isinstance(policy, waiting)


class CheckedLog(QuietLog):
    """Looks at the run whenever a step has ended.

    Nobody starves: what is still to be written may still be used by a later step, so a ticket of
    version v has ended by the end of step v + S + 1; and tail batching puts no problem back for
    longer than it takes to fill a batch of them.
    """

    def __init__(self, policy):
        self.policy, self.run = policy, None

    def step(self, step, metrics, groups):
        ledger, policy = self.run.ledger, self.policy
        for ticket in ledger.tickets.in_phase("queued", "decoding"):
            assert ticket.version >= step - policy.max_staleness
        if isinstance(policy, baselines.TailBatchingPolicy):
            extra = int(policy.max_ahead * policy.groups_per_step) - policy.groups_per_step
            assert ledger.source.num_deferred < policy.groups_per_step + max(1, extra)


def check_invariants(policy, world):
    run = orchestrator_for(world, policy, STEPS)
    run.log = CheckedLog(policy)
    run.log.run = run
    final = run.run()
    counts = final.counts()
    assert counts["issued"] == sum(n for name, n in counts.items() if name != "issued")
    assert counts["trained"] == STEPS * policy.groups_per_step
    assert not run.ledger.tickets
    trained = [group for _, _, groups in world.trained for group in groups]
    assert len({group.ticket.number for group in trained}) == len(trained)
    for _, step, groups in world.trained:
        assert len(groups) == policy.groups_per_step
        for group in groups:
            assert 0 <= step - 1 - group.version <= policy.max_staleness
            versions = world.versions_of[group.ticket.number]
            assert versions[0] == group.version
            if not policy.mixes_versions:
                assert versions == [group.version]
            assert versions == sorted(versions)
        if writes_once(policy):
            assert all(group.ticket.issue == 0 for group in groups)
    for replica in world.replicas:
        assert not replica.tickets(), "a slot is still taken after the end"
        assert replica.active == 0
    assert [mark["step"] for mark in world.marks] == list(range(1, STEPS + 1))


@settings(max_examples=40)
@given(policy=policies(), world=worlds())
def test_invariants_hold_for_every_policy(policy, world):
    check_invariants(policy, world)


@pytest.mark.release
@pytest.mark.timeout(900)
def test_invariants_hold_on_thousands_of_schedules():
    """In a process of its own, where nothing checks types at every call: that is most of the time.

    It also holds `test_staleness_zero_is_synchronous_bit_for_bit` to many more of them.
    """
    done = run_python("-m", "tests.orchestrator.test_all_policies", "2000", timeout=850)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2000 schedules" in done.stdout


def small_world(**changes):
    trace = LengthTrace(
        median_tokens=20, sigma=1.5, cap_tokens=400, group_size=2, prompt_tokens=8, seed=3
    )
    layout = Layout(
        num_accelerators=4, accelerators_per_replica=1, slots_per_replica=8, num_elastic=2
    )
    cost = CostModel(step_fixed_s=0.2, publish_s=0.1, switch_s=0.1, assign_s=0.1)
    return SimulatedWorld(layout=layout, trace=trace, cost=cost, **changes)


@st.composite
def policies_without_staleness(draw):
    common = {"groups_per_step": draw(st.integers(1, 5)), "max_staleness": 0}
    ahead = {"max_ahead": draw(st.sampled_from([1.0, 1.5, 3.0]))}
    if draw(st.booleans()):
        return draw(dora_policies(**common))
    keep = draw(st.booleans())
    return baselines.PartialRolloutPolicy(**common, **ahead, keep_cache=keep)


def digest(policy, world):
    """Of every bit that trains, in order: what a response holds follows from this record of it."""
    orchestrator_for(world, policy, STEPS).run()
    digest = hashlib.sha256()
    for _, step, groups in world.trained:
        for group in groups:
            ticket = group.ticket
            versions = tuple(world.versions_of[ticket.number])
            lengths = world.trace.lengths(ticket.problem.seed, ticket.issue)
            record = (step, ticket.number, ticket.key, group.version, versions, lengths.tobytes())
            digest.update(repr(record).encode())
    return digest.hexdigest()


def check_staleness_zero(policy, make_world):
    synchronous = baselines.SynchronousPolicy(groups_per_step=policy.groups_per_step)
    assert digest(policy, make_world()) == digest(synchronous, make_world())


@settings(max_examples=15)
@given(policy=policies_without_staleness(), world=worlds())
def test_staleness_zero_is_synchronous_bit_for_bit(policy, world):
    check_staleness_zero(policy, lambda: copy_of(world))


def copy_of(world):
    return SimulatedWorld(
        layout=world.layout, trace=world.trace, cost=world.cost, reuses_cache=world._reuses_cache
    )


def test_waiting_trains_every_problem_in_its_first_issue():
    """Nothing is dropped or written twice: 0 tokens wasted, whatever the tail."""
    world = small_world()
    orchestrator_for(world, algorithm_1(groups_per_step=4), 8).run()
    assert all(g.ticket.issue == 0 for _, _, groups in world.trained for g in groups)
    assert world.marks[-1].get("tokens_wasted", 0) == 0


def test_dropping_loses_long_responses_and_tail_batching_does_not():
    world = small_world()
    orchestrator_for(world, baselines.DropAndReplacePolicy(groups_per_step=2), 8).run()
    assert world.marks[-1]["tokens_wasted"] > 0
    tails = small_world()
    run = orchestrator_for(tails, baselines.TailBatchingPolicy(groups_per_step=4), 8)
    run.run()
    issues = [g.ticket.issue for _, _, groups in tails.trained for g in groups]
    assert any(issues), "a round of long ones was run"


def test_partial_rollouts_mix_versions_and_prefill_again():
    world = small_world()
    policy = baselines.PartialRolloutPolicy(groups_per_step=3, max_ahead=2.0)
    orchestrator_for(world, policy, 8).run()
    mixed = [versions for versions in world.versions_of.values() if len(versions) > 1]
    assert mixed
    assert world.marks[-1]["tokens_reprefilled"] > 0


def test_the_gate_has_hysteresis():
    """At a benefit between two thresholds it lends and refuses in turns, not at every step."""
    gate = ElasticGate(threshold=0.4)
    lends, raised = gate.decide(0.42, 0.4)
    assert (lends, raised) == (True, pytest.approx(0.45))
    refused, lowered = gate.decide(0.42, raised)
    assert (refused, lowered) == (False, pytest.approx(0.42))
    assert gate.decide(0.0, gate.lowest) == (False, gate.lowest)
    assert gate.decide(1.0, gate.highest) == (True, gate.highest)


def test_decide_is_a_pure_function_of_the_state():
    """Asked twice, it answers the same and has changed nothing; so it does in a new process."""
    world = small_world()
    run = orchestrator_for(world, algorithm_1(groups_per_step=3), STEPS)
    other = orchestrator_for(small_world(), run.settings.scheduler, STEPS)
    policy, seen = run.settings.scheduler, itertools.count()
    act = run._act

    def ask_twice():
        before = records.encode(run.ledger.snapshot())
        first = policy.decide(run.ledger, world.now)
        assert records.encode(run.ledger.snapshot()) == before
        other.ledger.restore(records.decode(before))
        for ledger in (other.ledger, run.ledger):
            assert policy.decide(ledger, world.now) == first
        act()
        next(seen)

    run._act = ask_twice
    run.run()
    assert next(seen) > 10


def check_many(num_schedules):
    """The two properties without a type checker; raises where one fails."""
    many = settings(
        max_examples=num_schedules, deadline=None, suppress_health_check=list(HealthCheck)
    )
    fewer = settings(many, max_examples=num_schedules // 5)
    many(given(policy=policies(), world=worlds())(check_invariants))()

    def check_zero(policy, world):
        check_staleness_zero(policy, lambda: copy_of(world))

    fewer(given(policy=policies_without_staleness(), world=worlds())(check_zero))()
    print(f"{num_schedules} schedules")


if __name__ == "__main__":
    check_many(int(sys.argv[1]))
