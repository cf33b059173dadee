"""One life of a host, as its driver sees it, and which policy versions each host serves."""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from loong_jax.rollout import host_messages as messages
from loong_jax.rollout import publishing
from loong_jax.rollout.host_messages import Host, monotonic_clock_name
from loong_jax.rollout.publisher import HostLost, OutgoingVersion, Publisher
from loong_jax.rollout.versions import VersionStore

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
        self.start_s: float | None = None  # how long it took to be ready
        self._host, self._on_report, self._on_lost = host, on_report, on_lost
        self._is_our_clock = True  # until the host says otherwise
        self._offset_s = float("inf")  # our clock minus the host's; the least seen is the truest
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ready = threading.Event()  # or lost
        self._lock = threading.Lock()
        self._questions = itertools.count()
        self._open: dict[int, Future[publishing.Reply]] = {}
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
        """As a `Member` of a publication."""
        answer: Future[publishing.Reply] = Future()
        with self._lock:
            if self.is_lost:
                answer.set_exception(HostLost(f"{self.name} is lost."))
                return answer
            number = next(self._questions)
            self._open[number] = answer
        self.send(messages.Ask(number, message), data)
        return answer

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

        def say() -> None:
            self.send(messages.Close(timeout_s))

        if self.is_ready:
            self.put(say)
        else:
            self.kill()

    def kill(self) -> None:
        self._host.kill()

    def join(self, timeout_s: float) -> bool:
        """False where the process has not ended by then."""
        return self._host.join(timeout_s)

    # ---- threads --------------------------------------------------------------------------------

    def _work(self) -> None:
        began_s = time.monotonic()
        try:
            self._host.start(self._receive, self.lose)
            self._ready.wait()  # the group's watch sees to it that this ends
            self.start_s = time.monotonic() - began_s
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
            case messages.Heartbeat(at_s, counts, pressure):
                self.counts, self.cache_pressure = counts, pressure
                self._offset_s = min(self._offset_s, self.heard_s - at_s)
            case messages.Ready(pid, clock):
                self.pid, self._is_our_clock = pid, clock == monotonic_clock_name()
                self._ready.set()
            case messages.Failed(error):
                self.lose(error)
            case messages.Answer(number, reply):
                with self._lock:
                    answer = self._open.pop(number, None)
                if answer is not None:
                    answer.set_result(reply)
            case messages.Happened(event):
                self._on_report(self, messages.Happened(messages.shifted(event, self._shift_s)))
            case _:
                self._on_report(self, report)

    @property
    def _shift_s(self) -> float:
        """To be added to the host's times; too large by the way of the fastest message so far."""
        return 0.0 if self._is_our_clock else self._offset_s


class HostVersions:
    """Sends versions of the driver's store to hosts, and has them forgotten there."""

    def __init__(self, store: VersionStore, publisher: Publisher):
        self._store, self._publisher = store, publisher

    def publish(self, version: int, links: Sequence[HostLink]) -> None:
        """To all of them in two phases; returns once each has it or is lost."""
        for link in self._publisher.publish(self._outgoing(version), links):
            assert isinstance(link, HostLink)
            link.versions.add(version)

    def bring(self, version: int, link: HostLink) -> None:
        """To one that lacks it: it was mended, or started late."""
        with link.versions_lock:
            if version not in link.versions and not link.is_lost:
                self.publish(version, [link])

    def retire(self, version: int, link: HostLink) -> None:
        link.versions.discard(version)
        link.send(messages.Retire(version))

    def _outgoing(self, version: int) -> OutgoingVersion:
        manifest = self._store.manifest
        assert manifest is not None
        weights = self._store.get(version)
        checksums = publishing.checksums_of(weights)
        return OutgoingVersion(
            version, weights, manifest, checksums, self._store.leaf_checksums(version)
        )
