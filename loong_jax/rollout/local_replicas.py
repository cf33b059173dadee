"""Replicas in threads of this process, as the orchestrator's `ReplicaGroup`.

Each replica has a thread and a queue of commands; between two blocks it carries out what waits
there. All share one engine, so each shape is compiled once. A replica holds the version it decodes
under in the version store, from `assign` until the next `assign` or the end.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from loong_jax.errors import ConfigError, LoongError
from loong_jax.rollout.engine import Engine
from loong_jax.rollout.events import BlockDecoded, GroupGenerated, ReplicaIdle, WorkerFailed
from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.replica import EncodePrompt, Replica
from loong_jax.rollout.versions import VersionStore

logger = logging.getLogger(__name__)

Emit = Callable[[Any], None]
Command = Callable[[Replica], None]

POLL_S = 0.2  # how long an idle thread waits before it looks whether it should end


class LocalReplicaGroup:
    """`num_replicas` engines in threads. Commands return at once and are carried out in order."""

    def __init__(
        self,
        engine: Engine,
        versions: VersionStore,
        *,
        num_replicas: int,
        group_size: int,
        sampling: SamplingSettings,
        seed: int,
        groups_per_replica: int | None = None,
        encode_prompt: EncodePrompt | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`groups_per_replica` are decoded at once; None for as many as its slots hold."""
        if num_replicas < 1:
            raise ConfigError(f"num_replicas={num_replicas} must be at least 1.")
        self.num_replicas = num_replicas
        self.slots_per_replica = engine.max_concurrent_decodes
        self.groups_per_replica = groups_per_replica or max(1, self.slots_per_replica // group_size)
        self._engine = engine
        self._versions = versions
        self._clock = clock
        self._make_replica = lambda: Replica(
            engine,
            group_size=group_size,
            sampling=sampling,
            seed=seed,
            encode_prompt=encode_prompt,
            clock=clock,
        )
        self._commands: list[queue.Queue[Command]] = [queue.Queue() for _ in range(num_replicas)]
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._warm_up = threading.Lock()
        self._is_warm = False

    # ---- commands, from the orchestrator's thread -----------------------------------------------

    def start(self, emit: Emit) -> None:
        """Starts the threads. `emit` is called from them."""
        if self._threads:
            raise RuntimeError("the group was started before. Make a new one.")
        for number in range(self.num_replicas):
            thread = threading.Thread(
                target=self._run, args=(number, emit), name=f"replica-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def assign(self, replica: int, version: int) -> None:
        """The version is held from now on, so it may be retired at once."""
        holder = f"replica-{replica}"
        weights = self._versions.acquire(version, holder)

        def carry_out(host: Replica) -> None:
            self._compile(weights)
            previous = host.version
            host.assign(version, self._engine.load_params(weights))
            if previous is not None:
                self._versions.release(previous, holder)

        self._commands[replica].put(carry_out)

    def dispatch(self, replica: int, tickets: Sequence[Ticket], version: int) -> None:
        tickets = tuple(tickets)

        def carry_out(host: Replica) -> None:
            if host.version != version:
                raise RuntimeError(
                    f"tickets for version {version} came to a replica that hosts {host.version}. "
                    "Assign before dispatch."
                )
            host.submit(tickets)

        self._commands[replica].put(carry_out)

    def cancel(self, replica: int, ticket_numbers: Sequence[int]) -> None:
        numbers = tuple(ticket_numbers)
        self._commands[replica].put(lambda host: host.cancel(numbers))

    def close(self, timeout_s: float) -> None:
        """Ends the threads after their current block; raises LoongError for one that does not."""
        self._closing.set()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        if alive:
            raise LoongError(
                f"{alive} did not end within {timeout_s} s: a block or a compilation takes longer. "
                "Allow more time."
            )

    # ---- the thread of one replica ---------------------------------------------------------------

    def _run(self, number: int, emit: Emit) -> None:
        replica: Replica | None = None
        try:
            replica = self._make_replica()
            while not self._closing.is_set():
                was_busy = not replica.is_empty
                self._carry_out_commands(number, replica)
                if not replica.is_empty:
                    self._decode_block(number, replica, emit)
                elif was_busy:
                    emit(ReplicaIdle(number))
        except Exception as error:
            logger.exception("replica %d failed", number)
            emit(WorkerFailed(f"replica {number}", f"{type(error).__name__}: {error}"))
        finally:
            if replica is not None and replica.version is not None:
                self._versions.release(replica.version, f"replica-{number}")

    def _carry_out_commands(self, number: int, replica: Replica) -> None:
        """All that wait; an empty replica gives the first of them a moment to come."""
        commands = self._commands[number]
        try:
            command = commands.get(timeout=POLL_S) if replica.is_empty else commands.get_nowait()
            while True:
                command(replica)
                command = commands.get_nowait()
        except queue.Empty:
            pass

    def _decode_block(self, number: int, replica: Replica, emit: Emit) -> None:
        assert replica.version is not None
        groups, stats = replica.step()
        emit(
            BlockDecoded(
                replica=number,
                version=replica.version,
                start_s=stats.start_s,
                end_s=stats.end_s,
                num_tokens=stats.num_tokens,
                active_slots=stats.active_slots,
            )
        )
        for group in groups:
            emit(GroupGenerated(group))
        if replica.is_empty:
            emit(ReplicaIdle(number))

    def _compile(self, weights: Any) -> None:
        """The first replica compiles for all."""
        with self._warm_up:
            if not self._is_warm:
                self._engine.warm_up(weights)
                self._is_warm = True
