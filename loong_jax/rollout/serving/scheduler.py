"""The one thread that drives the replica: admit, prefill, decode a block, hand out what is new.

Clients' threads only check requests, queue them and cancel them; the replica is touched by the
scheduler's thread alone. A request leaves in exactly one way: all its samples end, or it fails, is
cancelled, runs out of time or is not read. Whichever it is, its slots and pages are free before
the next block. An error of the engine ends the requests that were being written; the replica is
built anew, those that still waited are queued again, once, and the server goes on.
"""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable

import numpy as np

from loong_jax.environments.environment import Problem
from loong_jax.rollout.engine import Params
from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.serving.metrics import Metrics
from loong_jax.rollout.serving.open_requests import (
    OpenRequest,
    Sample,
    Status,
    StreamingReplica,
    check,
)
from loong_jax.rollout.serving.request import (
    Busy,
    Ended,
    Event,
    EventStream,
    Failed,
    FailureKind,
    Refused,
    Request,
    ServingLimits,
    Unavailable,
)
from loong_jax.rollout.serving.text import TextStream
from loong_jax.rollout.slot_engine import SlotEngine

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.5  # how long the thread sleeps at most while nothing runs
REBUILD_WAIT_S = 1.0  # between attempts to build a replica


class Scheduler:
    """Call `start`, then `submit` and `cancel` from any thread, then `stop`."""

    def __init__(
        self,
        engine: SlotEngine,
        params: Params,
        *,
        limits: ServingLimits,
        metrics: Metrics,
        version: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.engine, self.limits, self.metrics = engine, limits, metrics
        self._params, self.version, self._clock = params, version, clock
        self._tokenizer = engine.get_tokenizer()
        self._changed = threading.Condition()  # guards what follows, up to the blank line
        self._open: dict[str, OpenRequest] = {}
        self._new: list[OpenRequest] = []
        self._num_samples = 0  # of open requests, that have not ended
        self._is_paused = self._is_stopping = self._is_told_to_end = False
        self._is_ready = False

        self._replica: StreamingReplica | None = None
        self._of_ticket: dict[int, OpenRequest] = {}
        self._num_tickets = 0
        self._sample_s = 1.0  # how long a sample takes, a moving average
        self._thread = threading.Thread(target=self._run, name="loong-scheduler", daemon=True)

    # ---- from any thread ------------------------------------------------------------------------

    def start(self) -> None:
        """Builds the replica's empty slots and starts the thread. Warm the engine up before."""
        self._replica = self._new_replica()
        self._is_ready = True
        self._thread.start()

    def submit(self, request: Request, events: EventStream) -> None:
        """Takes up a request; events come to `events`. Raises Refused, Busy or Unavailable."""
        check(request, self.engine, self.limits)
        with self._changed:
            if self._is_stopping or not self._is_ready:
                reason = "is stopping" if self._is_stopping else "has no engine that works"
                raise Unavailable(f"The server {reason}. Try another one, or later.")
            if request.request_id in self._open:
                raise Refused(f"request_id {request.request_id!r} is in use. Choose another.")
            most = self.engine.config.slots_per_replica + self.limits.max_queued
            if self._num_samples + request.total_samples > most:
                self.metrics.refused.inc()
                raise Busy(
                    f"{self._num_samples} samples are running or waiting, and at most {most} may. "
                    "Try again later.",
                    self._retry_after_s(),
                )
            entry = OpenRequest(request, events, self._clock())
            self._open[request.request_id] = entry
            self._new.append(entry)
            self._num_samples += request.total_samples
            self._changed.notify()

    def cancel(self, request_id: str) -> bool:
        """Ends a request and frees its slots; False where it has ended already or never was."""
        with self._changed:
            entry = self._open.get(request_id)
            if entry is None:
                return False
            entry.is_cancelled = True
            self._changed.notify()
            return True

    def pause(self) -> None:
        """No more blocks until `resume`. What runs keeps its slots and cache, and its deadline."""
        self._set(is_paused=True)

    def resume(self) -> None:
        self._set(is_paused=False)

    def stop(self, timeout_s: float) -> bool:
        """Refuses new requests, lets the others end for `timeout_s`, fails the rest, and joins.

        True where all requests ended on their own.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._is_stopping, self._is_paused = True, False
            self._changed.notify()
            while self._open and (left_s := deadline_s - time.monotonic()) > 0:
                self._changed.wait(min(left_s, 0.1))
            all_ended = not self._open
            self._is_told_to_end = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=max(5.0, timeout_s))
        return all_ended

    def status(self) -> Status:
        with self._changed:
            replica = self._replica
            num_running = 0 if replica is None else replica.active_slots
            return Status(
                is_ready=self._is_ready and not self._is_stopping,
                is_paused=self._is_paused,
                is_stopping=self._is_stopping,
                num_requests=len(self._open),
                num_running=num_running,
                num_waiting=max(0, self._num_samples - num_running),
            )

    def _set(self, *, is_paused: bool) -> None:
        with self._changed:
            self._is_paused = is_paused
            self._changed.notify()

    def _retry_after_s(self) -> int:
        """When the queue may have moved on by as much as it is too long."""
        rounds = self._num_samples / self.engine.config.slots_per_replica
        return min(60, max(1, math.ceil(rounds * self._sample_s)))

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            if self._replica is None and not self._rebuild():
                continue
            self._take_new()
            try:
                self._end_overdue()
                if self._of_ticket and not self._is_paused:
                    self._step()
            except Exception as error:
                log.exception("the engine failed; building the replica anew")
                self._recover(error)
            self._update_gauges()
        self._replica = None
        for entry in list(self._open.values()):
            self._fail(entry, "stopping", "The server stopped before the request was done.")
        self._update_gauges()

    def _step(self) -> None:
        assert self._replica is not None
        _, stats = self._replica.step()
        self.metrics.step(stats, self._replica)
        self._hand_out()

    def _wait_for_work(self) -> bool:
        """Returns at once while something runs; False when the thread is to end."""
        with self._changed:
            if not self._is_told_to_end and (self._is_paused or not self._of_ticket):
                has_news = self._new or any(entry.is_cancelled for entry in self._open.values())
                if not has_news:
                    self._changed.wait(self._longest_wait_s())
            return not self._is_told_to_end

    def _longest_wait_s(self) -> float:
        now_s = self._clock()
        waits_s = [e.arrived_s + e.request.timeout_s - now_s for e in self._open.values()]
        return max(0.0, min([IDLE_WAIT_S, *waits_s]))

    def _new_replica(self) -> StreamingReplica:
        replica = StreamingReplica(
            self.engine,
            group_size=1,
            sampling=SamplingSettings(),
            seed=0,
            encode_prompt=lambda problem: np.asarray(problem.arguments["tokens"], np.int32),
            clock=self._clock,
        )
        replica.assign(self.version, self._params)
        return replica

    def _rebuild(self) -> bool:
        try:
            self._replica = self._new_replica()
        except Exception:
            log.exception("no replica can be built; trying again in %s s", REBUILD_WAIT_S)
            for entry in list(self._open.values()):
                self._fail(entry, "engine", "The engine cannot be started.")
            time.sleep(REBUILD_WAIT_S)
        with self._changed:
            self._is_ready = self._replica is not None
        return self._is_ready

    def _take_new(self) -> None:
        with self._changed:
            new, self._new = self._new, []
        for entry in new:
            if entry.request.request_id in self._open:  # it may have been failed meanwhile
                self._queue(entry)

    def _queue(self, entry: OpenRequest) -> None:
        """Every prompt is a ticket; equal seeds name equal random streams."""
        assert self._replica is not None
        request = entry.request
        stream = secrets.token_hex(16) if request.seed is None else f"seed {request.seed}"
        entry.tickets.clear()
        entry.samples.clear()
        for i, prompt in enumerate(request.prompts):
            number = self._num_tickets
            self._num_tickets += 1
            entry.tickets.append(number)
            self._of_ticket[number] = entry
            for j in range(request.num_samples):
                text = TextStream(self._tokenizer.decode, request.stops)
                entry.samples[number, j] = Sample(i * request.num_samples + j, text)
            ticket = Ticket(number=number, problem=_as_problem(stream, prompt), issue=i)
            try:
                self._replica.submit(
                    [ticket], group_size=request.num_samples, sampling=request.sampling
                )
            except Exception as error:  # `check` let it pass, so it is our mistake
                log.exception("a request that was checked was refused")
                self._fail(entry, "engine", f"The engine refused the request: {error}")
                return

    def _end_overdue(self) -> None:
        now_s = self._clock()
        for entry in list(self._open.values()):
            if entry.is_cancelled:
                self._fail(entry, "cancelled", "The request was cancelled.")
            elif now_s > entry.arrived_s + entry.request.timeout_s:
                message = f"The request took longer than {entry.request.timeout_s:g} s."
                self._fail(entry, "timeout", message)
            elif entry.events.num_unread > self.limits.max_unread:
                message = f"More than {self.limits.max_unread} events were not read."
                self._fail(entry, "slow_reader", message)

    def _hand_out(self) -> None:
        """Sends the growth of every sample to its client."""
        assert self._replica is not None
        events: dict[OpenRequest, list[Event]] = {}
        for attempt, reason in self._replica.harvest():
            entry = self._of_ticket.get(attempt.job.ticket.number)
            if entry is None:
                continue
            sample = entry.samples[attempt.job.ticket.number, attempt.number]
            entry.has_begun = True
            found = events.setdefault(entry, [])
            if piece := sample.take(attempt, self._tokenizer.end_ids):
                found.append(piece)
            if reason is None and sample.text.is_stopped:
                self._replica.end(attempt)
            if sample.text.is_stopped or reason is not None:
                sample.has_ended = True
                is_length = reason == "length" and not sample.text.is_stopped
                rest = sample.text.finish()
                found.append(Ended(sample.index, "length" if is_length else "stop", rest))
        for entry, found in events.items():
            if found:
                entry.events.put(found)
            ended = [event for event in found if isinstance(event, Ended)]
            if ended:
                seconds = self._clock() - entry.arrived_s
                self._sample_s += 0.1 * (seconds - self._sample_s)
                self._forget_samples(len(ended))
                for event in ended:
                    self.metrics.samples.labels(event.reason).inc()
            if not entry.num_left:
                self._close(entry, "done")

    def _recover(self, error: Exception) -> None:
        """Ends what was being written and queues the rest again in a new replica."""
        self.metrics.engine_errors.inc()
        self._replica = None
        waiting = []
        for entry in set(self._of_ticket.values()):
            if entry.has_begun or entry.was_requeued:
                self._fail(entry, "engine", f"The engine failed: {type(error).__name__}: {error}")
            else:
                waiting.append(entry)
        self._of_ticket.clear()
        if self._rebuild():
            for entry in sorted(waiting, key=lambda entry: entry.tickets[0]):
                entry.was_requeued = True
                self._queue(entry)

    def _fail(self, entry: OpenRequest, kind: FailureKind, message: str) -> None:
        entry.events.put([Failed(kind, message)])
        self._forget_samples(entry.num_left)
        self._close(entry, kind)
        if self._replica is not None:
            self._replica.cancel(entry.tickets)

    def _close(self, entry: OpenRequest, outcome: str) -> None:
        for number in entry.tickets:
            self._of_ticket.pop(number, None)
        seconds = self._clock() - entry.arrived_s
        self.metrics.requests.labels(outcome).inc()
        self.metrics.request_seconds.observe(seconds)
        with self._changed:
            del self._open[entry.request.request_id]
            self._changed.notify_all()

    def _forget_samples(self, count: int) -> None:
        with self._changed:
            self._num_samples -= count

    def _update_gauges(self) -> None:
        status = self.status()
        self.metrics.running.set(status.num_running)
        self.metrics.waiting.set(status.num_waiting)


def _as_problem(stream: str, prompt: np.ndarray) -> Problem:
    """The form in which a replica takes prompts; `stream` names the random stream."""
    return Problem(
        uid=stream,
        domain="stem",
        environment="serve",
        level=0,
        seed=0,
        canonical=stream,
        prompt="",
        verifier="",
        arguments={"tokens": prompt},
    )
