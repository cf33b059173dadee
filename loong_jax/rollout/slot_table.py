"""The slots of a replica's engine: attempts that have one, and queues of the others.

A replica decides who comes and goes; `SlotTable` is what that asks of the engine, with its decode
state, which can be given up for a while, so that somebody else has the devices.
"""

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from loong_jax.models.parameters import Weights
from loong_jax.rollout.attempts import Attempt, Job
from loong_jax.rollout.engine_config import EngineSettings
from loong_jax.rollout.programs import Reading, ResultTokens
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.rollout.slots import Prefix


class SlotTable:
    """One thread at a time may use it."""

    def __init__(self, engine: SlotEngine):
        self.version: int | None = None  # that the slots are decoded under
        self._engine = engine
        self._state: Any = engine.init_decode_state()  # None while given up
        self._attempts: list[Attempt | None] = [None] * engine.config.slots_per_replica
        self._free = deque(range(engine.config.slots_per_replica))
        self._past_counts: Counter[str] = Counter()  # of states that were given up

    def __getitem__(self, slot: int) -> Attempt:
        attempt = self._attempts[slot]
        assert attempt is not None
        return attempt

    def __iter__(self) -> Iterator[Attempt]:
        """Attempts that run."""
        return (attempt for attempt in self._attempts if attempt is not None)

    @property
    def num_active(self) -> int:
        return len(self._attempts) - len(self._free)

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    @property
    def is_given_up(self) -> bool:
        return self._state is None

    def occupied(self) -> list[int]:
        return [slot for slot, attempt in enumerate(self._attempts) if attempt is not None]

    def of(self, jobs: set[Job]) -> list[int]:
        """Slots of attempts at these."""
        return [slot for slot in self.occupied() if self[slot].job in jobs]

    # ---- coming and going -----------------------------------------------------------------------

    def find(self, prompts: Sequence[np.ndarray]) -> Any:
        """The kept beginnings of these prompts, or None."""
        assert self.version is not None
        return self._engine.find(self._state, prompts, self.version)

    def place(self, held: list[Attempt]) -> int:
        """Inserts of the first, which wait with one prefix, as many as there is room for in slots;
        they leave the queue. Returns how many.
        """
        prefix = held[0].prefix
        alike = itertools.takewhile(lambda attempt: attempt.prefix is prefix, held)
        members = [attempt.member for attempt in itertools.islice(alike, len(self._free))]
        fitting = self._engine.num_that_fit(prefix, self._state, members)
        if not fitting:
            return 0
        placed, held[:fitting] = held[:fitting], []
        slots = [self._free.popleft() for _ in placed]
        for slot, attempt in zip(slots, placed, strict=True):
            self._attempts[slot], attempt.prefix = attempt, None
        self._state = self._engine.bulk_insert(
            prefix, self._state, slots, members=members[:fitting]
        )
        return fitting

    def decode(self, params: Weights, occupied: list[int]) -> tuple[ResultTokens, list[int]]:
        """One block; returns its result and the row of each occupied slot in it."""
        if len(occupied) <= max(self._engine.config.narrow_slots, default=0):
            slots = np.array(occupied, np.int32)
            self._state, result = self._engine.generate(params, self._state, slots=slots)
            return result, list(range(len(occupied)))
        self._state, result = self._engine.generate(params, self._state)
        return result, occupied

    def extract(self, slot: int) -> Prefix:
        """The cache of a running attempt, which goes on."""
        return self._engine.extract(self._state, slot)

    def leave(self, slot: int) -> None:
        """Frees the slot of one that has ended; what its cache holds may be found again."""
        attempt = self[slot]
        self._attempts[slot] = None
        self._free.append(slot)
        tokens, version = attempt.sequence, self.version
        self._state = self._engine.release(self._state, slot, tokens=tokens, version=version)

    def halt(self, *slots: int) -> None:
        """Ends what runs there; it leaves the slots later."""
        if slots:
            self._state = self._engine.cancel(self._state, slots)

    def stop(self, slots: Sequence[int]) -> None:
        """Ends what runs there, and frees the slots."""
        self.halt(*slots)
        for slot in slots:
            self.leave(slot)

    def preempt(self, slot: int) -> Attempt:
        """Takes a running attempt off its slot, with its cache in host memory."""
        attempt = self[slot]
        attempt.prefix, attempt.member = jax.device_get(self.extract(slot)), 0
        self.stop([slot])
        return attempt

    def make_room(self) -> list[Attempt]:
        """Sees that every slot has pages for its next block; the youngest step aside if need be.

        The oldest of those comes first in what is returned.
        """
        occupied = sorted(self.occupied(), key=lambda slot: self[slot].order)
        aside: list[Attempt] = []
        while not self._engine.reserve(self._state, occupied):
            aside.insert(0, self.preempt(occupied.pop()))
        return aside

    # ---- the state as a whole -------------------------------------------------------------------

    def forget(self) -> None:
        """Drops what was kept under the version."""
        if self._state is not None and self.version is not None:
            self._state = self._engine.forget(self._state, self.version)

    def give_up(self) -> list[Attempt]:
        """Without the state from now on; what ran is returned, the oldest first."""
        running = sorted(self.occupied(), key=lambda slot: self[slot].order)
        aside = [self.preempt(slot) for slot in running]
        counts = self._engine.statistics(self._state)
        self._past_counts.update({k: v for k, v in counts.items() if not k.endswith("_held")})
        self._state = None
        return aside

    def make_anew(self) -> None:
        """An empty state, where it was given up."""
        if self._state is None:
            self._state = self._engine.init_decode_state()

    @property
    def cache_pressure(self) -> float:
        """The engine's cache pressure; 0 while the state is given up."""
        return 0.0 if self._state is None else self._engine.cache_pressure(self._state)

    def statistics(self) -> dict[str, int]:
        """Counters of the engine since the start."""
        counts = Counter(self._past_counts)
        if self._state is not None:
            counts.update(self._engine.statistics(self._state))
        return dict(counts)


class PrefillQueue:
    """Queues by prefill bucket, one long read under way, and attempts that wait with a prefix."""

    def __init__(self, config: EngineSettings):
        self._config = config
        self._largest = config.prefill_lengths[-1]
        # by whether it is new or returned, by bucket, and by whether it is long
        self._queues: dict[tuple[bool, int, bool], deque[Attempt]] = {}
        self._order = 0
        self.held: list[Attempt] = []
        self.long_read: tuple[Reading, list[Attempt]] | None = None

    def queue(self, attempt: Attempt) -> None:
        """Raises ValueError for an attempt that the engine cannot read."""
        attempt.order = self.next_order()
        length = len(attempt.sequence)
        key = True, self._config.prefill_length(length), length > self._largest
        self._queues.setdefault(key, deque()).append(attempt)

    def queue_returned(self, attempt: Attempt) -> None:
        """Queues an attempt with its cache before all others; it keeps its place in age."""
        num_new = len(attempt.sequence) - attempt.num_cached
        self._queues.setdefault((False, 0, num_new > self._largest), deque()).append(attempt)

    def next_order(self) -> int:
        self._order += 1
        return self._order - 1

    def next_attempts(self, *, new_prompts: bool = True) -> list[Attempt]:
        """Attempts for one prefill: those that come back from their tools before all others, then
        from the bucket whose head has waited longest, where `new_prompts` are wanted.

        What is longer than the largest bucket has a queue of its own, which waits while such
        prompts are being read.
        """
        queues = [
            (is_new, queue[0].order, queue)
            for (is_new, _, is_long), queue in self._queues.items()
            if queue and (new_prompts or not is_new) and not (is_long and self.long_read)
        ]
        if not queues:
            return []
        _, _, queue = min(queues, key=lambda found: found[:2])
        attempts: list[Attempt] = []
        prompts: set[tuple[int, int]] = set()
        while queue and len(attempts) < self._config.prefill_members:
            prompts.add(queue[0].prompt_key)
            if len(prompts) > self._config.prefill_prompts:
                break
            attempts.append(queue.popleft())
        return attempts

    def attempts(self) -> Iterator[Attempt]:
        for queue in self._queues.values():
            yield from queue
        yield from self.held
        if self.long_read is not None:
            yield from self.long_read[1]

    def remove(self, jobs: set[Job]) -> list[Attempt]:
        """Takes out the attempts of these jobs."""
        taken = [attempt for attempt in self.attempts() if attempt.job in jobs]
        for queue in (*self._queues.values(), self.held):
            others = [attempt for attempt in queue if attempt.job not in jobs]
            queue.clear()
            queue.extend(others)
        if self.long_read is not None:
            reading, attempts = self.long_read
            others = [attempt for attempt in attempts if attempt.job not in jobs]
            self.long_read = (reading, others) if others else None
        return taken
