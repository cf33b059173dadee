"""One simulated replica: slots that decode in step, as slow as their number and context make it."""

import collections
import heapq
from typing import NamedTuple

from loong_jax.orchestrator.simulation.model import CostModel


class Running(NamedTuple):
    """An unfinished response: how far it is."""

    attempt: int
    written: int
    left: float  # tokens


class SimulatedReplica:
    """Slots of one replica. `advance` moves it to a later time; between calls nothing changes.

    Its own time may run ahead of the clock: prefills and transfers hold it up until then.
    """

    def __init__(self, cost: CostModel, num_slots: int):
        self.version: int | None = None
        self.is_paused = False
        self.epoch = 0  # changes with every change of the plan, so that older alarms are void
        self.time_s = 0.0
        self.busy_s = 0.0
        self.slot_s = 0.0  # active slots times seconds
        self.num_tokens = 0.0
        self._cost = cost
        self._num_slots = num_slots
        self._waiting: collections.deque[tuple[int, Running]] = collections.deque()
        self._steps = 0.0  # decode steps so far
        self.context = 0.0  # cached tokens of unfinished responses
        self.active = 0
        self._ends: list[tuple[float, int, int]] = []  # (at step, ticket, attempt)
        self._groups: dict[int, dict[int, tuple[float, int]]] = {}  # attempt -> (end, length)
        self._prompt: dict[int, int] = {}
        self._num_waiting: dict[int, int] = {}

    def tickets(self) -> tuple[int, ...]:
        return tuple(self._groups)

    def hold(self, now: float, seconds: float) -> None:
        """Nothing is decoded for `seconds`: a prefill, a transfer, other weights."""
        self.time_s = max(self.time_s, now) + seconds
        self.busy_s += seconds
        self.epoch += 1

    def add(self, ticket: int, prompt: int, responses: list[Running]) -> None:
        """The group's unfinished responses take slots or wait for them; call after `advance`."""
        self._groups[ticket] = {}
        self._prompt[ticket] = prompt
        self._num_waiting[ticket] = len(responses)
        for response in responses:
            self._waiting.append((ticket, response))
        self._fill_slots()
        self.epoch += 1

    def remove(self, ticket: int) -> tuple[int, list[Running]]:
        """Takes a group out; returns its prompt's length and its unfinished responses."""
        prompt, slots = self._prompt.pop(ticket), self._groups.pop(ticket)
        responses = []
        if self._num_waiting.pop(ticket, 0):
            responses = [response for number, response in self._waiting if number == ticket]
            kept = [pair for pair in self._waiting if pair[0] != ticket]
            self._waiting = collections.deque(kept)
        for attempt, (end, length) in slots.items():
            left = max(0.0, end - self._steps)
            responses.append(Running(attempt, int(length - left), left))
            self.context -= prompt + length - left
        self._ends = [entry for entry in self._ends if entry[1] != ticket]
        heapq.heapify(self._ends)
        self.active -= len(slots)
        self._fill_slots()
        self.epoch += 1
        return prompt, responses

    def _fill_slots(self) -> None:
        while self._waiting and self.active < self._num_slots:
            ticket, response = self._waiting.popleft()
            self._num_waiting[ticket] -= 1
            end = self._steps + response.left
            length = response.written + round(response.left)
            self._groups[ticket][response.attempt] = (end, length)
            heapq.heappush(self._ends, (end, ticket, response.attempt))
            self.context += self._prompt[ticket] + response.written
            self.active += 1

    def next_end_s(self) -> float | None:
        """The time at which the next response ends, if nothing changes before."""
        if self.is_paused or not self._ends:
            return None
        steps = self._ends[0][0] - self._steps
        return self.time_s + self._cost.decode_s(steps, self.active, self.context)

    def advance(self, now: float) -> list[int]:
        """Decodes until `now`; returns the tickets whose last response ended, in that order."""
        done: list[int] = []
        while self.time_s <= now:
            if self.is_paused or not self._ends:
                self.time_s = now
                break
            steps = self._ends[0][0] - self._steps
            seconds = self._cost.decode_s(steps, self.active, self.context)
            if self.time_s + seconds > now + 1e-9:
                spare = now - self.time_s
                if spare > 0:
                    steps = self._cost.decode_steps(spare, self.active, self.context)
                    self._decode(steps, spare)
                    self.time_s = now
                break
            self._decode(steps, seconds)
            self._finish_first(done)
        return done

    def _decode(self, steps: float, seconds: float) -> None:
        self._steps += steps
        self.context += steps * self.active
        self.num_tokens += steps * self.active
        self.time_s += seconds
        self.busy_s += seconds
        self.slot_s += seconds * self.active

    def _finish_first(self, done: list[int]) -> None:
        _, ticket, attempt = heapq.heappop(self._ends)
        _, length = self._groups[ticket].pop(attempt)
        self.active -= 1
        self.context -= self._prompt[ticket] + length
        if self._waiting:
            self._fill_slots()
        if not self._groups[ticket] and not self._num_waiting[ticket]:
            del self._groups[ticket], self._prompt[ticket], self._num_waiting[ticket]
            done.append(ticket)
