"""Attempts of a replica that have no slot: queued, being read, or read and held back."""

from collections import deque
from collections.abc import Iterator

from loong_jax.rollout.attempts import Attempt, Held, Job, LongRead, split
from loong_jax.rollout.engine_config import EngineConfig


class PrefillQueue:
    """Queues by prefill bucket, one long read under way, and prefixes whose members wait."""

    def __init__(self, config: EngineConfig):
        self._config = config
        self._largest = config.prefill_lengths[-1]
        self._queues: dict[tuple[int, bool], deque[Attempt]] = {}  # by bucket, and if it is long
        self._returned: dict[bool, deque[Attempt]] = {False: deque(), True: deque()}  # by length
        self._order = 0
        self.held: list[Held] = []
        self.long_read: LongRead | None = None

    def queue(self, attempt: Attempt) -> None:
        """Raises ValueError for an attempt that the engine cannot read."""
        attempt.order = self.next_order()
        length = len(attempt.sequence)
        key = self._config.prefill_length(length), length > self._largest
        self._queues.setdefault(key, deque()).append(attempt)

    def queue_returned(self, attempt: Attempt) -> None:
        """Queues an attempt with its cache before all others; it keeps its place in age."""
        num_new = len(attempt.sequence) - attempt.num_cached
        self._returned[num_new > self._largest].append(attempt)

    def next_order(self) -> int:
        self._order += 1
        return self._order - 1

    def next_attempts(self, *, new_prompts: bool = True) -> list[Attempt]:
        """Attempts for one prefill: those that come back from their tools before all others, then
        from the bucket whose head has waited longest, where `new_prompts` are wanted.

        What is longer than the largest bucket has a queue of its own, which waits while such
        prompts are being read.
        """
        returned = [q for long, q in self._returned.items() if q and not (long and self.long_read)]
        queues = [
            queue
            for (_, is_long), queue in self._queues.items()
            if new_prompts and queue and not (is_long and self.long_read)
        ]
        if not returned and not queues:
            return []
        queue = min(returned or queues, key=lambda queue: queue[0].order)
        attempts: list[Attempt] = []
        prompts: set[tuple[int, int]] = set()
        while queue and len(attempts) < self._config.prefill_members:
            prompts.add(queue[0].prompt_key)
            if len(prompts) > self._config.prefill_prompts:
                break
            attempts.append(queue.popleft())
        return attempts

    def attempts(self) -> Iterator[Attempt]:
        for queue in (*self._queues.values(), *self._returned.values()):
            yield from queue
        for held in (*self.held, *([] if self.long_read is None else [self.long_read])):
            yield from (attempt for _, attempt in held.waiting)

    def remove(self, jobs: set[Job]) -> tuple[list[Held], list[Attempt]]:
        """Takes out the attempts of these jobs: those behind prefixes, and those not read yet."""
        queued = []
        for queue in (*self._queues.values(), *self._returned.values()):
            queued += [a for a in queue if a.job in jobs]
            others = [a for a in queue if a.job not in jobs]
            queue.clear()
            queue.extend(others)
        if self.long_read is not None:
            mine, others = split(self.long_read, jobs)
            queued += [attempt for _, attempt in mine.waiting]
            self.long_read = others if others.waiting else None
        parts = [split(held, jobs) for held in self.held]
        self.held = [others for _, others in parts if others.waiting]
        return [mine for mine, _ in parts if mine.waiting], queued
