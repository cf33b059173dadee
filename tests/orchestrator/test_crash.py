"""A run killed at any record of its journal, or inside one, and opened again, loses nothing."""

import tempfile
from collections import Counter

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from loong_jax.orchestrator import journal
from loong_jax.orchestrator.curriculum import Curriculum, GrowingContext, PassRates
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.rollout import records
from loong_jax.rollout.reuse import GroupReuse
from tests.orchestrator.crash_world import Disk, live, open_run

CURRICULUM = Curriculum(
    pass_rates=PassRates(of="level", ceilings=((0, 0.9), (2, 0.3)), pause=4),
    context=GrowingContext(limits=(1, 4), window=4),
)
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # it takes minutes here


def run_with_kills(directory, *, policy, kills, seed=0, **kwargs):
    """Lives, each killed at the next (record, share of it); the last one lives to the end."""
    disk = Disk()
    written_again = []
    for life, (dies_at, share) in enumerate([*kills, (None, 1.0)]):
        known = set(disk.generated)
        run, world = open_run(
            directory, disk, seed=seed + life, policy=policy, dies_at=dies_at, share=share, **kwargs
        )
        ended = live(run)
        written_again += [number for number in world.dispatched if number in known]
        if ended:
            break
    assert ended
    return run, world, disk, written_again


def check(run, world, disk, written_again, *, policy, total_steps=4):
    counts = run.ledger.counts()
    assert not run.ledger.tickets
    assert counts["trained"] == total_steps * policy.groups_per_step
    assert sorted(disk.history) == list(range(1, total_steps + 1))
    times = Counter(key for batch in disk.history.values() for key, _, _ in batch)
    rereads = run.ledger.trained.num_reads
    assert len(times) == counts["trained"]
    assert sum(times.values()) == counts["trained"] + rereads
    assert max(times.values()) <= 1 + run.ledger.reuse.max_reads * (rereads > 0)
    for step, batch in disk.history.items():
        for _, _, version in batch:
            assert 0 <= step - 1 - version <= policy.max_staleness
    assert written_again == [], "finished responses are not written again"
    assert run.num_reissued == 0
    if total_steps not in run.log.steps:  # it was in the checkpoint that the last life began with
        assert max(disk.checkpoints) == total_steps


def whole(policy, **kwargs):
    with tempfile.TemporaryDirectory() as directory:
        run, world, disk, _ = run_with_kills(directory, policy=policy, kills=[], **kwargs)
    return run, world, disk


POLICIES = {
    "ordered": DoraPolicy(groups_per_step=2, max_staleness=1, deterministic=True),
    "free": DoraPolicy(groups_per_step=2, max_staleness=1),
}


def kill_at_records(kind, directory, first, stride):
    """Also inside of records: every other one is torn, each at another place."""
    policy = POLICIES[kind]
    straight, world, disk = whole(policy, total_steps=3)
    num_records = straight.journal.num_written
    assert num_records > 45
    for dies_at in range(first, num_records + 1, stride):
        share = (1.0, (dies_at % 7) / 7)[dies_at % 2]
        found = run_with_kills(
            directory / str(dies_at), policy=policy, kills=[(dies_at, share)], total_steps=3
        )
        check(*found, policy=policy, total_steps=3)
        if policy.deterministic:
            assert found[2].history == disk.history
            assert found[1].weights == world.weights
            assert found[0].ledger.num_issued == straight.ledger.num_issued


@pytest.mark.parametrize("kind", POLICIES)
def test_killed_at_every_third_record(kind, tmp_path):
    kill_at_records(kind, tmp_path, first=1, stride=3)


@pytest.mark.release
@pytest.mark.parametrize("kind", POLICIES)
def test_killed_at_all_other_records(kind, tmp_path):
    kill_at_records(kind, tmp_path, first=2, stride=3)
    kill_at_records(kind, tmp_path, first=3, stride=3)


policies = st.builds(
    DoraPolicy,
    groups_per_step=st.integers(1, 3),
    max_staleness=st.integers(0, 2),
    max_ahead=st.sampled_from([0.5, 1.0, 3.0]),
    replicas_per_version=st.integers(1, 2),
    score_at_least=st.integers(1, 4),
    deterministic=st.booleans(),
)
kills = st.lists(st.tuples(st.integers(1, 90), st.floats(0, 1)), min_size=1, max_size=4)


def any_schedule(seed, policy, kills, num_replicas, save_s, reuse):
    """Weights are a hash of what was trained in its order: re-reads too are those of one life."""
    if policy.max_staleness == 0:
        reuse = GroupReuse()
    with tempfile.TemporaryDirectory() as directory:
        found = run_with_kills(
            directory, policy=policy, kills=kills, seed=seed, num_replicas=num_replicas,
            save_s=save_s, reuse=reuse,
        )  # fmt: skip
    check(*found, policy=policy)
    assert (found[0].ledger.trained.num_reads > 0) == bool(reuse.share)
    if policy.deterministic:
        straight, world, disk = whole(policy, seed=seed + 1000, reuse=reuse)
        assert (found[2].history, found[1].weights) == (disk.history, world.weights)
        assert found[0].ledger.num_issued == straight.ledger.num_issued


reuses = st.sampled_from([GroupReuse(), GroupReuse(share=0.5, max_reads=2)])
schedules = given(
    seed=st.integers(0, 2**20),
    policy=policies,
    kills=kills,
    num_replicas=st.integers(1, 3),
    save_s=st.sampled_from([0.1, 2.0, 30.0]),
    reuse=reuses,
)
test_killed_several_times_on_any_schedule = settings(max_examples=25, phases=NO_SHRINKING)(
    schedules(any_schedule)
)
test_killed_several_times_on_many_schedules = pytest.mark.release(
    pytest.mark.timeout(600)(
        settings(max_examples=120, phases=NO_SHRINKING)(schedules(any_schedule))
    )
)


@settings(max_examples=20, phases=NO_SHRINKING)
@given(
    policy=policies,
    dies_at=st.integers(1, 90),
    seed=st.integers(0, 999),
    curriculum=st.sampled_from([None, CURRICULUM]),
    reuse=reuses,
)
def test_the_ledger_rebuilt_equals_the_ledger_lived(policy, dies_at, seed, curriculum, reuse):
    with tempfile.TemporaryDirectory() as directory:
        disk = Disk()
        same = {"seed": seed, "policy": policy, "curriculum": curriculum}
        same |= {} if policy.max_staleness == 0 else {"reuse": reuse}
        run, _ = open_run(directory, disk, dies_at=dies_at, share=0.0, **same)
        if live(run):
            return
        again, _ = open_run(directory, disk, **same)
        lived, rebuilt = (records.encode(r.snapshot()) for r in (run, again))
        assert lived == rebuilt
        assert bool(run.ledger.lease) == bool(again.ledger.lease)
        again.journal._close_files()


def test_the_same_records_make_the_same_ledger(tmp_path):
    """Entered in a fresh one, one after the other, in another world."""
    policy = POLICIES["free"]
    run, _ = open_run(tmp_path, Disk(), seed=3, policy=policy)
    lived, entered = [], []
    enter = run.ledger.enter

    def watch(change, groups=()):
        enter(change, groups)
        entered.append((journal.from_json(journal.to_json(change)), groups))
        lived.append(records.encode(run.ledger.snapshot()))

    run.ledger.enter = watch
    run.run()
    again, _ = open_run(tmp_path / "again", Disk(), seed=4, policy=policy)
    for (change, groups), expected in zip(entered, lived, strict=True):
        again.ledger.enter(change, groups)
        assert records.encode(again.ledger.snapshot()) == expected


def test_on_other_hardware_groups_without_weights_are_issued_again(tmp_path):
    """Steps trained again give other weights: nothing is scored under weights it never had."""
    policy = DoraPolicy(groups_per_step=2, max_staleness=2, max_ahead=3.0)
    reissued = 0
    for dies_at in range(40, 110, 3):
        disk = Disk()
        directory = tmp_path / str(dies_at)
        run, _ = open_run(directory, disk, seed=5, policy=policy, dies_at=dies_at)
        if live(run):
            break
        run, _ = open_run(directory, disk, seed=6, policy=policy, other_hardware=True)
        assert live(run)
        counts = run.ledger.counts()
        assert counts["trained"] == 8
        assert counts["stale"] >= run.num_reissued
        reissued += run.num_reissued
    assert reissued > 0


def test_groups_judged_before_a_kill_are_logged_with_the_steps_that_follow(tmp_path):
    policy = POLICIES["ordered"]
    straight, _, _ = whole(policy)
    disk = Disk()
    run, _ = open_run(tmp_path, disk, seed=0, policy=policy, dies_at=36)
    assert not live(run)
    assert run.log.steps
    assert not disk.checkpoints
    again, _ = open_run(tmp_path, disk, seed=1, policy=policy)
    logged = []
    step = again.log.step
    again.log.step = lambda *said: (logged.append(len(again.log.dispositions)), step(*said))
    assert live(again)
    assert Counter(again.log.dispositions) == Counter(straight.log.dispositions)
    assert logged[0] >= policy.groups_per_step  # and none only later
    assert logged[0] < logged[-1]
