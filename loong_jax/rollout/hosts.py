"""Hosts: processes with replicas in threads, and what passes between them and a driver.

Commands go to a host, reports come from it, each in the order they were sent. Replicas have the
numbers that the orchestrator knows. What carries them, `multiprocessing` or Ray, turns them into
bytes: both ends are processes of one run that trust each other. None of it is ever stored. A
`HostLauncher` starts the processes; a `HostLink` is one life of a host as its driver sees it.
"""

import dataclasses
import functools
import itertools
import logging
import os
import platform
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from loong_jax.rollout import publishing
from loong_jax.rollout.agentic.agent import Agent
from loong_jax.rollout.attempts import PartialReport
from loong_jax.rollout.local_replicas import ScoreGroup
from loong_jax.rollout.publishing import HostLost
from loong_jax.rollout.records import BlockDecoded, GroupGenerated, Rollout, SamplingSettings
from loong_jax.rollout.replica import EncodePrompt
from loong_jax.rollout.slot_engine import SlotEngine


class HostSetup(NamedTuple):
    """The settings of a host; they go to its process, so functions are importable by name."""

    make_engine: Callable[[], SlotEngine]  # called in the host
    group_size: int
    sampling: SamplingSettings
    seed: int
    groups_per_replica: int
    max_staleness: int
    encode_prompt: EncodePrompt | None = None
    make_agent: Callable[[], Agent | None] | None = None  # called in the host
    make_scorer: Callable[[], ScoreGroup] | None = None  # called in the host: the trainer's program
    heartbeat_s: float = 1.0
    report_s: float = 1.0  # how often it tells what it has written: what its death may cost
    first_number: int = 0
    num_replicas: int = 1


# ---- commands -----------------------------------------------------------------------------------


class Call(NamedTuple):
    """A method of the host's `LocalReplicaGroup`, or "publish", with a message for its staging."""

    method: str
    arguments: dict[str, Any]
    number: int | None = None  # of an `Answer` that is waited for: to "give", "score", "publish"


class Retire(NamedTuple):
    version: int


class Close(NamedTuple):
    """The host says its last `Heartbeat` and ends."""

    timeout_s: float


# ---- reports, beside the events of `loong_jax.rollout.records` -----------------------------------


class Ready(NamedTuple):
    """The engine is made; commands sent before have waited."""

    pid: int
    clock: str  # `monotonic_clock_name` of the host


class Failed(NamedTuple):
    """The host ends on an error of its own, not of one replica."""

    error: str


class Heartbeat(NamedTuple):
    at_s: float  # by the host's clock
    counts: dict[str, int]  # as `LocalReplicaGroup.statistics`
    cache_pressure: float = 0.0  # of the host's fullest replica


class Wrote(NamedTuple):
    """New parts of responses, and responses that have ended in groups that have not."""

    reports: tuple[PartialReport | Rollout, ...]


class Answer(NamedTuple):
    number: int
    value: Any  # None: the replica has failed and could not do it


def shifted(report: Any, by_s: float) -> Any:
    """A report with the times of another clock, which is `by_s` ahead."""
    match report:
        case BlockDecoded(start_s=start_s, end_s=end_s) if by_s:
            return report._replace(start_s=start_s + by_s, end_s=end_s + by_s)
        case GroupGenerated(group) if by_s:
            rollouts = tuple(
                dataclasses.replace(r, started_s=r.started_s + by_s, ended_s=r.ended_s + by_s)
                for r in group.rollouts
            )
            return GroupGenerated(group.replace_rollouts(rollouts))
    return report


@functools.cache
def monotonic_clock_name() -> str:
    """Equal in two processes only where `time.monotonic` counts from the same moment.

    On Linux that is one boot of one kernel and one time namespace, whatever the containers.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:  # another system, or a kernel without time namespaces
        return platform.node()


# ---- places --------------------------------------------------------------------------------------

Receive = Callable[[Any], None]
Ended = Callable[[str], None]


@runtime_checkable
class Host(Protocol):
    """One process. Messages arrive once and in order, or the host ends."""

    def start(self, receive: Receive, ended: Ended) -> None:
        """Begins to start the process. `receive` is called with each report, `ended` once with the
        reason when no more will come; both in threads of the host.
        """
        ...

    def send(self, message: Any, data: Any = None) -> None:
        """One command, with what `HostLauncher.share` made of its bytes. From any thread. Silent
        where the host has ended: `ended` says it.
        """
        ...

    def kill(self) -> None:
        """Ends the process at once. May be called twice."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Waits for the end of the process; false where it goes on."""
        ...


@runtime_checkable
class HostLauncher(Protocol):
    """A kind of place, and how it is reached."""

    def new(self, number: int, setup: HostSetup) -> Host: ...

    def share(self, data: np.ndarray) -> Any:
        """uint8 bytes in the form in which `Host.send` takes them, once for all hosts."""
        ...

    def close(self) -> None:
        """After the last host has ended."""
        ...


logger = logging.getLogger(__name__)


class HostLink:
    """Sends commands in order from a thread of its own; hands reports on; ends once.

    `on_report` is called in the threads of the host and `on_lost`, once, in whichever thread
    notices. After that nothing more is reported.
    """

    def __init__(
        self,
        name: str,
        host: Host,
        on_report: Callable[["HostLink", Any], None],
        on_lost: Callable[["HostLink", str], None],
    ):
        self.name = name
        self.versions: set[int] = set()  # that the host serves
        self.versions_lock = threading.Lock()
        self.counts: dict[str, int] = {}
        self.cache_pressure = 0.0
        self.heard_s = time.monotonic()
        self.pid: int | None = None
        self.is_lost = False
        self._host, self._on_report, self._on_lost = host, on_report, on_lost
        self._is_our_clock = True  # until the host says otherwise
        self._offset_s = float("inf")  # our clock minus the host's; the least seen is the truest
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ready = threading.Event()  # or lost
        self._lock = threading.Lock()
        self._questions = itertools.count()
        self._open: dict[int, Future[Any]] = {}
        self._thread = threading.Thread(target=self._work, name=f"{name}-commands", daemon=True)

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and not self.is_lost

    def start(self) -> None:
        self._thread.start()

    def put(self, command: Callable[[], None]) -> None:
        """To be called in this link's thread, after all that was put before."""
        self._commands.put(command)

    def send(self, message: Any, data: Any = None) -> None:
        """At once, from any thread; may wait until the host reads."""
        self._host.send(message, data)

    def ask(self, message: publishing.Message, data: Any = None) -> Future[publishing.Reply]:
        """Asks the host's staging, as a `Member` of a publication."""
        number, answer = self._question()
        if not answer.done():
            self.send(Call("publish", dict(message=message), number), data)
        return answer

    def call(self, method: str, **arguments: Any) -> Future[Any]:
        """The answer of the host to come, after all that was put before; see `Call`."""
        number, answer = self._question()
        self.put(lambda: self.send(Call(method, arguments, number)))
        return answer

    def _question(self) -> tuple[int, Future[Any]]:
        """The answer resolves to HostLost where the host ends before, or has ended."""
        answer: Future[Any] = Future()
        with self._lock:
            number = next(self._questions)
            if not self.is_lost:
                self._open[number] = answer
                return number, answer
        answer.set_exception(HostLost(f"{self.name} is lost."))
        return number, answer

    def lose(self, why: str) -> None:
        """Ends the process and says so, once."""
        with self._lock:
            if self.is_lost:
                return
            self.is_lost = True
            waiting, self._open = list(self._open.values()), {}
        self._host.kill()
        self._ready.set()
        self._commands.put(None)
        for answer in waiting:
            answer.set_exception(HostLost(f"{self.name}: {why}"))
        self._on_lost(self, why)

    def close(self, timeout_s: float) -> None:
        """Asks the host to end; `join` waits for it."""
        if self.is_ready:
            self.put(lambda: self.send(Close(timeout_s)))
        else:
            self.kill()

    def kill(self) -> None:
        self._host.kill()

    def join(self, timeout_s: float) -> bool:
        """False where the process has not ended by then."""
        return self._host.join(timeout_s)

    # ---- threads --------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._host.start(self._receive, self.lose)
            self._ready.wait()  # the group's watch sees to it that this ends
            while not self.is_lost and (command := self._commands.get()) is not None:
                command()
        except Exception as error:
            logger.exception("%s failed", self.name)
            self.lose(f"{type(error).__name__}: {error}")

    def _receive(self, report: Any) -> None:
        if self.is_lost:
            return
        self.heard_s = time.monotonic()
        match report:
            case Heartbeat(at_s, counts, pressure):
                self.counts, self.cache_pressure = counts, pressure
                self._offset_s = min(self._offset_s, self.heard_s - at_s)
            case Ready(pid, clock):
                self.pid, self._is_our_clock = pid, clock == monotonic_clock_name()
                self._ready.set()
            case Failed(error):
                self.lose(error)
            case Answer(number, value):
                with self._lock:
                    answer = self._open.pop(number, None)
                if answer is not None:
                    answer.set_result(value)
            case _:
                # too large by the way of the fastest message so far
                shift_s = 0.0 if self._is_our_clock else self._offset_s
                self._on_report(self, shifted(report, shift_s))
