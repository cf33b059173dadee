"""Groups that are trained again: counted, young enough, drawn alike in every life of a run."""

import collections

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from loong_jax.errors import ConfigError
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.orchestrator.simulation.run import orchestrator_for
from loong_jax.rollout.reuse import GroupReuse, TrainedGroups
from tests.doubles.fake_world import KeptLog
from tests.orchestrator.ledgers import make_group, make_ticket
from tests.orchestrator.test_all_policies import STEPS, policies, small_world, worlds

NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
settings_of_reuse = st.builds(
    lambda share, more: GroupReuse(share=share, max_reads=round(1 / (1 - share) - 1 + 0.5) + more),
    share=st.sampled_from([0.1, 0.25, 0.5, 0.75]),
    more=st.integers(0, 2),
)


def run_with(reuse, policy, world, seed=0):
    run = orchestrator_for(world, policy, STEPS, reuse=reuse, seed=seed)
    run.log = KeptLog()
    return run, run.run()


@settings(max_examples=40)
@given(policy=policies(), world=worlds(), reuse=settings_of_reuse, seed=st.integers(0, 99))
def test_invariants_hold_for_every_policy(policy, world, reuse, seed):
    if policy.max_staleness < 1:
        with pytest.raises(ConfigError, match="max_staleness=0"):
            run_with(reuse, policy, world, seed)
        return
    run, final = run_with(reuse, policy, world, seed)
    counts = final.counts()
    assert counts["trained"] == STEPS * policy.groups_per_step, "a re-read is no ticket"
    assert not run.ledger.tickets
    times, first_step = collections.Counter(), {}
    total = 0
    for (_, step, groups), metrics in zip(world.trained, run.log.metrics, strict=True):
        numbers = [group.ticket.number for group in groups]
        assert len(set(numbers)) == len(numbers)
        fresh = [n for n in numbers if n not in first_step]
        assert len(fresh) == policy.groups_per_step
        old = len(numbers) - len(fresh)
        young = [n for n, (age, _) in first_step.items() if step - 1 - age <= policy.max_staleness]
        readable = [n for n in young if times[n] <= reuse.max_reads]
        wanted = round(policy.groups_per_step * reuse.share / (1 - reuse.share))
        assert old == min(wanted, len(readable)), "as many as there may be"
        assert set(numbers) - set(fresh) <= set(readable)
        times.update(numbers)
        first_step |= {
            g.ticket.number: (g.version, step) for g in groups if g.ticket.number in fresh
        }
        total += old
        assert (metrics["reuse/groups"], metrics["reuse/total"]) == (old, total)
    assert max(times.values()) <= 1 + reuse.max_reads


def test_the_seed_draws_and_nothing_else_does():
    policy = DoraPolicy(groups_per_step=3, max_staleness=2)
    reuse = GroupReuse(share=0.4, max_reads=2)

    def batches(seed):
        world = small_world()
        run_with(reuse, policy, world, seed)
        return [tuple(g.ticket.number for g in groups) for _, _, groups in world.trained]

    assert batches(1) == batches(1)
    assert len({tuple(batches(seed)) for seed in range(6)}) > 1


def test_all_that_may_be_read_have_equal_chances():
    kept = collections.Counter()
    for seed in range(600):
        past = TrainedGroups(GroupReuse(share=0.5, max_reads=2), seed=seed, max_staleness=1)
        past.after_step([make_group(make_ticket(n), 3) for n in range(4)], (), 3)
        kept.update(g.ticket.number for g in past.pick(2, 4))
        assert past.pick(2, 5) == ()
    np.testing.assert_allclose([kept[n] / 600 for n in range(4)], 0.5, atol=0.08)


def test_no_old_weights_are_kept_for_it():
    policy = DoraPolicy(groups_per_step=3, max_staleness=3)
    held = []
    for share in (0.0, 0.5):
        world = small_world()
        run = orchestrator_for(world, policy, STEPS, reuse=GroupReuse(share=share))
        alive = []
        retire = run._executor.retire_versions

        def watch(retire=retire, run=run, alive=alive):
            retire()
            open_versions = {t.version for t in run.ledger.tickets.values()}
            hosted = {r.version for r in run.ledger.replicas}
            alive.append(set(run.versions.numbers()) <= open_versions | hosted | {run.ledger.step})

        run._executor.retire_versions = watch
        run.run()
        held.append(all(alive) and len(alive) > STEPS)
    assert held == [True, True]
