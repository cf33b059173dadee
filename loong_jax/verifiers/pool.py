"""The verifier pool: many requests, one future each, and nothing a verifier does can stop it.

`LocalVerifierPool` runs workers on this machine; ray_pool.py has the form for Ray workers.
`FormedPool` stands before either: what breaks the form of a recipe's responses reaches no verifier.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from loong_jax.child import ChildLost
from loong_jax.errors import VerifierError
from loong_jax.problems import response, verdict
from loong_jax.problems.problem import Problem
from loong_jax.problems.response import ResponseForm
from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers import worker
from loong_jax.verifiers.worker import WorkerConfig, WorkerProcess

VerdictFuture = concurrent.futures.Future[Verdict]
MAX_ATTEMPTS = 3
MAX_BATCH, MAX_BATCH_BYTES = 64, 4 * 2**20


@dataclasses.dataclass(kw_only=True, eq=False)
class VerifierRequest:
    """One response to judge. `key` names the request: the same key is the same future.

    `deadline_s` counts from when a worker takes the request: waiting is not the verifier's fault.
    """

    key: str
    problem: Problem
    response_text: str
    deadline_s: float = 10.0
    future: VerdictFuture = dataclasses.field(init=False)  # once a pool has accepted it
    attempts: int = dataclasses.field(default=0, init=False)  # that a lost worker took along

    @functools.cached_property
    def body(self) -> bytes:
        """The request as JSON, for a worker."""
        body = {"problem": vars(self.problem), "response_text": self.response_text}
        return json.dumps(body, default=dict).encode()

    @property
    def verifier(self) -> str:
        return self.problem.verifier

    def answer(self, judged: Verdict) -> None:
        """Resolves the future unless that was done before."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.future.set_result(judged)


@runtime_checkable
class VerifierPool(Protocol):
    """Futures resolve to a verdict, whatever happens: ungradable with `timeout`, `worker lost`,
    `verifier raised` or `pool closed` as reason where there is no judgement."""

    def submit(self, requests: Sequence[VerifierRequest]) -> list[VerdictFuture]:
        """One future per request, in order. Raises VerifierError once the pool is closed, and for a
        key that stands for another request."""
        ...

    def close(self, timeout_s: float) -> None:
        """Waits so long for what is in hand, then ends everything. May be called twice."""
        ...


class RequestTable:
    """Futures by key: of all open requests and of the last `max_answered` answered ones."""

    def __init__(self, max_answered: int = 65536):
        self._lock = threading.Lock()
        self._known = collections.OrderedDict[str, tuple[int, VerdictFuture]]()  # with a digest
        self._max_answered = max_answered

    def open(
        self, requests: Sequence[VerifierRequest]
    ) -> tuple[list[VerdictFuture], list[VerifierRequest]]:
        """Futures of all requests, in order, and the requests that are new."""
        futures, new = [], []
        with self._lock:
            for request in requests:
                digest = hash(request.body)
                if request.key not in self._known:
                    request.future = VerdictFuture()
                    forget = functools.partial(self._forget_cancelled, request.key)
                    request.future.add_done_callback(forget)
                    self._known[request.key] = (digest, request.future)
                    new.append(request)
                known, future = self._known[request.key]
                if known != digest:
                    raise VerifierError(
                        f"key {request.key!r} stands for another request already. Give each "
                        "rollout a key of its own."
                    )
                futures.append(future)
            excess = len(self._known) - self._max_answered
            if excess > 0:
                answered = (key for key, (_, future) in self._known.items() if future.done())
                for key in list(itertools.islice(answered, excess)):
                    del self._known[key]
        return futures, new

    def _forget_cancelled(self, key: str, future: VerdictFuture) -> None:
        """Runs in the thread that resolved or cancelled the future."""
        if future.cancelled():
            with self._lock:
                self._known.pop(key, None)


class FedPool:
    """Workers that share the waiting requests, each with a thread that feeds it.

    The thread of a worker calls its `prepare`, which starts it, `judge`, of which both raise
    ChildLost where it is gone, and `stop`; any thread may `end` it. What a worker held when it was
    lost goes, one request at a time, to others; after `MAX_ATTEMPTS` losses it is ungradable. As
    many failed starts in a row give a worker up.
    """

    def __init__(self, workers: Sequence[Any], max_batch: int):
        if not workers:
            raise VerifierError("num_workers=0 is below 1. A pool needs a worker.")
        self._table, self._waiting = RequestTable(), Waiting(max_batch)
        self._changed = threading.Condition()  # of all that follows
        self._is_closed, self._is_settled = False, threading.Event()  # a worker waits, or none will
        self._broken = ""  # why no worker is left
        self._num_idle, self._num_left = 0, len(workers)
        self._in_hand: set[VerifierRequest] = set()
        self._workers = workers
        self._threads = [
            threading.Thread(target=self._feed, args=(w,), name=f"verifier-{i}", daemon=True)
            for i, w in enumerate(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, requests: Sequence[VerifierRequest]) -> list[VerdictFuture]:
        with self._changed:
            if self._is_closed:
                raise VerifierError("the verifier pool is closed. Open another.")
            futures, new = self._table.open(requests)
            self._waiting.extend(new)
            self._answer_if_broken()
            self._changed.notify_all()
        return futures

    @property
    def num_lost(self) -> int:
        """Workers that were lost."""
        return sum(one.num_lost for one in self._workers)

    def pids(self) -> list[int]:
        return [pid for w in self._workers if (pid := w.pid) is not None]

    def close(self, timeout_s: float = 10.0) -> None:
        with self._changed:
            self._is_closed = True
            queued = self._waiting.clear()
            self._changed.notify_all()
        for request in queued:
            request.answer(verdict.ungradable("pool closed"))
        with self._changed:  # a worker that still starts is not waited for
            self._changed.wait_for(lambda: not self._in_hand, timeout_s)
        for request in list(self._in_hand):
            request.answer(verdict.ungradable("pool closed"))
        for one in self._workers:  # a worker at work is killed; its thread then ends by itself
            one.end()
        for thread in self._threads:
            thread.join(5.0)

    def wait_until_ready(self, timeout_s: float) -> str | None:
        """Waits until a worker can be fed; why none can, "" where none could so soon, else None."""
        is_settled = self._is_settled.wait(timeout_s)
        return None if is_settled and not self._broken else self._broken

    def _feed(self, one: Any) -> None:
        num_failed = 0
        try:
            while not self._is_closed:
                try:
                    one.prepare()
                except ChildLost as error:
                    num_failed += 1
                    if num_failed == MAX_ATTEMPTS:
                        return self._give_up(str(error))
                    continue
                num_failed = 0
                if not (batch := self._take()):
                    return None
                try:
                    judged = one.judge([r.body for r in batch], [r.deadline_s for r in batch])
                    for request, body in zip(batch, judged, strict=True):
                        request.answer(worker.decode(body))
                except ChildLost as error:
                    self._put_back(batch, str(error))
                else:
                    self._let_go(batch)
        finally:
            one.stop()

    def _take(self) -> list[VerifierRequest]:
        """The next batch; none once the pool is closed. Waits for either."""
        with self._changed:
            self._is_settled.set()
            self._num_idle += 1
            while not (batch := self._waiting.take(self._num_idle)) and not self._is_closed:
                self._changed.wait()
            self._num_idle -= 1
            self._in_hand.update(batch)
            return batch

    def _let_go(self, batch: Sequence[VerifierRequest]) -> None:
        with self._changed:
            self._in_hand.difference_update(batch)
            if self._is_closed:
                self._changed.notify_all()

    def _put_back(self, batch: Sequence[VerifierRequest], why: str) -> None:
        with self._changed:
            self._in_hand.difference_update(batch)
            for request in reversed(batch):
                request.attempts += 1
                if self._is_closed:
                    request.answer(verdict.ungradable("pool closed"))
                elif request.attempts < MAX_ATTEMPTS:
                    self._waiting.put_back(request)
                else:
                    evidence = f"{MAX_ATTEMPTS} times, last: {why}"[:500]
                    request.answer(verdict.ungradable("worker lost", evidence))
            self._changed.notify_all()

    def _give_up(self, why: str) -> None:
        with self._changed:
            self._num_left -= 1
            if not self._num_left:
                self._broken = why
                self._is_settled.set()
            self._answer_if_broken()

    def _answer_if_broken(self) -> None:
        for request in self._waiting.clear() if self._broken else ():
            request.answer(verdict.ungradable("worker lost", self._broken))


class LocalVerifierPool(FedPool):
    """Workers as child processes of this one, which start with their first requests."""

    def __init__(self, num_workers: int = 2, config: WorkerConfig | None = None):
        made = [WorkerProcess(config or WorkerConfig()) for _ in range(num_workers)]
        super().__init__(made, max_batch=1)


class FormedPool:
    """A pool whose requests are responses of one form.

    One that breaks the form is wrong with reason `format`, whatever it says. Of the others the
    verifiers see the answer, in tags, so that each reads it alike in every form. Equal answers to
    one problem that come together are judged once, and share a future.
    """

    def __init__(self, pool: VerifierPool, form: ResponseForm):
        self.pool, self.form = pool, form

    def submit(self, requests: Sequence[VerifierRequest]) -> list[VerdictFuture]:
        found = [response.read(request.response_text, self.form) for request in requests]
        answers = [
            (id(request.problem), one.answer) if one.is_well_formed else None
            for request, one in zip(requests, found, strict=True)
        ]
        asked: dict[tuple[int, str], VerifierRequest] = {}
        for request, answer in zip(requests, answers, strict=True):
            if answer is not None and answer not in asked:
                text = response.render(_SHOWN, "", answer[1])
                asked[answer] = dataclasses.replace(request, response_text=text)
        futures = dict(zip(asked, self.pool.submit(list(asked.values())), strict=True))
        return [futures[one] if one is not None else _resolved(_MALFORMED) for one in answers]

    def close(self, timeout_s: float = 10.0) -> None:
        self.pool.close(timeout_s)


_SHOWN = response.FORMS["tagged"]
_MALFORMED = verdict.wrong("format", "the response is not of the recipe's form")


def _resolved(judged: Verdict) -> VerdictFuture:
    future: VerdictFuture = VerdictFuture()
    future.set_result(judged)
    return future


class Waiting:
    """Requests in queues by verifier that take turns, so that a slow one keeps no other waiting."""

    def __init__(self, max_batch: int):
        self._max_batch = max_batch
        self._queues: dict[str, collections.deque[VerifierRequest]] = {}

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

    def take(self, num_idle: int) -> list[VerifierRequest]:
        """The next batch, of one verifier: its share among so many idle workers. May be empty.

        A request that was lost before travels alone, so that it takes no other with it again.
        """
        for name in list(self._queues):
            waiting = self._queues.pop(name)
            batch = _batch(waiting, min(-(-len(waiting) // num_idle), self._max_batch))
            if waiting:
                self._queues[name] = waiting  # last in turn now
            if batch:
                return batch
        return []


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
