"""Replicas whose responses have the lengths of a trace, and what a weight update does to them."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from loong_jax.orchestrator.simulation.model import LengthTrace
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.records import BlockDecoded, SamplingSettings, Ticket
from loong_jax.rollout.replica import EncodePrompt, Replica
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.rollout.versions import VersionStore


class TracedReplicas(LocalReplicaGroup):
    """As its base; a response ends where the trace says, and weight updates are counted."""

    def __init__(
        self,
        engine: SlotEngine,
        versions: VersionStore,
        *,
        trace: LengthTrace,
        sampling: SamplingSettings,
        encode_prompt: EncodePrompt,
        num_replicas: int,
        groups_per_replica: int,
        clock: Callable[[], float],
    ):
        shared: dict[str, Any] = dict(
            group_size=trace.group_size,
            sampling=sampling,
            seed=trace.seed,
            encode_prompt=encode_prompt,
            clock=clock,
        )
        super().__init__(
            engine,
            versions,
            num_replicas=num_replicas,
            groups_per_replica=groups_per_replica,
            **shared,
        )

        def limits(ticket: Ticket) -> tuple[int, ...]:
            return tuple(map(int, trace.lengths(ticket.problem.seed, ticket.issue)))

        self._make_replica = lambda number: Replica(engine, limits=limits, number=number, **shared)
        self._tally = threading.Lock()
        self._updates: Counter[str] = Counter()
        self.blocks: list[BlockDecoded] = []

    def start(self, emit: Callable[[Any], None]) -> None:
        def note(event: Any) -> None:
            if isinstance(event, BlockDecoded):
                self.blocks.append(event)
            emit(event)

        super().start(note)

    def assign(self, replica: int, version: int) -> None:
        self.ask(replica, lambda host: self._note_update(host.active_slots if host else 0))
        super().assign(replica, version)

    def swap(self, replica: int, version: int, *, keep_cache: bool) -> None:
        def note(host: Replica | None) -> None:
            self._note_update(0 if host is None or keep_cache else host.active_slots)

        self.ask(replica, note)
        super().swap(replica, version, keep_cache=keep_cache)

    def update_counts(self) -> dict[str, int]:
        """What weight updates did: versions_taken_up, and drained_slots, running responses that
        were taken off their slots for one.
        """
        with self._tally:
            return {name: self._updates[name] for name in ("versions_taken_up", "drained_slots")}

    def _note_update(self, num_taken_off: int) -> None:
        with self._tally:
            self._updates.update(versions_taken_up=1, drained_slots=num_taken_off)
