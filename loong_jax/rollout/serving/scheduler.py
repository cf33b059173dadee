"""Clients' requests on a replica, the same one that writes rollouts for training.

Every prompt of a request is a ticket of n attempts, and what a block wrote of them goes to the
client from the replica's thread. A request leaves in exactly one way: all its samples end, or it
fails, is cancelled, runs out of time or is not read. Whichever it is, its slots and pages are free
before the next block. An error of the engine ends the requests that were being written; the replica
is mended, those that still waited are queued again, once, and the server goes on.
"""

import dataclasses
import functools
import logging
import math
import secrets
import threading
import time
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from loong_jax.errors import LoongError
from loong_jax.models.parameters import Weights
from loong_jax.problems.problem import Problem
from loong_jax.rollout.attempts import Attempt
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.records import (
    BlockDecoded,
    FinishReason,
    ReplicaFailed,
    SamplingSettings,
    Ticket,
)
from loong_jax.rollout.replica import Replica
from loong_jax.rollout.serving.request import (
    Busy,
    EventStream,
    Failed,
    FailureKind,
    Piece,
    Refused,
    Request,
    ServingLimits,
    Unavailable,
)
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.rollout.text_stream import TextStream
from loong_jax.rollout.versions import VersionStore

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Metrics:
    """One registry per server, so that several may live in one process."""

    def __init__(self):
        self.registry = CollectorRegistry()
        options = {"namespace": "loong", "registry": self.registry}
        counter = functools.partial(Counter, **options)
        gauge = functools.partial(Gauge, **options)
        seconds = functools.partial(Histogram, **options, buckets=SECONDS)
        self.requests = counter("requests", "requests that ended, by outcome", ["outcome"])
        self.refused = counter("refused", "requests refused for want of room")
        self.samples = counter("samples", "samples that ended, by reason", ["reason"])
        self.prompts = counter("prompts", "prompts read by prefill")
        self.tokens = counter("tokens", "tokens written")
        self.blocks = counter("blocks", "blocks decoded")
        self.engine_errors = counter("engine_errors", "errors of the engine")
        self.running = gauge("running", "samples in slots")
        self.waiting = gauge("waiting", "samples that wait for a slot")
        self.pages = gauge("pages", "pages of the cache that slots hold")
        self.block_seconds = seconds("block_seconds", "a block with its prefills")
        self.request_seconds = seconds("request_seconds", "arrival to end of a request")

    def step(self, block: BlockDecoded) -> None:
        self.prompts.inc(block.num_prompts)
        self.tokens.inc(block.num_tokens)
        self.blocks.inc()
        self.block_seconds.observe(block.end_s - block.start_s)

    def text(self) -> bytes:
        return generate_latest(self.registry)


log = logging.getLogger(__name__)

REBUILD_WAIT_S = 1.0  # between attempts to build a replica


class Status(NamedTuple):
    """The state and the load of the scheduler."""

    is_ready: bool
    is_paused: bool
    is_stopping: bool
    num_requests: int
    num_running: int  # samples in slots
    num_waiting: int  # samples without one


@dataclasses.dataclass(eq=False)
class Sample:
    """One sample, and the part of it that has been handed out."""

    index: int
    text: TextStream
    num_chunks: int = 0  # of the attempt's lists
    has_ended: bool = False

    def take(self, attempt: Attempt, end_ids: Collection[int]) -> Piece | None:
        """The growth of `attempt` since the last call, up to what ends it."""
        written, log_probs = attempt.written(self.num_chunks)
        if not len(written):
            return None
        self.num_chunks = len(attempt.tokens)
        tokens: list[int] = []
        text = ""
        for token in written.tolist():
            tokens.append(token)
            if token in end_ids:
                break
            text += self.text.push(token)
            if self.text.is_stopped:
                break
        return Piece(self.index, text, tuple(tokens), tuple(log_probs[: len(tokens)].tolist()))


@dataclasses.dataclass(eq=False)
class OpenRequest:
    """A request on its way."""

    request: Request
    events: EventStream
    arrived_s: float
    tickets: tuple[Ticket, ...]
    samples: tuple[Sample, ...]
    num_left: int  # samples whose end was not handed out
    grown: list[Piece] = dataclasses.field(default_factory=list)  # in the block under way
    has_begun: bool = False  # something of it was written
    was_requeued: bool = False


class Scheduler:
    """Call `start`, then `submit` and `cancel` from any thread, then `stop`."""

    def __init__(
        self,
        engine: SlotEngine,
        params: Weights,
        *,
        limits: ServingLimits,
        metrics: Metrics,
        version: int = 0,
    ):
        self.engine, self.limits, self.metrics = engine, limits, metrics
        self.version = version
        self._tokenizer = engine.tokenizer
        versions = VersionStore(0)
        versions.put(version, params)
        self.group = LocalReplicaGroup(
            engine,
            versions,
            num_replicas=1,
            group_size=1,
            sampling=SamplingSettings(),
            seed=0,
            encode_prompt=lambda problem: np.asarray(problem.arguments["tokens"], np.int32),
        )
        self._changed = threading.Condition()  # guards what follows
        self._open: dict[str, OpenRequest] = {}
        self._num_samples = 0  # of open requests, that have not ended
        self._num_tickets = 0
        self._is_paused = self._is_stopping = self._is_ready = False
        self._replica: Replica | None = None  # None until it has its weights
        self._sample_s = 1.0  # how long a sample takes, a moving average
        metrics.running.set_function(lambda: self.status().num_running)
        metrics.waiting.set_function(lambda: self.status().num_waiting)
        metrics.pages.set_function(lambda: self.group.statistics().get("num_pages_held", 0))

    # ---- from any thread ------------------------------------------------------------------------

    def start(self) -> None:
        """Returns once everything is compiled. Raises LoongError where that fails."""
        self.group.start(self._on_event)
        with self._changed:
            self._begin_replica()
            self._changed.wait_for(lambda: self._is_ready or self._is_stopping)
        if not self._is_ready:
            self.group.close(5.0)
            raise LoongError("The engine cannot be started; the log says why.")

    def submit(self, request: Request, events: EventStream) -> None:
        """Takes up a request; events come to `events`. Raises Refused, Busy or Unavailable."""
        check(request, self.engine, self.limits)
        with self._changed:
            if self._is_stopping or not self._is_ready:
                reason = "is stopping" if self._is_stopping else "has no engine that works"
                raise Unavailable(f"The server {reason}. Try another one, or later.")
            if request.request_id in self._open:
                raise Refused(f"request_id {request.request_id!r} is in use. Choose another.")
            slots = self.engine.config.slots_per_replica
            most = slots + self.limits.max_queued
            if self._num_samples + request.total_samples > most:
                self.metrics.refused.inc()
                raise Busy(
                    f"{self._num_samples} samples are running or waiting, and at most {most} may. "
                    "Try again later.",
                    min(60, max(1, math.ceil(self._num_samples / slots * self._sample_s))),
                )
            samples = tuple(
                Sample(index, TextStream(self._tokenizer.decode, request.sampling.stops))
                for index in range(request.total_samples)
            )
            tickets, now_s = self._tickets(request), time.monotonic()
            entry = OpenRequest(request, events, now_s, tickets, samples, len(samples))
            self._open[request.request_id] = entry
            self._num_samples += request.total_samples
            self._dispatch(entry)

    def cancel(self, request_id: str) -> bool:
        """Ends a request and frees its slots; False where it has ended already or never was."""
        return self._fail(request_id, "cancelled", "The request was cancelled.")

    def expire(self, request_id: str, timeout_s: float) -> None:
        """The time of a request is over."""
        self._fail(request_id, "timeout", f"The request took longer than {timeout_s:g} s.")

    def pause(self) -> None:
        """No more blocks until `resume`. What runs keeps its slots and cache, and its deadline."""
        with self._changed:
            self._is_paused = True
            self.group.pause(0)

    def resume(self) -> None:
        with self._changed:
            self._is_paused = False
            self.group.resume(0)

    def stop(self, timeout_s: float) -> bool:
        """Refuses new requests, lets the others end for `timeout_s`, fails the rest, and joins.

        True where all requests ended on their own.
        """
        with self._changed:
            self._is_stopping = True
            self.resume()
            all_ended = self._changed.wait_for(lambda: not self._open, timeout_s)
            for request_id in list(self._open):
                message = "The server stopped before the request was done."
                self._fail(request_id, "stopping", message)
        try:
            self.group.close(max(5.0, timeout_s))
        except LoongError as error:  # the process ends, and its threads with it
            log.warning("%s", error)
        return all_ended

    def status(self) -> Status:
        with self._changed:
            num_running = 0 if self._replica is None else self._replica.active_slots
            return Status(
                is_ready=self._is_ready and not self._is_stopping,
                is_paused=self._is_paused,
                is_stopping=self._is_stopping,
                num_requests=len(self._open),
                num_running=num_running,
                num_waiting=max(0, self._num_samples - num_running),
            )

    # ---- requests; the caller has the lock ------------------------------------------------------

    def _tickets(self, request: Request) -> tuple[Ticket, ...]:
        """One for each prompt; equal seeds name equal random streams."""
        stream = secrets.token_hex(16) if request.seed is None else f"seed {request.seed}"
        first = self._num_tickets
        self._num_tickets += len(request.prompts)
        return tuple(
            Ticket(number=first + i, problem=_as_problem(stream, prompt), issue=i)
            for i, prompt in enumerate(request.prompts)
        )

    def _dispatch(self, entry: OpenRequest) -> None:
        request = entry.request
        for i, ticket in enumerate(entry.tickets):
            first = i * request.num_samples
            self.group.dispatch(
                0,
                [ticket],
                self.version,
                group_size=request.num_samples,
                sampling=request.sampling,
                listen=functools.partial(self._listen, entry, first),
            )

    def _fail(self, request_id: str, kind: FailureKind, message: str) -> bool:
        """False where the request has ended. Takes the lock itself."""
        with self._changed:
            entry = self._open.get(request_id)
            if entry is None:
                return False
            self.group.cancel(0, [ticket.number for ticket in entry.tickets])
            entry.events.put([Failed(kind, message)])
            self._num_samples -= entry.num_left
            self._close(entry, kind)
            return True

    def _close(self, entry: OpenRequest, outcome: str) -> None:
        self.metrics.requests.labels(outcome).inc()
        self.metrics.request_seconds.observe(time.monotonic() - entry.arrived_s)
        del self._open[entry.request.request_id]
        self._changed.notify_all()

    # ---- in the replica's thread ----------------------------------------------------------------

    def _listen(
        self, entry: OpenRequest, first: int, attempt: Attempt, reason: FinishReason | None
    ) -> None:
        """Takes a sample's tokens of one block; they are handed out when the block is over."""
        sample = entry.samples[first + attempt.number]
        if sample.has_ended:
            return
        entry.has_begun = True
        if piece := sample.take(attempt, self._tokenizer.end_ids):
            entry.grown.append(piece)
        if sample.text.is_stopped or reason is not None:
            sample.has_ended = True
            is_length = reason == "length" and not sample.text.is_stopped
            rest = sample.text.finish()
            ended = Piece(sample.index, rest, reason="length" if is_length else "stop")
            entry.grown.append(ended)

    def _on_event(self, event: Any) -> None:
        match event:
            case BlockDecoded():
                self.metrics.step(event)
                with self._changed:
                    for entry in list(self._open.values()):
                        self._hand_out(entry)
            case ReplicaFailed(_, error):
                self._recover(error)

    def _hand_out(self, entry: OpenRequest) -> None:
        found, entry.grown = entry.grown, []
        if found:
            entry.events.put(found)
        for event in found:
            if event.reason is not None:
                self.metrics.samples.labels(event.reason).inc()
                self._num_samples -= 1
                entry.num_left -= 1
                seconds = time.monotonic() - entry.arrived_s
                self._sample_s += 0.1 * (seconds - self._sample_s)
        if not entry.num_left:
            self._close(entry, "done")
        elif entry.events.num_unread > self.limits.max_unread:
            message = f"More than {self.limits.max_unread} events were not read."
            self._fail(entry.request.request_id, "slow_reader", message)

    def _begin_replica(self) -> None:
        """Its weights, for a replica that has none; `_is_up` hears when it has them."""
        self.group.assign(0, self.version)
        if self._is_paused:
            self.group.pause(0)
        self.group.ask(0, self._is_up)

    def _is_up(self, replica: Replica | None) -> None:
        with self._changed:
            self._replica = replica
            self._is_ready = self._is_ready or replica is not None
            self._changed.notify_all()

    def _recover(self, error: str) -> None:
        """Ends what was being written and queues the rest again in a new replica."""
        with self._changed:
            if self._replica is None:  # it failed before it had its weights
                was_ready, self._is_ready = self._is_ready, False
                for request_id in list(self._open):
                    self._fail(request_id, "engine", "The engine cannot be started.")
                if not was_ready and not self._num_tickets:  # in `start`
                    self._is_stopping = True
                    self._changed.notify_all()
                    return
                self._changed.wait_for(lambda: self._is_stopping, REBUILD_WAIT_S)
            else:
                self.metrics.engine_errors.inc()
            waiting = []
            for entry in list(self._open.values()):
                if entry.has_begun or entry.was_requeued:
                    message = f"The engine failed: {error}"
                    self._fail(entry.request.request_id, "engine", message)
                else:
                    waiting.append(entry)
            self._replica = None  # or its cache would live beside that of the new one
            self.group.mend(0)
            self._begin_replica()
            for entry in waiting:
                entry.was_requeued = True
                self._dispatch(entry)


def check(request: Request, engine: SlotEngine, limits: ServingLimits) -> None:
    """Raises Refused for what this engine and these limits can never do."""
    if not 0 < request.total_samples <= limits.max_samples:
        raise Refused(
            f"{len(request.prompts)} prompts with n={request.num_samples} are "
            f"{request.total_samples} samples; a request may ask for 1 to "
            f"{limits.max_samples}. Split it."
        )
    vocabulary = engine.tokenizer.vocab_size
    for prompt in request.prompts:
        if len(prompt) and not (prompt.min() >= 0 and prompt.max() < vocabulary):
            odd = next(int(token) for token in prompt if not 0 <= token < vocabulary)
            raise Refused(f"token {odd} is not in 0..{vocabulary - 1}, the vocabulary.")
        try:
            engine.config.prefill_length(len(prompt))
            engine.config.check_sampling(request.sampling)
        except ValueError as error:
            raise Refused(str(error)) from None
        left = engine.config.room(len(prompt))
        if request.sampling.max_new_tokens > left:
            raise Refused(
                f"a prompt of {len(prompt)} tokens leaves room for {left}, and "
                f"max_tokens={request.sampling.max_new_tokens}. Lower it or shorten the prompt."
            )


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
