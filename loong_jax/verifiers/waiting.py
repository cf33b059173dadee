"""Requests that wait for a worker: a queue per verifier, and how many of each may be at work."""

import collections
from collections.abc import Iterable, Mapping

from loong_jax.verifiers.pool import VerifierRequest

MAX_BATCH_BYTES = 4 * 2**20


class Waiting:
    """Queues that take turns, so that a slow verifier never keeps the others waiting.

    `concurrency` bounds how many batches of a verifier are out at once; others are unbounded.
    """

    def __init__(self, concurrency: Mapping[str, int]):
        self._concurrency = concurrency
        self._queues: dict[str, collections.deque[VerifierRequest]] = {}
        self._num_out: collections.Counter[str] = collections.Counter()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def extend(self, requests: Iterable[VerifierRequest]) -> None:
        for request in requests:
            self._queues.setdefault(request.verifier, collections.deque()).append(request)

    def put_back(self, request: VerifierRequest) -> None:
        """Before all others of its verifier."""
        self._queues.setdefault(request.verifier, collections.deque()).appendleft(request)

    def clear(self) -> list[VerifierRequest]:
        requests = [request for waiting in self._queues.values() for request in waiting]
        self._queues = {}
        return requests

    def can_take(self) -> bool:
        """True if an idle worker would get something."""
        return any(map(self._is_open, self._queues))

    def take(self, num_idle: int, max_requests: int) -> list[VerifierRequest]:
        """The next batch, of one verifier: its share among so many idle workers. May be empty.

        A request that was lost before travels alone, so that it takes no other with it again.
        """
        for name in list(self._queues):
            if not self._is_open(name):
                continue
            waiting = self._queues.pop(name)
            if batch := _batch(waiting, min(-(-len(waiting) // num_idle), max_requests)):
                self._num_out[name] += 1
            if waiting:
                self._queues[name] = waiting  # last in turn now
            if batch:
                return batch
        return []

    def returned(self, verifier: str) -> None:
        """A batch of this verifier is back."""
        self._num_out[verifier] -= 1

    def _is_open(self, name: str) -> bool:
        limit = self._concurrency.get(name)
        return bool(self._queues[name]) and (limit is None or self._num_out[name] < limit)


def _batch(waiting: collections.deque[VerifierRequest], max_requests: int) -> list[VerifierRequest]:
    batch: list[VerifierRequest] = []
    num_bytes = 0
    while waiting and len(batch) < max_requests:
        request = waiting[0]
        if batch and (request.attempts or num_bytes + len(request.body) > MAX_BATCH_BYTES):
            break
        waiting.popleft()
        if request.attempts or request.future.set_running_or_notify_cancel():
            batch.append(request)
            num_bytes += len(request.body)
            if request.attempts:
                break
    return batch
