"""The inside of a Ray actor. A module of its own, so that JAX is imported by `start` alone."""

import queue
import threading
import time
from typing import Any

import numpy as np


class HostActor:
    """Carries out commands by their numbers, whatever order Ray brings them in."""

    def __init__(self):
        self._reports: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._early: dict[int, tuple[Any, np.ndarray | None]] = {}
        self._next = 0
        self._host: Any = None

    def start(self, setup: Any) -> list[Any]:
        """Makes the engine; what it raises is the last report."""
        from loong_jax.rollout.replica_host import ReplicaHost

        with self._lock:
            try:
                self._host = ReplicaHost(setup, self._reports.put)
                self._host.start()
                self._carry_out()
            except Exception as error:
                self._fail(error)
        return self.reports(0.0)

    def handle(self, number: int, message: Any, data: np.ndarray | None) -> None:
        with self._lock:
            self._early[number] = message, data
            if self._host is None:
                return
            try:
                self._carry_out()
            except Exception as error:
                self._fail(error)

    def reports(self, timeout_s: float) -> list[Any]:
        """Reports so far, or the first that comes within so long; None is the end."""
        found: list[Any] = []
        deadline_s = time.monotonic() + timeout_s
        try:
            while not found or not self._reports.empty():
                found.append(self._reports.get(timeout=max(0.0, deadline_s - time.monotonic())))
        except queue.Empty:
            pass
        return found

    def _carry_out(self) -> None:
        """Carries out all messages whose turn it is."""
        while self._next in self._early:
            message, data = self._early.pop(self._next)
            self._next += 1
            if not self._host.handle(message, data):
                self._reports.put(None)

    def _fail(self, error: Exception) -> None:
        from loong_jax.rollout import hosts as messages

        self._reports.put(messages.Failed(f"{type(error).__name__}: {error}"))
        self._reports.put(None)
