"""Replicas in threads of this process, as the orchestrator's `ReplicaGroup`.

Each replica has a thread and a queue of commands; between two blocks it carries out what waits
there. All share one engine, so each shape is compiled once. A replica holds the version it decodes
under in the version store, from `assign` until the next `assign` or the end. One that raises ends
alone: `ReplicaFailed` says so, what it had written is kept, and `mend` puts a new one in its place.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loong_jax.errors import LoongError
from loong_jax.rollout import records
from loong_jax.rollout.attempts import (
    MigrationPayload,
    PartialGroup,
    SentTickets,
    partials_of,
)
from loong_jax.rollout.replica import Replica
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.rollout.versions import VersionError, VersionStore

logger = logging.getLogger(__name__)

Do = Callable[[Replica], None]
ScoreGroup = Callable[
    [Any, records.Group], records.Group
]  # of weights: `behavior_logprob` filled in

POLL_S = 0.2  # how long an idle thread waits before it looks whether it should end


class Mailbox:
    """The commands of one life of a replica. Each is carried out in its thread or lost, and hears
    which. One that raises counts as lost, and its error ends the replica.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._commands: queue.SimpleQueue[tuple[Do, Callable[[], None]]] = queue.SimpleQueue()
        self.is_over = False

    def put(self, carry_out: Do, if_lost: Callable[[], None] = lambda: None) -> None:
        """Adds a command, from any thread. After the end, `if_lost` is called at once."""
        with self._lock:
            if not self.is_over:
                self._commands.put((carry_out, if_lost))
                return
        if_lost()

    def carry_out(self, replica: Replica, wait_s: float) -> None:
        """Carries out all waiting commands; where there is none, the first has `wait_s` to come."""
        with contextlib.suppress(queue.Empty):
            command = self._commands.get(timeout=wait_s) if wait_s else self._commands.get_nowait()
            while True:
                self._carry_out(replica, *command)
                command = self._commands.get_nowait()

    def _carry_out(self, replica: Replica, command: Do, if_lost: Callable[[], None]) -> None:
        try:
            command(replica)
        except Exception:
            if_lost()
            raise

    def end(self) -> None:
        """Commands that still wait are lost."""
        with self._lock:
            self.is_over = True
        while not self._commands.empty():
            self._commands.get_nowait()[1]()


class LocalReplicaGroup:
    """`num_replicas` engines in threads. Commands return at once and are carried out in order.

    Replicas are numbered from `first_number` on.
    """

    def __init__(
        self,
        engine: SlotEngine | Sequence[SlotEngine],
        versions: VersionStore,
        *,
        num_replicas: int,
        group_size: int,
        groups_per_replica: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        first_number: int = 0,
        num_elastic: int = 0,
        after_block: Callable[[Replica], None] = lambda replica: None,
        score_group: ScoreGroup | None = None,
        **settings: Any,
    ):
        """Replicas share an `engine`, or have one each, of equal shapes on devices of their own.

        `groups_per_replica` are decoded at once; None for as many as its slots hold.
        `score_group(weights, group)` is the trainer's program, for `score`. The last `num_elastic`
        replicas live on the trainer's devices, see `lend`. `after_block` is called in a replica's
        thread, after the events of each block. `settings` are further ones of `Replica`.
        """
        engines = engine if isinstance(engine, Sequence) else [engine] * num_replicas
        assert len(engines) == num_replicas, f"{len(engines)} engines for {num_replicas} replicas"
        self.num_replicas = num_replicas
        most = engines[0].config.slots_per_replica // group_size
        self.groups_per_replica = groups_per_replica or max(1, most)
        self._engines = {first_number + i: one for i, one in enumerate(engines)}
        self._versions = versions
        self._clock = clock
        self._make_replica = lambda number: Replica(
            self._engines[number], group_size=group_size, clock=clock, number=number, **settings
        )
        self._numbers = range(first_number, first_number + num_replicas)
        self.elastic_replicas = tuple(self._numbers[num_replicas - num_elastic :])
        self._reclaimed: set[int] = set()  # elastic ones that the trainer has now
        self._mailboxes = {number: Mailbox() for number in self._numbers}
        self._threads: list[threading.Thread] = []
        self._say: records.Emit  # from `start` on
        self._score_group = score_group
        self._after_block = after_block
        self._counts: dict[int, dict[str, int]] = {number: {} for number in self._numbers}
        self._past_counts: Counter[str] = Counter()  # of replicas that have failed
        self._pressures: dict[int, float] = {}
        self._sent = SentTickets()
        self._closing = threading.Event()
        self._warm_up = threading.Lock()
        self._warm: list[SlotEngine] = []

    # ---- commands, from the orchestrator's thread -----------------------------------------------

    def start(self, emit: records.Emit) -> None:
        """Starts the threads. `emit` is called from them."""
        assert not self._threads, "the group was started before"
        self._say = emit
        self._versions.follow(self)
        for number in self._numbers:
            self._start_thread(number)

    def assign(self, replica: int, version: int) -> None:
        """The version is held from now on, so it may be retired at once."""
        self._take_up(replica, version, Replica.assign)

    def swap(self, replica: int, version: int, *, keep_cache: bool) -> None:
        """Continues attempts under `version`, on their old cache or after a new prefill: partial
        rollouts, for a buffer that `mixes_versions`. An empty replica is assigned instead.

        Should the replica fail, a response of several versions begins again: a partial has one.
        """

        def change(host: Replica, version: int, params: Any) -> None:
            if host.is_empty:
                host.assign(version, params)
            else:
                host.swap(version, params, keep_cache=keep_cache)

        self._take_up(replica, version, change)

    def _take_up(
        self, replica: int, version: int, change: Callable[[Replica, int, Any], None]
    ) -> None:
        holder = f"replica-{replica}"
        weights = self._versions.acquire(version, holder)

        def carry_out(host: Replica) -> None:
            host.put_down()
            params = self._engines[replica].load_params(weights)
            self._compile(self._engines[replica], params)
            previous = host.version
            change(host, version, params)
            if previous is not None:
                self._versions.release(previous, holder)

        self._mailboxes[replica].put(carry_out, lambda: self._versions.release(version, holder))

    def dispatch(
        self,
        replica: int,
        tickets: Sequence[records.Ticket],
        version: int,
        partials: Mapping[int, PartialGroup] | None = None,
        **settings: Any,
    ) -> None:
        """Responses that a lost replica had begun under `version` go on where they were.

        `partials`, by ticket number, go before what this group knows itself; `settings` are further
        ones of `Replica.submit`.
        """
        tickets = tuple(tickets)
        self._sent.add(tickets, version)
        self._sent.keep(partials or {})
        known = self._sent.partials([ticket.number for ticket in tickets], version)

        def carry_out(host: Replica) -> None:
            mismatch = f"version {version} came to a replica that hosts {host.version}"
            assert host.version == version, mismatch
            host.submit(tickets, partials=known, **settings)

        self._mailboxes[replica].put(carry_out)

    def cancel(self, replica: int, ticket_numbers: Sequence[int]) -> None:
        numbers = tuple(ticket_numbers)
        self._sent.forget(numbers)
        self._mailboxes[replica].put(lambda host: host.cancel(numbers))

    def pause(self, replica: int) -> None:
        """Nothing is decoded after the current block, and nothing is lost, until `resume`."""
        self._mailboxes[replica].put(lambda host: host.pause())

    def resume(self, replica: int) -> None:
        self._mailboxes[replica].put(lambda host: host.resume())

    def lend(self, replicas: Sequence[int]) -> None:
        """Elastic replicas generate; what waited with them goes on where it was."""
        assert set(replicas) <= set(self.elastic_replicas), f"{replicas} are not all elastic"
        for replica in replicas:
            self._reclaimed.discard(replica)
            self._mailboxes[replica].put(lambda host: host.resume())

    def reclaim(self, replicas: Sequence[int]) -> None:
        """After their current block they give their caches up, and their groups wait in host
        memory with what was written and read of them.
        """
        assert set(replicas) <= set(self.elastic_replicas), f"{replicas} are not all elastic"
        for replica in replicas:
            self._reclaimed.add(replica)
            self._mailboxes[replica].put(lambda host: host.rest())

    def migrate(self, source: int, target: int, ticket_numbers: Sequence[int]) -> None:
        """Moves running groups with their cache between replicas that host the same version.

        Answered by `GroupsMigrated`, which names the tickets that moved; one that has ended
        meanwhile, or is not in `source`, is left alone. Meant to follow every earlier command to
        both; a later command to `target` about these tickets waits for that event. Where `source`
        fails before, the tickets go on in `target` from what is known of them.
        """
        assert source != target, f"replica {source} cannot migrate to itself"
        numbers = tuple(ticket_numbers)

        def arrive(payload: MigrationPayload | None) -> None:
            if payload is not None:
                self._set_down(target, payload)
                return
            for ticket, version, partials in self._sent.lost(numbers):
                num_tokens = sum(partial.num_tokens for partial in partials.values())
                self.dispatch(target, [ticket], version)
                self._say(records.GroupsMigrated(source, target, (ticket.number,), 0, num_tokens))

        self.give(source, numbers, arrive)

    def give(
        self,
        replica: int,
        ticket_numbers: Sequence[int],
        then: Callable[[MigrationPayload | None], None],
    ) -> None:
        """Takes groups out of a replica; `then` has them, or None where the replica failed before.

        `then` is called in some thread of this group.
        """
        numbers = tuple(ticket_numbers)
        self.ask(replica, lambda host: then(host and host.give(numbers)))

    def ask(self, replica: int, then: Callable[[Replica | None], None]) -> None:
        """`then` has the replica, in its thread and after all that was commanded before; None where
        it fails before.
        """
        self._mailboxes[replica].put(then, lambda: then(None))

    def take(self, replica: int, payload: MigrationPayload) -> None:
        """Groups that a replica of another group gave; answered by `GroupsMigrated`."""
        self._sent.add([job.ticket for job in payload.jobs], payload.version)
        self._set_down(replica, payload)

    def _set_down(self, replica: int, payload: MigrationPayload) -> None:
        def carry_out(host: Replica) -> None:
            # where all have ended or were cancelled, the replica may host another version by now
            left = payload.only(self._sent)
            nothing = records.GroupsMigrated(payload.source, replica, (), 0, 0)
            self._say(host.take(left) if left.jobs else nothing)

        def keep() -> None:
            self._sent.keep(partials_of(payload.version, payload.jobs, payload.attempts))

        self._mailboxes[replica].put(carry_out, keep)

    def score(
        self, replica: int, groups: Sequence[records.Group], then: records.WhenScored
    ) -> None:
        """Between two blocks the replica runs the trainer's program: `then` has the groups with
        their behaviour log-probabilities, or None where a version is gone or the replica fails.
        """
        score_group, holder = self._score_group, f"score-replica-{replica}"
        assert score_group is not None, "the group was made without score_group"
        held: dict[int, Any] = {}

        def release() -> None:
            while held:
                self._versions.release(held.popitem()[0], holder)

        def give_up() -> None:
            release()
            then(None)

        def carry_out(host: Replica) -> None:
            scored = tuple(score_group(held[group.version], group) for group in groups)
            release()
            then(scored)

        try:
            for version in {group.version for group in groups}:
                held[version] = self._versions.acquire(version, holder)
        except VersionError:
            give_up()
            return
        self._mailboxes[replica].put(carry_out, give_up)

    def mend(self, replica: int) -> None:
        """A new, empty replica in the place of one that failed; nothing where none did."""
        if self._mailboxes[replica].is_over and not self._closing.is_set():
            counts, self._counts[replica] = self._counts[replica], {}
            self._past_counts.update({k: n for k, n in counts.items() if "held" not in k})
            self._mailboxes[replica] = Mailbox()
            if replica in self._reclaimed:
                self._mailboxes[replica].put(lambda host: host.rest())
            self._start_thread(replica)

    def statistics(self) -> dict[str, int]:
        """Counters of all replicas together, as of their last blocks; see `Replica.statistics`."""
        total = Counter(self._past_counts)
        for counts in self._counts.values():
            total.update(counts)
        return dict(total)

    def cache_pressure(self) -> float:
        """The cache pressure of the fullest replica, as of its last block."""
        return max(list(self._pressures.values()), default=0.0)

    def on_put(self, version: int) -> None:
        """The replicas take it from the store when they need it."""

    def on_retire(self, version: int) -> None:
        """Forgets partial groups of a version that is gone."""
        self._sent.forget_version(version)

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

    def _start_thread(self, number: int) -> None:
        thread = threading.Thread(
            target=self._run,
            args=(number, self._mailboxes[number]),
            name=f"replica-{number}",
            daemon=True,
        )
        self._threads.append(thread)
        thread.start()

    def _run(self, number: int, mailbox: Mailbox) -> None:
        replica: Replica | None = None
        failure = ""
        try:
            replica = self._make_replica(number)
            while not self._closing.is_set():
                was_busy = not replica.is_empty
                mailbox.carry_out(replica, POLL_S if replica.is_empty or replica.is_paused else 0.0)
                if replica.is_empty:
                    if was_busy:
                        self._say(records.ReplicaIdle(number))
                elif not replica.is_paused:
                    groups, block = replica.step()
                    if block.num_tokens or block.active_slots:  # and not only tools were waited for
                        self._say(block)
                    for group in groups:
                        self._sent.forget([group.ticket.number])
                        self._say(records.GroupGenerated(group))
                    if replica.is_empty:
                        self._say(records.ReplicaIdle(number))
                    self._after_block(replica)
                self._counts[number] = replica.statistics()
                self._pressures[number] = replica.cache_pressure
        except Exception as error:
            logger.exception("replica %d failed", number)
            failure = f"{type(error).__name__}: {error}"
        if replica is not None and replica.version is not None:
            self._versions.release(replica.version, f"replica-{number}")
        if failure and replica is not None:
            self._sent.keep(replica.partials())
        replica = None  # its cache is free when a new one takes its place
        self._pressures.pop(number, None)
        mailbox.end()
        if failure:
            self._say(records.ReplicaFailed(number, failure))

    def _compile(self, engine: SlotEngine, params: Any) -> None:
        """The first replica of an engine compiles for all."""
        with self._warm_up:
            if not any(engine is other for other in self._warm):
                engine.warm_up(params)
                self._warm.append(engine)
