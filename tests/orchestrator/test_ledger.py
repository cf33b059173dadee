"""The ledger against a model that keeps one phase per ticket in a dict, on random schedules."""

import dataclasses
import json
import random
import zipfile
from collections import Counter
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from loong_jax.orchestrator import changes
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.orchestrator.ledger import LedgerError, StaleError
from loong_jax.rollout import records
from loong_jax.rollout.records import TICKET_ENDS
from loong_jax.rollout.reuse import GroupReuse
from tests.orchestrator.crash_world import Disk, live, open_run
from tests.orchestrator.ledgers import ledger_of, make_group, make_ticket

PHASES = ("queued", "decoding", "verifying", "judged", "scoring", "ready", "leased")


def generated(number, version=0, group=None):
    return changes.Generated(number, 0.0, None), [group or make_group(make_ticket(number), version)]


def judged(number, disposition="keep", version=0):
    group = make_group(make_ticket(number), version)
    return changes.Verified(number, disposition, False, ()), [group]


def test_staleness_is_bounded_at_admission_and_again_at_lease():
    ledger = ledger_of(("ready", 3), ("ready", 4), step=5, max_staleness=1)
    with pytest.raises(StaleError, match="2 steps old"):
        ledger.enter(changes.Issue(1, 3))
    with pytest.raises(LedgerError, match="trainer is at"):
        ledger.enter(changes.Issue(1, 6))
    with pytest.raises(StaleError, match="ticket 0 is 2 steps old"):
        ledger.enter(changes.Train((1, 0)))
    assert ledger.tickets.count("ready") == ledger.num_issued == 2
    ledger.enter(changes.Issue(1, 4))
    ledger.enter(changes.Train((1,)))


def test_a_group_may_mix_later_versions_where_the_policy_does():
    group = make_group(make_ticket(0), 1)

    def written_under(*versions):
        rollouts = tuple(dataclasses.replace(r, versions=versions) for r in group.rollouts)
        return dataclasses.replace(group, rollouts=rollouts)

    for versions, allowed in ((((0, 1), (1, 2)), True), (((0, 0), (1, 1)), False)):
        for mixes in (True, False):
            ledger = ledger_of(("decoding", 1, 0), mixes_versions=mixes)
            if mixes and allowed:
                ledger.enter(*generated(0, group=written_under(*versions)))
            else:
                with pytest.raises(LedgerError, match="one version"):
                    ledger.enter(*generated(0, group=written_under(*versions)))
    with pytest.raises(LedgerError, match="one version"):
        ledger.enter(*generated(0, version=2))


@pytest.mark.parametrize(
    ("phase", "change", "said"),
    [
        ("ready", changes.Dispatch(0, (0,), 0), "is ready, but must be queued"),
        ("queued", changes.Migrate(0, 1, (0,)), "must be decoding"),
        ("decoding", changes.Score((0,)), "must be judged"),
        ("judged", changes.Train((0,)), "must be ready"),
        ("ready", changes.Train((0, 0)), "Name each once"),
        ("leased", changes.EndStale((0,)), "is leased"),
        ("ready", changes.Trained(1, (0,), 0), "must be leased"),
        ("ready", changes.Ended((0,), "trained"), "must be leased"),
        ("ready", changes.EndStale((1,)), "never issued"),
    ],
)
def test_changes_out_of_order_are_refused(phase, change, said):
    with pytest.raises(LedgerError, match=said):
        ledger_of((phase, 0)).enter(change)


def test_a_ticket_ends_once():
    ledger = ledger_of(("ready", 0))
    ledger.enter(changes.EndStale((0,)))
    with pytest.raises(LedgerError, match="is ended"):
        ledger.enter(changes.Ended((0,), "failed"))
    assert ledger.counts()["stale"] == 1


def test_a_lost_replica_leaves_its_tickets_queued():
    ledger = ledger_of(("decoding", 3, 1), ("decoding", 3, 1), ("queued", 3), replicas=(3, 3))
    ledger.enter(changes.ReplicaLost(1, 1))
    assert ledger.tickets.count("queued") == 3
    assert ledger.sets.working == (0,)
    assert ledger.replicas[1].version is None
    ledger.enter(changes.ReplicaBack(1))
    assert ledger.sets.hosts == {3: [0], None: [1]}


def test_a_new_process_holds_nothing_in_its_hands():
    ledger = ledger_of(*((phase, 0) for phase in PHASES), step=1, trainer="training")
    ledger.enter(changes.Reopened((0,)))
    assert [entry.phase for entry in ledger.tickets.values()] == [
        "queued", "verifying", "judged", "judged", "ready", "ready",
    ]  # fmt: skip
    assert (ledger.trainer, ledger.counts()["stale"]) == ("publishing", 1)


def test_a_checkpoint_of_before_there_was_reuse_is_read():
    with zipfile.ZipFile(Path(__file__).parent / "fixtures" / "format_1.zip") as stored:
        record = records.decode(stored.read("ordered/checkpoint.npz"))
    assert record["buffer"].pop("trained")["num_reads"] > 0
    ledger = ledger_of(reuse=GroupReuse(share=0.5), max_staleness=1)
    ledger.restore(record)
    assert (ledger.trained.num_reads, ledger.trained.pick(2, ledger.step)) == (0, ())


def test_what_may_be_read_again_is_in_the_checkpoint():
    ledger = ledger_of(("ready", 0), reuse=GroupReuse(share=0.5), max_staleness=1)
    ledger.enter(changes.Train((0,)))
    assert ledger.reread == ()
    ledger.enter(changes.Trained(1, (0,), 0))
    ledger.enter(changes.Published(1, 10, ""))
    ledger.enter(changes.Issue(1, 1))
    ledger.enter(*generated(1, 1))
    ledger.enter(*judged(1, version=1))
    ledger.enter(changes.Score((1,)))
    ledger.enter(changes.Scored((1,), ()), [make_group(make_ticket(1), 1)])
    before = records.encode(ledger.snapshot())
    ledger.enter(changes.Train((1,)))
    assert [group.ticket.number for group in ledger.lease + ledger.reread] == [1, 0]
    assert ledger.trained.num_reads == 0, "the step has not happened"
    other = ledger_of(reuse=GroupReuse(share=0.5), max_staleness=1)
    other.restore(records.decode(before))
    other.enter(changes.Train((1,)))
    assert [group.ticket.number for group in other.lease + other.reread] == [1, 0]


def run_schedule(seed: int, max_staleness: int, num_moves: int) -> None:
    """Random changes of a ledger and, beside it, of a dict; they must agree after each."""
    generator = random.Random(seed)
    ledger = ledger_of(max_staleness=max_staleness, total_steps=10**6)
    phase: dict[int, str] = {}
    version_of: dict[int, int] = {}
    replica_of: dict[int, int] = {}

    def of(*names):
        return [number for number, name in phase.items() if name in names]

    def some(*names):
        there = of(*names)
        return tuple(generator.sample(there, min(len(there), generator.randint(1, 3))))

    def go_on(numbers, to):
        phase.update(dict.fromkeys(numbers, to))
        if to != "decoding":
            for number in numbers:
                replica_of.pop(number, None)

    for _ in range(num_moves):
        kind = generator.choice(["issue", "send", "write", "judge", "score", "step", "end", "save"])
        idle = ledger.trainer == "idle"
        if kind == "issue":
            version = max(0, ledger.step - generator.randint(0, max_staleness + 1))
            if ledger.step - version > max_staleness:
                with pytest.raises(StaleError):
                    ledger.enter(changes.Issue(2, version))
            else:
                new = range(len(phase), len(phase) + 2)
                ledger.enter(changes.Issue(2, version))
                go_on(new, "queued")
                version_of.update(dict.fromkeys(new, version))
        elif kind == "send" and (numbers := some("queued")):
            replica = generator.randint(0, 1)
            ledger.enter(changes.Dispatch(replica, numbers, 0))
            go_on(numbers, "decoding")
            replica_of.update(dict.fromkeys(numbers, replica))
        elif kind == "write":
            for number in some("queued", "decoding"):
                ledger.enter(*generated(number, version_of[number]))
                go_on([number], "verifying")
        elif kind == "judge":
            for number in some("verifying"):
                kept = generator.choice(["keep", "keep", "filtered", "ungradable"])
                ledger.enter(*judged(number, kept, version_of[number]))
                go_on([number], "judged" if kept == "keep" else kept)
        elif kind == "score" and idle and (numbers := some("judged")):
            ledger.enter(changes.Score(numbers))
            groups = [make_group(make_ticket(n), version_of[n]) for n in numbers]
            ledger.enter(changes.Scored(numbers, ()), groups)
            go_on(numbers, "ready")
        elif kind == "step" and idle and (numbers := some("ready")):
            if any(ledger.step - version_of[n] > max_staleness for n in numbers):
                with pytest.raises(StaleError):
                    ledger.enter(changes.Train(numbers))
                continue
            ledger.enter(changes.Train(numbers))
            assert tuple(group.ticket.number for group in ledger.lease) == numbers
            if generator.random() < 0.8:
                ledger.enter(changes.Trained(ledger.step + 1, numbers, 0))
                ledger.enter(changes.Published(ledger.step, 10**6, ""))
                go_on(numbers, "trained")
            else:
                ledger.enter(changes.Reopened(()))
                go_on(of("decoding"), "queued")
        elif kind == "end" and (numbers := some(*PHASES[:-1])):
            end = generator.choice(TICKET_ENDS[1:])
            ledger.enter(changes.Ended(numbers, end))
            go_on(numbers, end)
        elif kind == "save":
            record = records.decode(records.encode(ledger.snapshot()))
            ledger = ledger_of(max_staleness=max_staleness, total_steps=1)
            ledger.restore(record)
        check(ledger, phase, version_of, replica_of)


def check(ledger, phase, version_of, replica_of):
    """Counters and every index of the open tickets against a plain scan."""
    counts, tickets = ledger.counts(), ledger.tickets
    open_ones = [number for number, name in phase.items() if name in PHASES]
    assert list(tickets) == open_ones
    assert counts["issued"] == len(phase)
    assert {end: counts[end] for end in TICKET_ENDS} == {
        end: sum(name == end for name in phase.values()) for end in TICKET_ENDS
    }
    for phases in (("queued",), ("ready", "decoding"), PHASES):
        there = [number for number in open_ones if phase[number] in phases]
        assert [entry.number for entry in tickets.in_phase(*phases)] == there
        assert tickets.count(*phases) == len(there)
        assert tickets.versions(*phases) == Counter(version_of[n] for n in there)
    for replica in range(2):
        mine = sorted(number for number, place in replica_of.items() if place == replica)
        assert tickets.decoding_on(replica) == mine
        assert tickets.num_decoding(replica) == len(mine)


@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
@hypothesis.given(
    seed=st.integers(0, 2**32), max_staleness=st.integers(0, 3), num_moves=st.integers(1, 250)
)
def test_every_ticket_is_in_one_phase_and_ends_once(seed, max_staleness, num_moves):
    run_schedule(seed, max_staleness, num_moves)


EARLIER = {
    "ordered": DoraPolicy(groups_per_step=2, max_staleness=1, deterministic=True),
    "free": DoraPolicy(groups_per_step=4, max_staleness=2, score_at_least=1, max_ahead=3.0),
}


@pytest.mark.parametrize("kind", EARLIER)
@pytest.mark.parametrize("journal", ["journal", "lost"])
def test_a_run_of_the_format_before_goes_on_and_ends_as_it_would_have(kind, journal, tmp_path):
    """Killed after a checkpoint with groups in each place that the earlier format kept apart."""
    with zipfile.ZipFile(Path(__file__).parent / "fixtures" / "format_1.zip") as stored:
        stored.extractall(tmp_path)
    directory = tmp_path / kind
    saved = json.loads((directory / "checkpoint.json").read_text())
    versions = {int(version): weights for version, weights in saved["versions"].items()}
    record = (directory / "checkpoint.npz").read_bytes()
    disk = Disk(checkpoints={saved["step"]: (saved["weights"], versions, record)})
    settings = dict(policy=EARLIER[kind], reuse=GroupReuse(share=0.5), total_steps=6)
    run, world = open_run(directory / journal, disk, seed=9, **settings)
    if journal == "journal":
        assert run.ledger.num_issued == {"ordered": 20, "free": 31}[kind]
    assert live(run)
    assert run.num_reissued == 0
    assert run.ledger.counts()["trained"] == 6 * EARLIER[kind].groups_per_step
    if kind == "ordered":
        straight, expected = open_run(tmp_path / "straight", Disk(), seed=7, **settings)
        assert live(straight)
        assert world.weights == expected.weights
        assert run.ledger.counts() == straight.ledger.counts()
