"""The ledger against a model that keeps one state per ticket in a dict, on random schedules."""

import dataclasses
import random

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.rollout import plain
from loong_jax.rollout.buffer import Buffer, LedgerError, StaleError
from loong_jax.rollout.records import TICKET_ENDS, Group, Rollout, SamplingSettings, Ticket
from tests.doubles.fake_model import fake_problem


def make_ticket(number: int, issue: int = 0) -> Ticket:
    return Ticket(number=number, problem=fake_problem(number), issue=issue)


def make_group(ticket: Ticket, version: int) -> Group:
    rollout = Rollout(
        ticket=ticket.number,
        attempt=0,
        prompt=np.array([1], np.int32),
        tokens=np.array([ticket.number % 100, 2], np.int32),
        loss_mask=np.ones(2, bool),
        engine_logprob=np.zeros(2, np.float32),
        sampling=SamplingSettings(),
        versions=((0, version),),
        finish_reason="stop",
    )
    return Group(ticket=ticket, version=version, rollouts=(rollout,))


def filled(num_ready: int, *, max_staleness: int = 2, version: int = 0) -> Buffer:
    """A buffer whose tickets completed in the reverse order of issue."""
    buffer = Buffer(max_staleness=max_staleness)
    tickets = [make_ticket(n) for n in range(num_ready)]
    for ticket in tickets:
        buffer.admit(ticket, version, version)
    for ticket in reversed(tickets):
        buffer.complete(make_group(ticket, version))
    return buffer


def numbers(lease) -> list[int]:
    return [group.ticket.number for group in lease.groups]


def test_leases_follow_the_order_asked_for():
    assert numbers(filled(4).lease(2, 0)) == [3, 2]
    assert numbers(filled(4).lease(2, 0, in_issue_order=True)) == [0, 1]
    assert numbers(filled(4).lease((2, 0), 0)) == [2, 0]
    assert filled(4).lease(5, 0) is None


@pytest.mark.parametrize("move", ["commit", "abort"])
def test_a_lease_from_before_a_restore_ends_nothing(move):
    buffer = filled(2)
    snapshot = buffer.snapshot()
    before = buffer.lease(1, 0)
    buffer.restore(snapshot)
    after = buffer.lease([0], 0)
    with pytest.raises(LedgerError, match="before a restore"):
        getattr(buffer, move)(before)
    assert buffer.numbers("leased") == (0,)
    buffer.commit(after)
    assert buffer.state_of(0) == "ended"
    assert buffer.state_of(1) == "ready"


def test_commit_trains_and_abort_brings_back_in_place():
    buffer = filled(4)
    lease = buffer.lease(2, 0)
    assert buffer.numbers("leased") == (2, 3)
    buffer.abort(lease)
    assert buffer.numbers("ready") == (0, 1, 2, 3)
    again = buffer.lease(2, 0)
    assert numbers(again) == [3, 2]
    buffer.commit(again)
    assert buffer.counts() == {
        "issued": 4,
        **dict.fromkeys(TICKET_ENDS, 0),
        "trained": 2,
        "open": 2,
    }
    for stale_lease in (lease, again):
        with pytest.raises(LedgerError, match="not open"):
            buffer.commit(stale_lease)
        with pytest.raises(LedgerError, match="not open"):
            buffer.abort(stale_lease)


def test_leases_do_not_overlap():
    buffer = filled(4)
    one, other = buffer.lease(2, 0), buffer.lease(2, 0)
    assert not set(numbers(one)) & set(numbers(other))
    assert buffer.lease(1, 0) is None
    buffer.commit(other)
    buffer.abort(one)
    assert buffer.numbers("ready") == tuple(sorted(numbers(one)))


def test_staleness_is_bounded_at_admission():
    buffer = Buffer(max_staleness=1)
    with pytest.raises(StaleError, match="2 steps old"):
        buffer.admit(make_ticket(0), 3, 5)
    with pytest.raises(LedgerError, match="trainer is at"):
        buffer.admit(make_ticket(0), 6, 5)
    assert buffer.counts()["issued"] == 0
    buffer.admit(make_ticket(0), 4, 5)
    assert buffer.counts()["open"] == 1


def test_staleness_is_bounded_again_at_lease_so_waiting_counts():
    buffer = filled(3, max_staleness=1)
    assert buffer.lease(3, 1) is not None
    buffer = filled(3, max_staleness=1)
    buffer.admit(make_ticket(3), 1, 1)
    buffer.complete(make_group(make_ticket(3), 1))
    with pytest.raises(StaleError):
        buffer.lease((3, 0), 2)
    assert buffer.numbers("ready") == (0, 1, 2, 3)
    lease = buffer.lease(1, 2)
    assert numbers(lease) == [3]
    assert buffer.counts()["stale"] == 3
    assert sorted(t.number for t in buffer.take_stale()) == [0, 1, 2]
    assert buffer.take_stale() == ()
    assert {buffer.state_of(n) for n in range(3)} == {"ended"}


def test_a_group_may_mix_later_versions_where_the_buffer_allows_it():
    buffer = Buffer(max_staleness=2, mixes_versions=True)
    for number in range(2):
        buffer.admit(make_ticket(number), 1, 1)
    group = make_group(make_ticket(0), 1)

    def written_under(*versions):
        rollouts = tuple(dataclasses.replace(r, versions=versions) for r in group.rollouts)
        return dataclasses.replace(group, rollouts=rollouts)

    buffer.complete(written_under((0, 1), (1, 2)))
    assert buffer.numbers("ready") == (0,)
    earlier = dataclasses.replace(written_under((0, 0), (1, 1)), ticket=make_ticket(1))
    with pytest.raises(LedgerError, match="one version"):
        buffer.complete(earlier)


def test_transitions_out_of_order_are_refused():
    buffer = Buffer(max_staleness=2)
    with pytest.raises(LedgerError, match="the next is 0"):
        buffer.admit(make_ticket(1), 0, 0)
    with pytest.raises(LedgerError, match="never admitted"):
        buffer.complete(make_group(make_ticket(0), 0))
    buffer.admit(make_ticket(0), 0, 0)
    with pytest.raises(LedgerError, match="one version"):
        buffer.complete(make_group(make_ticket(0), 1))
    pure = make_group(make_ticket(0), 0)
    mixed = dataclasses.replace(pure.rollouts[0], versions=((0, 0), (1, 1)))
    with pytest.raises(LedgerError, match="one version"):
        buffer.complete(pure.replace_rollouts((mixed,)))
    with pytest.raises(LedgerError, match="must be ready"):
        buffer.lease((0,), 0)
    buffer.complete(make_group(make_ticket(0), 0))
    with pytest.raises(LedgerError, match="must be open"):
        buffer.complete(make_group(make_ticket(0), 0))
    with pytest.raises(LedgerError, match="cannot end as 'trained'"):
        buffer.end(0, "trained")
    with pytest.raises(LedgerError, match="Name each once"):
        buffer.lease((0, 0), 0)
    with pytest.raises(ValueError, match="at least one"):
        buffer.lease(0, 0)
    buffer.lease(1, 0)
    with pytest.raises(LedgerError, match="must be open or ready"):
        buffer.end(0, "failed")
    with pytest.raises(ConfigError):
        Buffer(max_staleness=-1)


def test_a_ticket_ends_once():
    buffer = filled(1)
    buffer.end(0, "filtered")
    for end in TICKET_ENDS[1:]:
        with pytest.raises(LedgerError, match="is ended"):
            buffer.end(0, end)
    assert buffer.counts()["filtered"] == 1


def test_a_restored_buffer_goes_on_alike_and_undoes_leases():
    buffer = filled(5)
    buffer.admit(make_ticket(5, issue=3), 1, 1)
    buffer.end(1, "filtered")
    buffer.lease(2, 1)
    arrays = plain.to_arrays(buffer.snapshot())
    assert len(arrays) <= 4
    restored = Buffer(max_staleness=0)
    restored.restore(plain.from_arrays(arrays))
    assert restored.counts() == buffer.counts()
    assert restored.numbers("ready") == (0, 2, 3, 4)
    assert restored.numbers("open") == (5,)
    restored.complete(make_group(make_ticket(5, issue=3), 1))
    assert numbers(restored.lease(5, 2)) == [4, 3, 2, 0, 5]
    restored.admit(make_ticket(6), 2, 2)
    with pytest.raises(LedgerError, match="format"):
        restored.restore(buffer.snapshot() | {"format_version": 0})


def run_schedule(seed: int, max_staleness: int, num_moves: int) -> None:
    """Random moves on a buffer and, beside it, on a dict; they must agree after each."""
    generator = random.Random(seed)
    buffer = Buffer(max_staleness=max_staleness)
    state: dict[int, str] = {}
    version_of: dict[int, int] = {}
    leases = {}
    trainer_version = handed_back = 0

    def of(*names):
        return [n for n, s in state.items() if s in names]

    for _ in range(num_moves):
        move = generator.choices(
            ["admit", "complete", "end", "lease", "lease_named", "commit", "abort", "step", "save"],
            [6, 6, 1, 2, 1, 2, 0.5, 1, 0.3],
        )[0]
        if move == "admit":
            version = max(0, trainer_version - generator.randint(0, max_staleness + 1))
            number = len(state)
            if trainer_version - version > max_staleness:
                with pytest.raises(StaleError):
                    buffer.admit(make_ticket(number), version, trainer_version)
            else:
                buffer.admit(make_ticket(number), version, trainer_version)
                state[number], version_of[number] = "open", version
        elif move == "complete" and of("open"):
            number = generator.choice(of("open"))
            buffer.complete(make_group(make_ticket(number), version_of[number]))
            state[number] = "ready"
        elif move == "end" and of("open", "ready"):
            number, end = generator.choice(of("open", "ready")), generator.choice(TICKET_ENDS[1:])
            buffer.end(number, end)
            state[number] = end
        elif move == "lease":
            count = generator.randint(1, 4)
            lease = buffer.lease(count, trainer_version, generator.random() < 0.5)
            for number in of("ready"):
                if trainer_version - version_of[number] > max_staleness:
                    state[number] = "stale"
                    handed_back += 1
            assert (lease is not None) == (len(of("ready")) >= count)
            if lease is not None:
                leases[lease.number] = lease
                for number in numbers(lease):
                    assert state[number] == "ready"
                    state[number] = "leased"
        elif move == "lease_named" and of("ready"):
            wanted = generator.sample(of("ready"), generator.randint(1, len(of("ready"))))
            if any(trainer_version - version_of[n] > max_staleness for n in wanted):
                with pytest.raises(StaleError):
                    buffer.lease(wanted, trainer_version)
            else:
                lease = buffer.lease(wanted, trainer_version)
                assert numbers(lease) == wanted
                leases[lease.number] = lease
                state |= dict.fromkeys(wanted, "leased")
        elif move in ("commit", "abort") and leases:
            lease = leases.pop(generator.choice(sorted(leases)))
            for group in lease.groups:
                assert lease.trainer_version - group.version <= max_staleness
                state[group.ticket.number] = "trained" if move == "commit" else "ready"
            getattr(buffer, move)(lease)
        elif move == "step":
            trainer_version += 1
        elif move == "save":
            restored = Buffer(max_staleness=0)
            restored.restore(plain.from_arrays(plain.to_arrays(buffer.snapshot())))
            buffer, leases = restored, {}
            state |= dict.fromkeys(of("leased"), "ready")
        counts = buffer.counts()
        assert (
            counts["issued"] == len(state) == sum(counts[e] for e in TICKET_ENDS) + counts["open"]
        )
        assert all(counts[end] == len(of(end)) for end in TICKET_ENDS)
        for name in ("open", "ready", "leased"):
            assert buffer.numbers(name) == tuple(sorted(of(name)))
    taken = buffer.take_stale()
    assert len(taken) == handed_back
    assert {state[ticket.number] for ticket in taken} <= {"stale"}


@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
@hypothesis.given(
    seed=st.integers(0, 2**32), max_staleness=st.integers(0, 3), num_moves=st.integers(1, 250)
)
def test_every_ticket_is_in_one_state_and_ends_once(seed, max_staleness, num_moves):
    run_schedule(seed, max_staleness, num_moves)


def test_a_long_schedule():
    run_schedule(seed=1, max_staleness=2, num_moves=3000)
