"""Requests in turn, within their verifier's limit; and how they travel."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loong_jax.verifiers import ray_actor, waiting
from loong_jax.verifiers.pool import RequestTable, VerifierRequest
from loong_jax.verifiers.waiting import Waiting
from tests.verifiers import pool_checks


def requests(verifier: str, count: int) -> list[VerifierRequest]:
    made = [pool_checks.request(f"{verifier}/{i}", "", verifier=verifier) for i in range(count)]
    return RequestTable().open(made)[1]


def keys(batch: list[VerifierRequest]) -> list[str]:
    return [request.key for request in batch]


def test_verifiers_take_turns_and_share_among_the_idle():
    queue = Waiting({})
    queue.extend(requests("a", 5))
    queue.extend(requests("b", 2))
    assert len(queue) == 7
    assert keys(queue.take(2, 64)) == ["a/0", "a/1", "a/2"]
    assert keys(queue.take(1, 64)) == ["b/0", "b/1"]
    assert keys(queue.take(1, 1)) == ["a/3"]
    assert keys(queue.take(1, 64)) == ["a/4"]
    assert queue.take(1, 64) == []


def test_no_more_batches_of_a_verifier_than_its_limit():
    queue = Waiting({"a": 1})
    queue.extend(requests("a", 4))
    assert len(queue.take(2, 64)) == 2
    assert not queue.can_take()
    assert queue.take(1, 64) == []
    queue.extend(requests("b", 1))
    assert keys(queue.take(1, 64)) == ["b/0"]
    queue.returned("a")
    assert queue.can_take()
    assert keys(queue.take(1, 64)) == ["a/2", "a/3"]


def test_what_was_lost_goes_first_and_alone_and_what_is_cancelled_never():
    queue = Waiting({})
    lost, cancelled, *others = requests("a", 5)
    queue.extend([cancelled, *others])
    cancelled.future.cancel()
    lost.attempts = 1
    queue.put_back(lost)
    assert keys(queue.take(1, 64)) == ["a/0"]
    assert keys(queue.take(1, 64)) == ["a/2", "a/3", "a/4"]


def test_a_batch_is_bounded_in_bytes(monkeypatch):
    queue, made = Waiting({}), requests("a", 3)
    monkeypatch.setattr(waiting, "MAX_BATCH_BYTES", 2 * len(made[0].body))
    queue.extend(made)
    assert keys(queue.take(1, 64)) == ["a/0", "a/1"]
    assert keys(queue.clear()) == ["a/2"]
    assert len(queue) == 0


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=40), max_size=8))
def test_batches_arrive_as_they_left(bodies):
    assert ray_actor.unpack(ray_actor.pack(bodies)) == bodies


def test_requests_of_one_kind_shrink():
    body = pool_checks.request("a", "right").body
    assert len(ray_actor.pack([body] * 64)) < 64 * len(body) / 10


@pytest.mark.parametrize("size", [0, 1, 2**16])
def test_any_length_travels(size):
    assert ray_actor.unpack(ray_actor.pack([b"x" * size, b""])) == [b"x" * size, b""]
