"""Which sample has which slot of an engine, together with the engine's decode state.

A replica decides who comes and goes; here is what that asks of the engine. The state can be given
up for a while, so that somebody else has the devices.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from loong_jax.rollout.attempts import Attempt, Held, Job
from loong_jax.rollout.engine import Engine, Params, Prefix, ResultTokens


class SlotTable:
    """One thread at a time may use it. Versions are those that the slots are decoded under."""

    def __init__(self, engine: Engine):
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

    def index(self, attempt: Attempt) -> int:
        """The slot of an attempt that runs."""
        return self._attempts.index(attempt)

    def of(self, jobs: set[Job]) -> list[int]:
        """Slots of attempts at these."""
        return [slot for slot in self.occupied() if self[slot].job in jobs]

    # ---- coming and going -----------------------------------------------------------------------

    def find(self, prompts: Sequence[np.ndarray], version: int) -> Any:
        """The kept beginnings of these prompts, or None."""
        return self._engine.find(self._state, prompts, version)

    def place(self, held: Held) -> int:
        """Inserts as many of those who wait for the prefix as find a slot and room for their cache;
        they leave the queue. Returns how many.
        """
        most = min(len(held.waiting), len(self._free))
        members = [held.waiting[i][0] for i in range(most)]
        fitting = self._engine.num_that_fit(held.prefix, self._state, members)
        if not fitting:
            return 0
        placed = [held.waiting.popleft() for _ in range(fitting)]
        slots = [self._free.popleft() for _ in placed]
        for slot, (_, attempt) in zip(slots, placed, strict=True):
            self._attempts[slot] = attempt
        self._state = self._engine.bulk_insert(
            held.prefix, self._state, slots, members=[member for member, _ in placed]
        )
        return fitting

    def decode(self, params: Params, occupied: list[int]) -> tuple[ResultTokens, list[int]]:
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

    def leave(self, slot: int, version: int | None) -> None:
        """Frees the slot of one that has ended; what its cache holds may be found again."""
        attempt = self[slot]
        self._attempts[slot] = None
        self._free.append(slot)
        self._state = self._engine.release(
            self._state, slot, tokens=attempt.sequence, version=version
        )

    def halt(self, *slots: int) -> None:
        """Ends what runs there; it leaves the slots later."""
        if slots:
            self._state = self._engine.cancel(self._state, slots)

    def stop(self, slots: Sequence[int], version: int | None) -> None:
        """Ends what runs there, and frees the slots."""
        self.halt(*slots)
        for slot in slots:
            self.leave(slot, version)

    def preempt(self, slot: int, version: int | None) -> Held:
        """Takes a running attempt off its slot, with its cache in host memory."""
        attempt, prefix = self[slot], jax.device_get(self.extract(slot))
        self.stop([slot], version)
        return Held(prefix, deque([(0, attempt)]))

    def make_room(self, version: int | None) -> list[Held]:
        """Sees that every slot has pages for its next block; the youngest step aside if need be.

        The oldest of those comes first in what is returned.
        """
        occupied = sorted(self.occupied(), key=lambda slot: self[slot].order)
        aside: list[Held] = []
        while not self._engine.reserve(self._state, occupied):
            aside.insert(0, self.preempt(occupied.pop(), version))
        return aside

    # ---- the state as a whole -------------------------------------------------------------------

    def forget(self, version: int) -> None:
        """Drops what was kept under `version`."""
        if self._state is not None:
            self._state = self._engine.forget(self._state, version)

    def give_up(self, version: int | None) -> list[Held]:
        """Without the state from now on; what ran is returned, the oldest first."""
        running = sorted(self.occupied(), key=lambda slot: self[slot].order)
        aside = [self.preempt(slot, version) for slot in running]
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
        """As the engine says; 0 while the state is given up."""
        return 0.0 if self._state is None else self._engine.cache_pressure(self._state)

    def statistics(self) -> dict[str, int]:
        """Counters of the engine since the start."""
        counts = Counter(self._past_counts)
        if self._state is not None:
            counts.update(self._engine.statistics(self._state))
        return dict(counts)
