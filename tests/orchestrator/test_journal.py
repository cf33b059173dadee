"""The journal's files: torn and damaged lines, lost arrays, segments, and groups as they were."""

import pytest

from loong_jax.errors import CheckpointError
from loong_jax.orchestrator import changes, journal
from loong_jax.orchestrator.journal import Journal
from loong_jax.rollout.records import Group, Ticket
from tests.doubles.fake_world import fake_rollout, problem_at
from tests.rollout.test_codec import assert_same

RECORDS = [
    changes.Issue(2, 0),
    changes.Dispatch(1, (0, 1), 0),
    changes.Verified(0, "keep", False, ({"outcome": "wrong", "reason": 'a "line"\n'},)),
    changes.SetGate(0.25),
    changes.Trained(1, (0, 1), 7),
]


def opened(directory):
    journal = Journal(directory)
    assert journal.reopen(0) == []
    return journal


def filled(directory, records=RECORDS):
    journal = opened(directory)
    for record in records:
        journal.write(record)
    journal.close()
    return directory / "0.log"


def a_group(number=3):
    ticket = Ticket(number=number, problem=problem_at(number))
    return Group(ticket=ticket, version=2, rollouts=(fake_rollout(ticket, 0, 2),) * 2)


def test_what_was_written_is_read(tmp_path):
    filled(tmp_path)
    journal = Journal(tmp_path)
    assert journal.reopen(0) == RECORDS
    assert journal.num_bytes_cut == 0


def test_any_cut_leaves_whole_records_and_the_rest_goes_on(tmp_path):
    content = filled(tmp_path / "whole").read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content)):
        directory = tmp_path / str(length)
        directory.mkdir()
        (directory / "0.log").write_bytes(content[:length])
        journal = Journal(directory, fsync_every_s=1e9)
        whole = sum(end <= length for end in ends) - 1  # the first line is no record
        assert journal.reopen(0) == RECORDS[: max(whole, 0)]
        journal.write(changes.Drain(5))
        journal.close()
        assert Journal(directory).reopen(0) == [*RECORDS[: max(whole, 0)], changes.Drain(5)]


@pytest.mark.parametrize("place", [60, 100, 150])
def test_a_flipped_bit_ends_what_is_read(tmp_path, place):
    path = filled(tmp_path)
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(bytes(content))
    journal = Journal(tmp_path)
    found = journal.reopen(0)
    assert found == RECORDS[: len(found)]
    assert len(found) < len(RECORDS)
    assert journal.num_bytes_cut > 0


def test_groups_come_back_as_they_were(tmp_path):
    journal = opened(tmp_path)
    places = [journal.keep(a_group(number)) for number in range(3)]
    for number, place in enumerate(places):
        assert_same(journal.load(place), a_group(number))


def test_a_record_without_its_arrays_ends_what_is_read(tmp_path):
    journal = opened(tmp_path)
    places = [journal.keep(a_group(number)) for number in range(2)]
    records = [changes.Generated(number, 0.0, place) for number, place in enumerate(places)]
    for record in records:
        journal.write(record)
    journal.close()
    path = tmp_path / "0.arrays"
    path.write_bytes(path.read_bytes()[:-3])
    again = Journal(tmp_path)
    assert again.reopen(0) == records[:1]
    with pytest.raises(CheckpointError, match="damaged"):
        again.load(places[1])


def test_segments_go_on_from_snapshots(tmp_path):
    journal = opened(tmp_path)
    for number in range(4):
        assert journal.next_segment == number + 1
        journal.write(changes.Drain(number))
        journal.rotate()
    journal.forget_before(2)
    journal.close()
    assert Journal(tmp_path).reopen(2) == [changes.Drain(2), changes.Drain(3)]
    assert Journal(tmp_path).segments() == [2, 3, 4]
    assert Journal(tmp_path).reopen(3) == [changes.Drain(3)]
    assert Journal(tmp_path).reopen(1) == []  # it is gone: from the checkpoint alone
    assert Journal(tmp_path).segments() == [1]


def test_damage_hides_later_segments(tmp_path):
    journal = opened(tmp_path)
    journal.write(changes.Drain(0))
    journal.rotate()
    journal.write(changes.Drain(1))
    journal.close()
    path = tmp_path / "0.log"
    path.write_bytes(path.read_bytes()[:-2])
    assert Journal(tmp_path).reopen(0) == []
    assert Journal(tmp_path).segments() == [0]


def test_a_record_of_another_release_is_refused():
    with pytest.raises(CheckpointError, match="Teleport"):
        journal.from_json(["Teleport", 1])
