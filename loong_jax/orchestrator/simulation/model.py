"""The assumptions of a simulated run: costs, lengths of responses, and a replica that follows them.

Costs are four fitted numbers, and assumptions that are named as such. Lengths are a seeded trace,
the same for every policy: lognormal up to a cap, and correlated among attempts at one problem: a
harder problem has longer responses (arXiv:2604.26256 finds stale samples harder, not worse).
Attempt i at issue j of problem k has the same length whoever schedules it.
"""

import collections
import dataclasses
import functools
import heapq
import math
from typing import NamedTuple

import numpy as np

from loong_jax.errors import ConfigError, refuse_below


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostModel:
    """Seconds and bytes of one model on one kind of accelerator.

    The first four are free: fitted on the 64-accelerator column of arXiv:2604.26256 alone. The
    rest are worked out from data sheets or assumed, and the bench prints how the result moves
    with each of them. Defaults: Qwen2.5-32B on four H800 per replica.
    """

    decode_base_s: float = 0.01845  # one decode step of one slot, all layers
    decode_slot_s: float = 9.349e-6  # more per active slot
    train_device_s: float = 1.705e-3  # forward, backward and scoring of one token, on one device
    step_fixed_s: float = 10.22  # of each training step, whatever the number of devices

    decode_context_s: float = 2.0e-8  # more per cached token read: 262 KB over 4 x 3.35 TB/s
    prefill_token_s: float = 4.0e-5  # one prompt token on one replica, 40 % of peak
    cache_token_bytes: float = 262_144.0  # 64 layers, 8 heads of 128, keys and values, bf16
    cache_capacity_tokens: float = 840_000.0  # of one replica
    move_bytes_per_s: float = 50e9  # between two replicas
    weight_bytes: float = 65e9
    assign_s: float = 2.0  # a replica takes up other weights that are already published
    publish_s: float = 4.4  # verl's figure for 30B (facts of its checkpoint engine)
    switch_s: float = 3.0  # devices go from the trainer to generation or back
    verify_s: float = 1.0
    score_share: float = 0.25  # of train_device_s: one forward of forward, twice and backward

    def decode_s(self, num_steps: float, active: int, context: float) -> float:
        """Seconds of `num_steps` decode steps with `active` slots over `context` cached tokens.

        Every step adds one token per slot to the context: the sum of the arithmetic series.
        """
        first = self.decode_base_s + self.decode_slot_s * active + self.decode_context_s * context
        return num_steps * first + self.decode_context_s * active * num_steps**2 / 2

    def decode_steps(self, seconds: float, active: int, context: float) -> float:
        """Inverse of `decode_s` in the number of steps."""
        first = self.decode_base_s + self.decode_slot_s * active + self.decode_context_s * context
        curve = self.decode_context_s * active
        return 2 * seconds / (first + math.sqrt(first * first + 2 * curve * seconds))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthTrace:
    median_tokens: float
    sigma: float  # of the logarithm
    cap_tokens: int  # a response that would be longer ends here
    group_size: int = 16  # G
    prompt_tokens: int = 1024
    same_problem: float = 0.5  # share of the logarithm's variance that the problem explains
    seed: int = 0

    def __post_init__(self):
        refuse_below(self, 1, "cap_tokens", "group_size")
        refuse_below(self, 0, "sigma")
        if not (self.median_tokens > 0 and 0 <= self.same_problem <= 1):
            raise ConfigError(
                f"median_tokens={self.median_tokens} must be positive, and same_problem="
                f"{self.same_problem} in [0, 1], a share of variance."
            )

    def difficulty(self, problem: int) -> float:
        """A standard normal number; the problem's part of the logarithm of its lengths."""
        return _difficulty(self.seed, problem)

    @functools.lru_cache(maxsize=1 << 17)  # noqa: B019 - traces are few, and equal ones share it
    def lengths(self, problem: int, issue: int = 0) -> np.ndarray:
        """Response tokens of the G attempts, int64 [G], each in [1, cap_tokens]. Do not change."""
        own = np.random.default_rng([self.seed, problem, 1 + issue])
        noise = own.standard_normal(self.group_size)
        z = math.sqrt(self.same_problem) * self.difficulty(problem)
        z = z + math.sqrt(1 - self.same_problem) * noise
        tokens = self.median_tokens * np.exp(self.sigma * z)
        return np.clip(np.round(tokens), 1, self.cap_tokens).astype(np.int64)


@functools.lru_cache(maxsize=1 << 17)
def _difficulty(seed: int, problem: int) -> float:
    return float(np.random.default_rng([seed, problem]).standard_normal())


TRACES: dict[str, LengthTrace] = {
    # median and sigma reproduce the published mean 2.4K, p99 and cap of arXiv:2604.26256
    "dora-32b": LengthTrace(median_tokens=1100, sigma=1.30, cap_tokens=30_720),
    # 64K cap with about one response in a hundred at it
    "dora-prod": LengthTrace(median_tokens=2000, sigma=1.50, cap_tokens=65_536),
    "laminar": LengthTrace(median_tokens=1600, sigma=1.0, cap_tokens=16_384),
    # control: a short tail, where little can be won
    "short": LengthTrace(median_tokens=900, sigma=0.5, cap_tokens=16_384),
}


class Running(NamedTuple):
    """An unfinished response: how far it is."""

    attempt: int
    written: int
    left: float  # tokens


@dataclasses.dataclass
class _Group:
    prompt: int  # tokens
    num_waiting: int  # responses without a slot
    slots: dict[int, tuple[float, int]]  # attempt -> (decode step at which it ends, its length)


class SimulatedReplica:
    """Slots of one replica, which decode in step, as slow as their number and context make it.

    `advance` moves it to a later time; between calls nothing changes. Its own time may run ahead of
    the clock: prefills and transfers hold it up until then.
    """

    def __init__(self, cost: CostModel, num_slots: int):
        self.version: int | None = None
        self.is_paused = False
        self.epoch = 0  # changes with every change of the plan, so that older alarms are void
        self.time_s = 0.0
        self.busy_s = 0.0
        self.slot_s = 0.0  # active slots times seconds
        self.num_tokens = 0.0
        self.context = 0.0  # cached tokens of unfinished responses
        self.active = 0
        self._cost = cost
        self._num_slots = num_slots
        self._steps = 0.0  # decode steps so far
        self._groups: dict[int, _Group] = {}  # by ticket
        self._waiting: collections.deque[tuple[int, Running]] = collections.deque()
        self._ends: list[tuple[float, int, int]] = []  # (at step, ticket, attempt)

    def tickets(self) -> tuple[int, ...]:
        return tuple(self._groups)

    def hold(self, now: float, seconds: float) -> None:
        """Nothing is decoded for `seconds`: a prefill, a transfer, other weights."""
        self.time_s = max(self.time_s, now) + seconds
        self.busy_s += seconds
        self.epoch += 1

    def add(self, ticket: int, prompt: int, responses: list[Running]) -> None:
        """The group's unfinished responses take slots or wait for them; call after `advance`."""
        self._groups[ticket] = _Group(prompt, len(responses), {})
        self._waiting.extend((ticket, response) for response in responses)
        self._fill_slots()
        self.epoch += 1

    def remove(self, ticket: int) -> tuple[int, list[Running]]:
        """Takes a group out; returns its prompt's length and its unfinished responses."""
        group, responses = self._groups.pop(ticket), []
        if group.num_waiting:
            responses = [response for number, response in self._waiting if number == ticket]
            kept = [pair for pair in self._waiting if pair[0] != ticket]
            self._waiting = collections.deque(kept)
        for attempt, (end, length) in group.slots.items():
            left = max(0.0, end - self._steps)
            responses.append(Running(attempt, int(length - left), left))
            self.context -= group.prompt + length - left
        self._ends = [entry for entry in self._ends if entry[1] != ticket]
        heapq.heapify(self._ends)
        self.active -= len(group.slots)
        self._fill_slots()
        self.epoch += 1
        return group.prompt, responses

    def _fill_slots(self) -> None:
        while self._waiting and self.active < self._num_slots:
            ticket, (attempt, written, left) = self._waiting.popleft()
            group, end = self._groups[ticket], self._steps + left
            group.num_waiting -= 1
            group.slots[attempt] = (end, written + round(left))
            heapq.heappush(self._ends, (end, ticket, attempt))
            self.context += group.prompt + written
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
            _, ticket, attempt = heapq.heappop(self._ends)
            group = self._groups[ticket]
            self.active -= 1
            self.context -= group.prompt + group.slots.pop(attempt)[1]
            self._fill_slots()
            if not group.slots and not group.num_waiting:
                del self._groups[ticket]
                done.append(ticket)
        return done

    def _decode(self, steps: float, seconds: float) -> None:
        self._steps += steps
        self.context += steps * self.active
        self.num_tokens += steps * self.active
        self.time_s += seconds
        self.busy_s += seconds
        self.slot_s += seconds * self.active
