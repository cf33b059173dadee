"""The event loop on a virtual clock: thousands of schedules, no thread, no array program.

Invariants: one version per response, staleness bounded at admission and at consumption, every
ticket in exactly one end, deterministic mode independent of timing, a resumed run equal to one
that was never interrupted.
"""

import dataclasses
import os
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loong_jax import interrupts
from loong_jax.errors import ConfigError, LoongError
from loong_jax.orchestrator.changes import (
    Assign,
    Dispatch,
    EndStale,
    Issue,
    Lend,
    Migrate,
    Swap,
    Train,
)
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.orchestrator.faults import RunStalled
from loong_jax.orchestrator.simulation.run import CountedVersions
from loong_jax.orchestrator.tickets import MixedStream, TicketSource
from tests.doubles.fake_world import FakeTimes, FakeWorld, loop_in, problem_at


def outcomes(uid, number, attempt):
    """Decided by the problem: a fifth all right, a fifth all wrong, some broken verifiers."""
    kind = int(uid.split("/")[1]) % 10
    if kind in (0, 1):
        return "right"
    if kind in (2, 3):
        return "wrong"
    if kind == 4:
        return "broken"
    if kind == 5:
        return "broken" if attempt == 0 else "mixed"
    return "mixed"


def make_run(world, *, policy, total_steps=6, max_issues=1, checkpoint_every=2):
    return loop_in(
        world,
        dict(num_steps=total_steps, scheduler=policy, checkpoint_every=checkpoint_every),
        tickets=TicketSource(MixedStream(streams=(problem_at,)), max_issues=max_issues),
        versions=CountedVersions(),
    )


policies = st.builds(
    DoraPolicy,
    groups_per_step=st.integers(1, 6),
    max_staleness=st.integers(0, 3),
    max_ahead=st.sampled_from([0.3, 1.0, 4.0]),
    replicas_per_version=st.integers(1, 3),
    score_at_least=st.integers(1, 8),
    deterministic=st.booleans(),
)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**20),
    policy=policies,
    num_replicas=st.integers(1, 4),
    groups_per_replica=st.integers(1, 6),
    stragglers=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_invariants_hold_on_any_schedule(
    seed, policy, num_replicas, groups_per_replica, stragglers
):
    world = FakeWorld(
        seed=seed,
        num_replicas=num_replicas,
        groups_per_replica=groups_per_replica,
        times=FakeTimes(straggler_share=stragglers),
        outcome_of=outcomes,
    )
    run = make_run(world, policy=policy, max_issues=1 if policy.deterministic else 2)
    final = run.run()
    counts = final.counts()
    assert counts["issued"] == sum(n for name, n in counts.items() if name != "issued")
    assert counts["trained"] == 6 * policy.groups_per_step
    assert not run.ledger.tickets
    written = dict(world.versions_seen)
    for step, batch in world.trained:
        assert len(batch) == policy.groups_per_step
        for ticket, version in batch:
            assert written[ticket] == version
            assert 0 <= step - 1 - version <= policy.max_staleness
    assert run.log.steps == list(range(1, 7))


@settings(max_examples=10)
@given(
    seeds=st.tuples(st.integers(0, 999), st.integers(1000, 1999)),
    staleness=st.integers(0, 3),
    groups_per_step=st.integers(1, 5),
    shapes=st.tuples(st.integers(1, 4), st.integers(1, 6)),
)
def test_deterministic_mode_does_not_depend_on_timing(seeds, staleness, groups_per_step, shapes):
    policy = DoraPolicy(
        groups_per_step=groups_per_step, max_staleness=staleness, deterministic=True
    )
    trained = []
    for seed, num_replicas in zip(seeds, shapes, strict=True):
        world = FakeWorld(
            seed=seed, num_replicas=num_replicas, groups_per_replica=3, outcome_of=outcomes
        )
        make_run(world, policy=policy).run()
        trained.append(world.trained)
    assert trained[0] == trained[1]


@settings(max_examples=10)
@given(seed=st.integers(0, 999), staleness=st.integers(0, 2), deterministic=st.booleans())
def test_a_resumed_run_loses_no_ticket(seed, staleness, deterministic):
    """From every checkpoint the same sum; deterministically, the same steps."""
    policy = DoraPolicy(groups_per_step=3, max_staleness=staleness, deterministic=deterministic)
    world = FakeWorld(seed=seed, outcome_of=outcomes)
    make_run(world, policy=policy).run()
    assert [step for step, _ in world.saved] == [2, 4, 6]
    for step, control in world.saved[:-1]:
        other = FakeWorld(seed=seed + 7919, outcome_of=outcomes)
        resumed = make_run(other, policy=policy)
        resumed.restore(control)
        counts = resumed.run().counts()
        assert counts["trained"] == 18
        if deterministic:
            assert other.trained == world.trained[step:]


@pytest.mark.parametrize("moment", ["train", "publish"])
def test_a_signal_saves_the_last_step_and_the_resumed_run_is_the_same(moment, monkeypatch):
    """It comes while step 3 of 6 is trained or published; no checkpoint was due before the last."""
    policy = DoraPolicy(groups_per_step=3, max_staleness=1, deterministic=True)
    whole, world, other = (FakeWorld(seed=seed, outcome_of=outcomes) for seed in (1, 1, 2))
    make_run(whole, policy=policy).run()
    act = getattr(world, moment)

    def told(step, *groups):
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return act(step, *groups)

    monkeypatch.setattr(world, moment, told)
    with interrupts.handled(), pytest.raises(interrupts.Terminated):
        make_run(world, policy=policy, checkpoint_every=100).run()
    ((step, control),) = world.saved
    assert step == 3
    resumed = make_run(other, policy=policy)
    resumed.restore(control)
    resumed.run()
    assert world.trained[:3] + other.trained == whole.trained


def test_several_versions_decode_at_once_and_generation_overlaps_training():
    """With slow training, tickets of different versions are in flight together."""
    world = FakeWorld(seed=3, times=FakeTimes(train_s=3.0), outcome_of=outcomes)
    run = make_run(world, policy=DoraPolicy(groups_per_step=4, max_staleness=2), total_steps=12)
    seen = set()
    decide = run._act

    def watch():
        decide()
        seen.add(frozenset(t.version for t in run.ledger.tickets.in_phase("decoding")))

    run._act = watch
    run.run()
    assert max(map(len, seen)) >= 2


def test_a_run_that_learns_nothing_stops_with_the_reason():
    world = FakeWorld(seed=1, outcome_of=lambda *_: "wrong")
    run = make_run(world, policy=DoraPolicy(groups_per_step=2))
    run.settings = dataclasses.replace(run.settings, max_tickets_per_step=50)
    with pytest.raises(RunStalled, match="50 tickets"):
        run.run()


def solved_from_20(uid, number, attempt):
    return "mixed" if int(uid.split("/")[1]) < 20 else "right"


def test_a_run_whose_problems_are_solved_ends_early():
    world = FakeWorld(seed=1, outcome_of=solved_from_20)
    run = make_run(world, policy=DoraPolicy(groups_per_step=2), total_steps=50)
    final = run.run()
    assert 0 < final.step < 50
    assert final.counts()["trained"] == 2 * final.step


@pytest.mark.parametrize(
    ("decided", "said"),
    [
        (["junk"], r"decided \['junk'\], which holds what is no action"),
        (["junk"] * 99, r"'junk', .*\.\.\., which holds what is no action"),
        ([], r"no event is to come at step 0: .* `decide` of \S*Odd issue, dispatch"),
        (None, r"decided None, which is no list of actions.*\[\] where nothing"),
        (Assign(0, 0), r"decided Assign\(.*, which is no list of actions"),
        ([Issue(64, 0)], "its count is no whole number from 1 to what is left of the 5000"),
        ([Issue("32", 0)], r"count='32'.*its count is no whole number"),
        ([Issue(0, 0)], "Issue what `groups_per_step` still lacks"),
        ([Issue(1, 9)], "no version is published after 0. Issue under that one"),
        ([Assign(0, 0)], "10000 times without an event"),
        ([Train(())], "a step trains on 2 groups"),
        ([Assign(7, 0)], "7 is no replica: they are numbered 0 to"),
        ([Lend(("0",))], "'0' is no replica: .*by int"),
        ([Lend((0,))], "only replicas that are `elastic`"),
        ([Train(0)], "are tuples of numbers"),
        ([Dispatch(0, (), 3)], "that replica hosts version"),
        ([Issue(1, 0), EndStale((0,), "agan")], "afterwards is one of again, defer, drop"),
        ([Issue(1, 0), EndStale(("0",))], "'0' is no open ticket: they are named by `number`"),
        ([Issue(1, 0), EndStale((np.int64(0),))], "named by `number`, an int"),
        ([Swap(0, 0, True)], "does not say that it mixes_versions"),
        ([Migrate(0, 1, ())], "lack MovesGroups"),
    ],
)
def test_what_no_policy_may_decide_ends_the_run(decided, said):
    """A policy of a user's own that decides this is named in the error that ends the run."""

    class Odd(DoraPolicy):
        def decide(self, view, now_s):
            return decided

    world = FakeWorld(seed=0, outcome_of=outcomes)
    run = make_run(world, policy=Odd(groups_per_step=2, max_staleness=0))
    with pytest.raises(LoongError, match=said):
        run.run()


def test_no_policy_sets_what_the_view_says():
    class Sets(DoraPolicy):
        def decide(self, view, now):
            view.step = 3
            return []

    run = make_run(FakeWorld(seed=0, outcome_of=outcomes), policy=Sets(groups_per_step=2))
    with pytest.raises(ConfigError, match=r"the policy set view\.step=3.*return actions"):
        run.run()
    assert run.ledger.step == 0
