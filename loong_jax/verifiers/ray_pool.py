"""The verifier pool on Ray workers; with ray_start.py the only modules here that import ray.

Each actor owns one killable worker (worker.py), so that a verifier that hangs costs its own request
and nothing else. One thread of ours owns all of the pool's state and sleeps until Ray calls back.
What an actor held when it was lost goes, one request at a time, to others; after three losses it is
ungradable.
"""

import dataclasses
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray

from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.verifiers import worker
from loong_jax.verifiers.pool import (
    RequestTable,
    VerdictFuture,
    VerifierRequest,
    Waiting,
)
from loong_jax.verifiers.ray_start import start_ray
from loong_jax.verifiers.worker import VerifierActor, WorkerConfig

MAX_ATTEMPTS = 3
_START_S = 90.0
_NUM_CPUS = 0.1  # that an actor asks of Ray's scheduler: few, so that it fits beside a trainer
_GRACE_S = 30.0  # an actor's time for a batch beyond the requests' deadlines


@dataclasses.dataclass(eq=False)
class _Slot:
    """Place of one actor; a lost actor's place gets another."""

    actor: Any = None
    pid: int | None = None  # known once it is ready
    batch: list[VerifierRequest] = dataclasses.field(default_factory=list)
    deadline: float = 0.0  # of the start or of the batch; 0 for none
    num_failed_starts: int = 0


class RayVerifierPool:
    """`num_workers` Ray actors that share the waiting requests.

    The pool shuts Ray down on `close` only if it started it. Raises VerifierError where no actor
    can be started.
    """

    def __init__(
        self,
        num_workers: int = 2,
        config: WorkerConfig | None = None,
        *,
        address: str | None = None,
    ):
        if num_workers < 1:
            raise VerifierError(f"num_workers={num_workers} is below 1. A pool needs a worker.")
        self._owns_ray = start_ray(address)
        self._config = config or WorkerConfig()
        self._actor_class = ray.remote(VerifierActor).options(
            num_cpus=_NUM_CPUS, max_restarts=0, max_task_retries=0
        )
        self._table = RequestTable()
        self._events: queue.SimpleQueue[tuple] = queue.SimpleQueue()
        self._waiting = Waiting()
        self._slots = [_Slot() for _ in range(num_workers)]
        self._lock = threading.Lock()  # of `_is_closed` and the order of events
        self._is_closed = False
        self._closing_deadline: float | None = None
        self._broken = ""
        self.num_lost = 0
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="verifier-pool", daemon=True)
        self._thread.start()
        if not self._is_ready.wait(_START_S) or self._broken:
            self.close(0.0)
            raise VerifierError(
                f"no verifier actor started: {self._broken or f'waited {_START_S:.0f} s'}. Does "
                f"Ray have {_NUM_CPUS} free CPUs, and is loong_jax installed on its workers?"
            )

    def submit(self, requests: Sequence[VerifierRequest]) -> list[VerdictFuture]:
        with self._lock:
            if self._is_closed:
                raise VerifierError("the verifier pool is closed. Open another.")
            futures, new = self._table.open(requests)
            self._events.put(("submitted", new))
        return futures

    def pids(self) -> list[int]:
        return [slot.pid for slot in self._slots if slot.pid is not None]

    def close(self, timeout_s: float = 10.0) -> None:
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            self._events.put(("close", time.monotonic() + timeout_s))
        self._thread.join(timeout_s + 10.0)
        if self._owns_ray and not was_closed:
            ray.shutdown()

    # ---- Below: in the pool's own thread. ----

    def _loop(self) -> None:
        for slot in self._slots:
            self._start(slot)
        while True:
            try:
                event = self._events.get(timeout=self._seconds_to_deadline())
            except queue.Empty:
                event = ("deadline",)
            match event:
                case ("submitted", requests):
                    self._waiting.extend(requests)
                case ("started", slot, actor, future):
                    self._on_started(slot, actor, future)
                case ("judged", slot, actor, future):
                    self._on_judged(slot, actor, future)
                case ("deadline",):
                    self._on_deadline()
                case ("close", deadline):
                    self._closing_deadline = deadline
                    for request in self._waiting.clear():
                        request.answer(verdict.ungradable("pool closed"))
            if self._closing_deadline is not None:
                busy = [slot for slot in self._slots if slot.batch]
                if not busy or time.monotonic() >= self._closing_deadline:
                    return self._end()
            elif self._broken:
                for request in self._waiting.clear():
                    request.answer(verdict.ungradable("worker lost", self._broken))
            else:
                self._dispatch()

    def _seconds_to_deadline(self) -> float | None:
        deadlines = [slot.deadline for slot in self._slots if slot.deadline]
        if self._closing_deadline is not None:
            deadlines.append(self._closing_deadline)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _start(self, slot: _Slot) -> None:
        slot.pid, slot.batch = None, []
        slot.deadline = time.monotonic() + _START_S
        slot.actor = self._actor_class.remote(self._config)
        self._call_back("started", slot, slot.actor.start.remote())

    def _call_back(self, kind: str, slot: _Slot, reference: Any) -> None:
        """Puts (kind, slot, actor, future) among the events once Ray has the result."""
        actor = slot.actor
        reference.future().add_done_callback(
            lambda future: self._events.put((kind, slot, actor, future))
        )

    def _on_started(self, slot: _Slot, actor: Any, future: Any) -> None:
        if actor is not slot.actor:
            return  # of an actor given up before
        if (error := future.exception()) is not None:
            return self._replace(slot, f"{type(error).__name__}: {error}")
        slot.pid, slot.num_failed_starts, slot.deadline = future.result(), 0, 0.0
        self._is_ready.set()

    def _on_judged(self, slot: _Slot, actor: Any, future: Any) -> None:
        if actor is not slot.actor:
            return
        if (error := future.exception()) is not None:
            return self._replace(slot, f"{type(error).__name__}: {error}")
        batch, slot.batch, slot.deadline = slot.batch, [], 0.0
        for request, body in zip(batch, worker.unpack(future.result()), strict=True):
            request.answer(worker.decode(body))

    def _on_deadline(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            if slot.deadline and now >= slot.deadline:
                self._replace(slot, "it did not answer in time")

    def _replace(self, slot: _Slot, why: str) -> None:
        """Gives the slot another actor and what the lost one held back to the queue."""
        ray.kill(slot.actor)
        self.num_lost += 1
        slot.num_failed_starts += slot.pid is None
        for request in reversed(slot.batch):
            request.attempts += 1
            if request.attempts >= MAX_ATTEMPTS:
                evidence = f"{MAX_ATTEMPTS} times, last: {why}"[:500]
                request.answer(verdict.ungradable("worker lost", evidence))
            else:
                self._waiting.put_back(request)
        if slot.num_failed_starts < MAX_ATTEMPTS and self._closing_deadline is None:
            return self._start(slot)
        slot.actor, slot.pid, slot.batch, slot.deadline = None, None, [], 0.0
        if all(other.actor is None for other in self._slots):
            self._broken = why
            self._is_ready.set()

    def _dispatch(self) -> None:
        """Gives every idle actor a batch."""
        idle = [slot for slot in self._slots if slot.pid is not None and not slot.batch]
        for count, slot in enumerate(idle):
            slot.batch = self._waiting.take(len(idle) - count)
            if not slot.batch:
                return
            deadlines_s = [request.deadline_s for request in slot.batch]
            slot.deadline = time.monotonic() + sum(deadlines_s) + _GRACE_S
            block = worker.pack([request.body for request in slot.batch])
            self._call_back("judged", slot, slot.actor.judge.remote(block, deadlines_s))

    def _end(self) -> None:
        for slot in self._slots:
            for request in slot.batch:
                request.answer(verdict.ungradable("pool closed"))
            if slot.actor is not None:
                ray.kill(slot.actor)
