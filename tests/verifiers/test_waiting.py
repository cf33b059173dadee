"""Requests in turn, and how they travel."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from loong_jax.verifiers import pool, worker
from loong_jax.verifiers.pool import RequestTable, VerifierRequest, Waiting
from tests.verifiers import pool_checks


def requests(verifier: str, count: int) -> list[VerifierRequest]:
    made = [pool_checks.request(f"{verifier}/{i}", "", verifier=verifier) for i in range(count)]
    return RequestTable().open(made)[1]


def keys(batch: list[VerifierRequest]) -> list[str]:
    return [request.key for request in batch]


def test_verifiers_take_turns_and_share_among_the_idle():
    queue = Waiting(3)
    queue.extend(requests("a", 5))
    queue.extend(requests("b", 2))
    assert keys(queue.take(2)) == ["a/0", "a/1", "a/2"]
    queue.extend(requests("a", 3))
    assert keys(queue.take(1)) == ["b/0", "b/1"]
    assert keys(queue.take(1)) == ["a/3", "a/4", "a/0"]
    assert keys(queue.take(2)) == ["a/1"]
    assert keys(queue.take(1)) == ["a/2"]
    assert queue.take(1) == []


def test_what_was_lost_goes_first_and_alone_and_what_is_cancelled_never():
    queue = Waiting(64)
    lost, cancelled, *others = requests("a", 5)
    queue.extend([cancelled, *others])
    cancelled.future.cancel()
    lost.attempts = 1
    queue.put_back(lost)
    assert keys(queue.take(1)) == ["a/0"]
    assert keys(queue.take(1)) == ["a/2", "a/3", "a/4"]


def test_a_batch_is_bounded_in_bytes(monkeypatch):
    queue, made = Waiting(64), requests("a", 3)
    monkeypatch.setattr(pool, "MAX_BATCH_BYTES", 2 * len(made[0].body))
    queue.extend(made)
    assert keys(queue.take(1)) == ["a/0", "a/1"]
    assert keys(queue.clear()) == ["a/2"]


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=40), max_size=8))
@example([b"x" * 2**16, b""])
def test_batches_arrive_as_they_left(bodies):
    assert worker.unpack(worker.pack(bodies)) == bodies


def test_requests_of_one_kind_shrink():
    body = pool_checks.request("a", "right").body
    assert len(worker.pack([body] * 64)) < 64 * len(body) / 10
