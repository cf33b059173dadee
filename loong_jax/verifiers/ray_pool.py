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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray

from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.verifiers import ray_actor, worker
from loong_jax.verifiers.pool import (
    RequestTable,
    VerdictFuture,
    VerifierRequest,
)
from loong_jax.verifiers.ray_actor import VerifierActor
from loong_jax.verifiers.ray_start import start_ray
from loong_jax.verifiers.waiting import Waiting
from loong_jax.verifiers.worker import WorkerConfig

MAX_ATTEMPTS = 3
_START_S = 90.0
_IDLE_S = 30.0  # after which an actor beyond the first ones goes
_GRACE_S = 30.0  # an actor's time for a batch beyond the requests' deadlines


@dataclasses.dataclass(eq=False)
class _Slot:
    """Place of one actor; a lost actor's place gets another."""

    actor: Any = None
    pid: int | None = None  # known once it is ready
    batch: list[VerifierRequest] = dataclasses.field(default_factory=list)
    deadline: float = 0.0  # of the start, of the batch, or of an idle life; 0 for none
    sent: float = 0.0  # when the batch left
    num_failed_starts: int = 0


class RayVerifierPool:
    """Ray actors that share the waiting requests: `num_workers`, up to `max_workers` under load.

    A further actor starts while requests wait and none is idle; it goes after half a minute without
    work. `concurrency` bounds the batches of a verifier that are at work at once. `num_cpus` is
    what each actor asks of Ray's scheduler; small, so that verifiers fit beside a trainer. The pool
    shuts Ray down on `close` only if it started it. Raises VerifierError where none can be started.
    """

    def __init__(
        self,
        num_workers: int = 2,
        config: WorkerConfig | None = None,
        *,
        max_workers: int | None = None,
        concurrency: Mapping[str, int] | None = None,
        address: str | None = None,
        num_cpus: float = 0.1,
        batch_size: int = 64,
    ):
        max_workers = num_workers if max_workers is None else max_workers
        if num_workers < 1 or batch_size < 1 or max_workers < num_workers:
            raise VerifierError(
                f"num_workers={num_workers}, max_workers={max_workers}, batch_size={batch_size}: "
                "all must be at least 1, and max_workers no less than num_workers."
            )
        if any(limit < 1 for limit in (concurrency or {}).values()):
            raise VerifierError(f"concurrency={dict(concurrency or {})}: limits are at least 1.")
        self._owns_ray = start_ray(address)
        self._config, self._batch_size = config or WorkerConfig(), batch_size
        self._actor_class = ray.remote(VerifierActor).options(
            num_cpus=num_cpus, max_restarts=0, max_task_retries=0
        )
        self._table = RequestTable()
        self._events: queue.SimpleQueue[tuple] = queue.SimpleQueue()
        self._waiting = Waiting(concurrency or {})
        self._num_workers, self._max_workers = num_workers, max_workers
        self._sent_bytes = self._packed_bytes = self._num_batches = self._num_retried = 0
        self._seconds: dict[str, list[float]] = {}  # by verifier: requests, seconds with an actor
        self._slots = [_Slot() for _ in range(num_workers)]
        self._lock = threading.Lock()  # of `_is_closed` and the order of events
        self._is_closed = False
        self._closing_deadline: float | None = None
        self._broken = ""
        self._num_lost = 0
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="verifier-pool", daemon=True)
        self._thread.start()
        if not self._is_ready.wait(_START_S) or self._broken:
            self.close(0.0)
            raise VerifierError(
                f"no verifier actor started: {self._broken or f'waited {_START_S:.0f} s'}. Does "
                f"Ray have {num_cpus} free CPUs, and is loong_jax installed on its workers?"
            )

    def submit(self, requests: Sequence[VerifierRequest]) -> list[VerdictFuture]:
        with self._lock:
            if self._is_closed:
                raise VerifierError("the verifier pool is closed. Open another.")
            futures, new = self._table.open(requests)
            self._events.put(("submitted", new))
        return futures

    def cancel(self, keys: Iterable[str]) -> int:
        return self._table.cancel(keys)

    def counts(self) -> dict[str, int]:
        return self._table.counts() | {"workers_lost": self._num_lost}

    def metrics(self) -> dict[str, float]:
        """Figures for a run's log: counts, queue, actors, bytes, and seconds by verifier."""
        slots = list(self._slots)
        figures: dict[str, float] = {
            **self.counts(),
            "waiting": len(self._waiting),
            "actors": sum(slot.pid is not None for slot in slots),
            "actors_busy": sum(bool(slot.batch) for slot in slots),
            "batches": self._num_batches,
            "retried": self._num_retried,
            "sent_bytes": self._sent_bytes,
            "packed_bytes": self._packed_bytes,
        }
        for name, (num_requests, seconds) in list(self._seconds.items()):
            figures |= {f"{name}/requests": num_requests, f"{name}/actor_s": seconds}
        return figures

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
        slot.pid, slot.num_failed_starts = future.result(), 0
        slot.deadline = self._idle_deadline()
        self._is_ready.set()

    def _on_judged(self, slot: _Slot, actor: Any, future: Any) -> None:
        if actor is not slot.actor:
            return
        if (error := future.exception()) is not None:
            return self._replace(slot, f"{type(error).__name__}: {error}")
        batch, slot.batch, slot.deadline = slot.batch, [], self._idle_deadline()
        name = batch[0].verifier
        self._waiting.returned(name)
        figures = self._seconds.setdefault(name, [0, 0.0])
        figures[0] += len(batch)
        figures[1] += time.monotonic() - slot.sent
        block = future.result()
        self._packed_bytes += len(block)
        for request, body in zip(batch, ray_actor.unpack(block), strict=True):
            self._sent_bytes += len(body)
            request.answer(worker.decode(body))

    def _idle_deadline(self) -> float:
        return time.monotonic() + _IDLE_S if len(self._slots) > self._num_workers else 0.0

    def _on_deadline(self) -> None:
        now = time.monotonic()
        for slot in list(self._slots):
            if not slot.deadline or now < slot.deadline:
                continue
            if slot.batch or slot.pid is None:
                self._replace(slot, "it did not answer in time")
            elif len(self._slots) > self._num_workers:
                ray.kill(slot.actor)
                self._slots.remove(slot)
            else:
                slot.deadline = 0.0

    def _replace(self, slot: _Slot, why: str) -> None:
        """Gives the slot another actor and what the lost one held back to the queue."""
        ray.kill(slot.actor)
        self._num_lost += 1
        slot.num_failed_starts += slot.pid is None
        if slot.batch:
            self._waiting.returned(slot.batch[0].verifier)
            self._num_retried += len(slot.batch)
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
        """Gives every idle actor a batch, and starts one more where all are busy."""
        idle = [slot for slot in self._slots if slot.pid is not None and not slot.batch]
        for count, slot in enumerate(idle):
            slot.batch = self._waiting.take(len(idle) - count, self._batch_size)
            if not slot.batch:
                return
            deadlines_s = [request.deadline_s for request in slot.batch]
            slot.sent = time.monotonic()
            slot.deadline = slot.sent + sum(deadlines_s) + _GRACE_S
            bodies = [request.body for request in slot.batch]
            block = ray_actor.pack(bodies)
            self._num_batches += 1
            self._sent_bytes += sum(map(len, bodies))
            self._packed_bytes += len(block)
            self._call_back("judged", slot, slot.actor.judge.remote(block, deadlines_s))
        is_starting = any(slot.actor is not None and slot.pid is None for slot in self._slots)
        is_full = len(self._slots) >= self._max_workers or is_starting
        if not is_full and self._waiting.can_take():
            self._slots.append(_Slot())
            self._start(self._slots[-1])

    def _end(self) -> None:
        for slot in self._slots:
            for request in slot.batch:
                request.answer(verdict.ungradable("pool closed"))
            if slot.actor is not None:
                ray.kill(slot.actor)
