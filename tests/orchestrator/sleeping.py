"""The same scheduler on the real clock: replicas are threads that sleep as long as a block takes.

Checks the virtual clock. A sleeping replica is written apart from `SimulatedReplica`: it counts
token after token in blocks of steps, as an engine does, where the other one leaps from end to end.
Trainer and verifiers take the same seconds as on the virtual clock, and here they pass.
"""

import collections
import dataclasses
import heapq
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from loong_jax.orchestrator.simulation.model import CostModel, Running
from loong_jax.orchestrator.simulation.world import SimulatedWorld


@dataclasses.dataclass
class _Slot:
    """An unfinished response, in a slot or waiting for one."""

    ticket: int
    prompt: int
    attempt: int
    written: int
    left: int  # tokens

    @property
    def running(self) -> Running:
        return Running(self.attempt, self.written, float(self.left))


class SleepingReplica:
    """What `SimulatedReplica` is to the world, with a thread of its own; end it with `close`."""

    def __init__(
        self, cost: CostModel, num_slots: int, *, block_steps: int, wake: Callable[[], None]
    ):
        """`wake` is called from the thread when a group has ended; `advance` then names it."""
        self.version: int | None = None
        self.epoch = 0
        self.busy_s = 0.0
        self.slot_s = 0.0
        self.num_tokens = 0.0
        self._cost = cost
        self._num_slots = num_slots
        self._block_steps = block_steps
        self._wake = wake
        self._is_paused = False
        self._is_closed = False
        self._held_s = 0.0  # still to be slept
        self._slots: list[_Slot] = []
        self._waiting: collections.deque[_Slot] = collections.deque()
        self._left: dict[int, int] = {}  # ticket -> unfinished responses
        self._prompt: dict[int, int] = {}
        self._done: list[int] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="sleeping-replica", daemon=True)
        self._thread.start()

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @is_paused.setter
    def is_paused(self, value: bool) -> None:
        with self._changed:
            self._is_paused = value
            self._changed.notify()

    @property
    def context(self) -> float:
        with self._changed:
            return float(self._context())

    @property
    def active(self) -> int:
        return len(self._slots)

    def tickets(self) -> tuple[int, ...]:
        with self._changed:
            return tuple(self._left)

    def hold(self, now: float, seconds: float) -> None:
        """Nothing is decoded for `seconds`, from the end of the current block on."""
        del now
        with self._changed:
            self._held_s += seconds
            self._changed.notify()

    def add(self, ticket: int, prompt: int, responses: list[Running]) -> None:
        with self._changed:
            self._left[ticket], self._prompt[ticket] = len(responses), prompt
            for attempt, written, left in responses:
                self._waiting.append(_Slot(ticket, prompt, attempt, written, max(1, round(left))))
            self._fill_slots()
            self._changed.notify()

    def remove(self, ticket: int) -> tuple[int, list[Running]]:
        """What the block under way was writing for this group is written anew elsewhere."""
        with self._changed:
            mine = [slot for slot in (*self._slots, *self._waiting) if slot.ticket == ticket]
            self._slots = [slot for slot in self._slots if slot.ticket != ticket]
            self._waiting = collections.deque(s for s in self._waiting if s.ticket != ticket)
            del self._left[ticket]
            self._fill_slots()
            return self._prompt.pop(ticket), [slot.running for slot in mine]

    def advance(self, now: float) -> list[int]:
        """Tickets that ended since the last call."""
        del now
        with self._changed:
            done, self._done = self._done, []
            return done

    def next_end_s(self) -> None:
        """Nobody needs to ring: the thread wakes the world itself."""

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout_s)

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        until_s = time.monotonic()  # when what was slept for so far should have ended
        while not self._is_closed:
            with self._changed:
                held_s, self._held_s = self._held_s, 0.0
                block = [] if self._is_paused else list(self._slots)
                if not held_s and not block:
                    self._changed.wait(timeout=0.5)
                    until_s = time.monotonic()
                    continue
                steps = min([self._block_steps, *(slot.left for slot in block)])
                decode_s = self._cost.decode_s(steps, len(block), self._context()) if block else 0.0
            # Deadlines add up, so that waking late once does not make everything later.
            until_s += held_s + decode_s
            time.sleep(max(0.0, until_s - time.monotonic()))
            with self._changed:
                self.busy_s += held_s + decode_s
                self.slot_s += decode_s * len(block)
                self._write(block, steps)
                has_done = bool(self._done)
            if has_done:
                self._wake()

    def _write(self, block: list[_Slot], steps: int) -> None:
        still_here = {id(slot) for slot in self._slots}
        for slot in block:
            if id(slot) in still_here:
                slot.written, slot.left = slot.written + steps, slot.left - steps
                self.num_tokens += steps
                if slot.left <= 0:
                    self._left[slot.ticket] -= 1
                    if not self._left[slot.ticket]:
                        del self._left[slot.ticket], self._prompt[slot.ticket]
                        self._done.append(slot.ticket)
        self._slots = [slot for slot in self._slots if slot.left > 0]
        self._fill_slots()

    def _fill_slots(self) -> None:
        while self._waiting and len(self._slots) < self._num_slots:
            self._slots.append(self._waiting.popleft())

    def _context(self) -> int:
        return sum(slot.prompt + slot.written for slot in self._slots)


class SleepingWorld(SimulatedWorld):
    """A simulated world whose seconds pass. `close` ends its threads."""

    def __init__(self, *, block_steps: int, **parts: Any):
        """`parts` as of `SimulatedWorld`."""
        super().__init__(**parts)
        self._begin_s = time.monotonic()
        self._wakes: queue.Queue[int] = queue.Queue()
        self.replicas: list[Any] = [
            SleepingReplica(
                self.cost,
                self.layout.slots_per_replica,
                block_steps=block_steps,
                wake=lambda number=number: self._wakes.put(number),
            )
            for number in range(self.num_replicas)
        ]

    def clock(self) -> float:
        return time.monotonic() - self._begin_s

    def get(self, *, timeout: float) -> Any:
        deadline_s = self.clock() + timeout
        while not self._delivered:
            next_s = min(deadline_s, self._heap[0][0] if self._heap else deadline_s)
            try:
                woken = self._wakes.get(timeout=max(0.0, next_s - self.clock()))
            except queue.Empty:
                woken = None
            self.now = self.clock()
            if woken is not None:
                self._reach(woken)
            elif self._heap and self._heap[0][0] <= self.now:
                heapq.heappop(self._heap)[2]()
            elif self.now >= deadline_s:
                raise queue.Empty
        return self._delivered.popleft()

    def close(self, timeout_s: float) -> None:
        for replica in self.replicas:
            replica.close(timeout_s)
