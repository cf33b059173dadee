"""What reaches the orchestrator: events of groups of processes, and its own alarms."""

import heapq
import queue
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class EventQueue(Protocol):
    """`queue.Queue` on a real clock; a virtual clock delivers its next event instead of waiting."""

    def put(self, event: Any, /) -> None: ...

    def get(self, *, timeout: float) -> Any:
        """Raises `queue.Empty` after `timeout` seconds without an event."""
        ...


class Inbox:
    """Events in the order they come, and alarms when they are due."""

    def __init__(self, clock: Callable[[], float], events: EventQueue | None):
        self._events: EventQueue = events if events is not None else queue.Queue()
        self.put = self._events.put
        self._clock = clock
        self._alarms: list[tuple[float, int, Any]] = []  # when, order, event
        self._num_alarms = 0

    def next(self, timeout_s: float) -> Any:
        """The next alarm that is due, or the next event. Raises `queue.Empty` after `timeout_s`.

        Alarms go first, since events may come faster than they are taken.
        """
        due_s = self._alarms[0][0] - self._clock() if self._alarms else float("inf")
        if due_s <= 0:
            return heapq.heappop(self._alarms)[2]
        try:
            return self._events.get(timeout=min(timeout_s, due_s))
        except queue.Empty:
            if due_s <= timeout_s:
                return heapq.heappop(self._alarms)[2]
            raise

    def alarm(self, pause_s: float, event: Any) -> None:
        """`event` comes after `pause_s`."""
        self._num_alarms += 1
        heapq.heappush(self._alarms, (self._clock() + pause_s, self._num_alarms, event))
