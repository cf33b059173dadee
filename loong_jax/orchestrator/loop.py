"""The event loop of one reinforcement-learning run: asks `decide`, carries its actions out.

    while not finished:
        for action in decide(ledger, now): enter it in the ledger, carry it out
        enter the next event of replicas, verifiers or trainer

One thread, the only one that changes the ledger. Groups of processes report from their own threads
through the inbox. Every wait has a time-out, and the watchdog's error names what blocks. How an
action is carried out and verdicts are asked for is in `executor`; here is what happens around it.
"""

import dataclasses
import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from loong_jax import interrupts, own
from loong_jax.errors import ConfigError, shown
from loong_jax.orchestrator import changes, dora, faults, journal, protocols
from loong_jax.orchestrator.changes import Change
from loong_jax.orchestrator.executor import Executor, GroupVerified, Inbox, VerifyAgain, Verifying
from loong_jax.orchestrator.faults import FaultBudget, WorkerLost
from loong_jax.orchestrator.journal import Journal, Replayed
from loong_jax.orchestrator.ledger import Ledger, ReplicaState
from loong_jax.orchestrator.tickets import TicketSource
from loong_jax.rl import events as rl_events
from loong_jax.rollout import records
from loong_jax.rollout.records import Group, Ticket
from loong_jax.rollout.reuse import GroupReuse
from loong_jax.verifiers.pool import VerifierPool

logger = logging.getLogger(__name__)

MAX_DECISIONS = 10_000  # of a policy between two events

Event = TypeVar("Event")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopSettings:
    num_steps: int
    scheduler: protocols.Policy
    checkpoint_every: int = 10  # steps; the last step is always saved
    verdict_deadline_s: float = 20.0
    stall_timeout_s: float = 300.0  # without any event; compiling counts as silence
    faults: FaultBudget = FaultBudget()
    max_tickets_per_step: int = 5000  # judged without a step in between: nothing is learnt then
    solved_after: int = 200  # such tickets, nearly all of them solved: nothing is left to learn
    reuse: GroupReuse = GroupReuse()  # of groups that were trained before
    seed: int = 0  # of reuse


@dataclasses.dataclass(kw_only=True, eq=False)
class Orchestrator:
    """Owns the ledger of one run and drives its three groups of processes."""

    name: str  # makes verifier keys differ between runs that share a pool
    settings: LoopSettings
    trainer: protocols.TrainerGroup
    replicas: protocols.ReplicaGroup
    verifiers: VerifierPool
    tickets: TicketSource
    versions: protocols.Versions
    grade: protocols.Grade
    log: protocols.RunLog
    clock: Callable[[], float] = time.monotonic
    events: protocols.EventQueue | None = None
    keep_going: Callable[[], bool] = lambda: True  # asked after every step; False makes it the last
    journal: Journal | None = None

    def __post_init__(self):
        settings, replicas = self.settings, self.replicas
        scheduler = settings.scheduler
        elastic = replicas.elastic_replicas if isinstance(replicas, protocols.LendsDevices) else ()
        self.ledger = Ledger(
            source=self.tickets,
            replicas=[ReplicaState(elastic=n in elastic) for n in range(replicas.num_replicas)],
            groups_per_replica=replicas.groups_per_replica,
            max_staleness=scheduler.max_staleness,
            mixes_versions=scheduler.mixes_versions,
            reuse=settings.reuse,
            seed=settings.seed,
            total_steps=settings.num_steps,
            issue_limit=scheduler.groups_per_step * (1 + scheduler.max_staleness),
        )
        self.cancelled_at_end: tuple[Ticket, ...] = ()  # interrupted by the end of the run
        self.num_reissued = 0  # tickets whose version was lost with the process before this one
        self._replayed: Replayed | None = None  # the state that `run` goes on from
        self._reaches_back_to = 0  # segment of the journal that the last checkpoint goes on from
        self._segments: dict[int, int] = {}  # the same of checkpoints being written, by step
        self._saving = self._saved = 0  # steps of the last checkpoints begun, and ended
        self._losses = [0] * replicas.num_replicas  # in a row
        self._inbox = Inbox(self.clock, self.events)
        self._verifying = Verifying(
            self.name,
            self.verifiers,
            self.ledger,
            self._inbox,
            self.log,
            self.clock,
            settings.verdict_deadline_s,
        )
        self._executor = Executor(self.ledger, self.commit, replicas, self.trainer, self.versions)

    def commit(self, change: Change, groups: Sequence[Group] = ()) -> None:
        """The change is in the journal, then in the ledger; its effect may follow.

        `groups` are those of a `Generated`, `Verified` or `Scored` change, in its order.
        """
        if self.journal is not None:
            self.journal.write(change)
        self.ledger.enter(change, groups)

    # ---- going on -------------------------------------------------------------------------------

    def restore(self, control: Mapping[str, Any] | None) -> None:
        """Continues from the control part of a checkpoint (None: from the beginning) and from what
        the journal holds since then. With a journal, call it for a fresh run too.
        """
        if control is not None:
            self.ledger.restore(control)
            self._saving = self._saved = self.ledger.step
        found = []
        if self.journal is not None:
            self._reaches_back_to = control.get("journal", 0) if control is not None else 0
            found = self.journal.reopen(self._reaches_back_to)
        replayed = journal.replay(self.ledger, self.journal, found, self.grade)
        if control is not None or found:
            self._replayed = replayed
        self.ledger.total_steps = self.settings.num_steps

    def snapshot(self) -> dict[str, Any]:
        """All that decides how the run goes on, taken between two events."""
        segment = 0 if self.journal is None else self.journal.next_segment
        return {**self.ledger.snapshot(), "journal": segment}

    def run(self) -> Ledger:
        """Runs to the last step; returns the ledger with every ticket ended.

        A signal that ends it waits until the last step trained has a checkpoint.
        """
        self.trainer.start(self._inbox.put)
        if self._replayed is not None:
            self._go_on(self._replayed)
        self.replicas.start(self._inbox.put)
        for number, replica in enumerate(self.ledger.replicas):
            if replica.version is not None:
                self.replicas.assign(number, replica.version)
        if paused := self.ledger.sets.taken:
            self._executor.can(protocols.LendsDevices).reclaim(paused)
        for ticket in self.ledger.tickets.in_phase("verifying"):
            self._verifying.ask(ticket.number)
        if self.ledger.trainer == "publishing":
            self.trainer.publish(self.ledger.step)
        with interrupts.between_steps():
            while not self.ledger.is_finished:
                self._act()
                if not self.ledger.is_finished:
                    self._advance(self._next_event())
                    self._leave_if_told()
        self.cancelled_at_end = tuple(entry.ticket for entry in self.ledger.tickets.values())
        self._executor.end(changes.Ended(tuple(self.ledger.tickets), "cancelled_at_end"))
        return self.ledger

    def _go_on(self, replayed: Replayed) -> None:
        """Trains the steps since the checkpoint once more, each on the groups it had, so that the
        policy versions that open tickets were promised exist again.
        """
        needed = self.ledger.live_versions()
        for version in set(self.versions.numbers()) - needed:
            self.versions.retire(version)
        changed: list[int] = []
        for lost in replayed.steps:
            self.trainer.train(lost.step, lost.groups)
            trained = self._answer(rl_events.StepTrained)
            for judged in lost.judged:
                self.log.judged(*judged)
            self._log_step(trained, lost.groups, lost.reread, lost.counts, lost.num_open)
            if lost.step in needed and lost.step <= self.ledger.newest_version:
                self.trainer.publish(lost.step)
                self._answer(rl_events.VersionPublished)
                if replayed.checksums.get(lost.step, "") != self.versions.checksum(lost.step):
                    changed.append(lost.step)
        for judged in replayed.judged:
            self.log.judged(*judged)
        reissued = tuple(
            ticket.number
            for ticket in self.ledger.tickets.values()
            if ticket.version in changed and ticket.phase not in ("ready", "leased")
        )
        if reissued:
            self.num_reissued = len(reissued)
            logger.warning(
                "versions %s came out differently when their steps were trained again, as on "
                "other hardware: %d groups are issued again",
                changed,
                len(reissued),
            )
        self.commit(changes.Reopened(reissued))
        self._say(
            "reopen",
            num_changes=replayed.num_changes,
            steps_trained_again=len(replayed.steps),
            groups_issued_again=len(reissued),
        )
        if replayed.steps and self.ledger.trainer == "idle":
            self._save(self.ledger.step)

    def _answer(self, kind: type[Event]) -> Event:
        """The trainer's answer to the only command under way."""
        while True:
            event = self._next_event()
            if isinstance(event, kind):
                return event
            if isinstance(event, rl_events.WorkerFailed):
                self._advance(event)

    def _save(self, step: int) -> None:
        """Snapshot and journal part here: what the journal holds from now on is after `step`."""
        snapshot = self.snapshot()
        self._saving = step
        self.commit(changes.SaveBegun(step))
        if self.journal is not None:
            self._segments[step] = snapshot["journal"]
            self.journal.rotate()
        self.trainer.save(step, snapshot)

    # ---- events -------------------------------------------------------------------------------

    def _leave_if_told(self) -> None:
        if interrupts.is_waiting():
            if self.ledger.trainer != "idle":
                return
            if self.ledger.step > self._saving:
                self._save(self.ledger.step)
            while self._saved < self._saving:
                self._advance(self._next_event())
        interrupts.let_through()

    def _next_event(self) -> Any:
        try:
            return self._inbox.next(self.settings.stall_timeout_s)
        except queue.Empty:
            since = f"for {self.settings.stall_timeout_s:.0f} s"
            remedy = "Raise stall_timeout_s if it is only slow"
            raise faults.stalled(self.ledger, since, remedy) from None

    def _advance(self, event: Any) -> None:
        match event:
            case records.BlockDecoded():
                place = {"replica": event.replica, "version": event.version}
                self._say("decode", event, **place, num_tokens=event.num_tokens)
            case records.GroupGenerated():
                self._on_generated(event.group)
            case GroupVerified():
                self._on_verified(event)
            case VerifyAgain(number, attempts):
                if number in self.ledger.tickets:
                    self._verifying.ask(number, attempts)
            case rl_events.GroupsScored():
                self._on_scored(event)
            case rl_events.StepTrained():
                self._on_trained(event)
            case rl_events.VersionPublished():
                self._on_published(event)
            case records.GroupsMigrated():
                self._executor.on_moved(event.source, event.target)
                self._say("migrate", **event._asdict())
            case rl_events.Saved():
                self._on_saved(event)
            case records.ReplicaFailed(replica, error):
                self._on_replica_failed(replica, error)
            case changes.ReplicaBack(replica):
                self.replicas.mend(replica)
                self.commit(event)
                self._say("replica_back", replica=replica)
            case records.ReplicaIdle():
                pass
            case rl_events.WorkerFailed():
                raise WorkerLost(
                    f"{event.where} failed: {event.error.rstrip('.')}. What is saved is intact; "
                    "once the cause is mended, the same command goes on from there."
                )
            case _:
                raise AssertionError(f"unknown event {event!r}")

    def _on_generated(self, group: Group) -> None:
        number = group.ticket.number
        ticket = self.ledger.tickets.get(number)
        if ticket is None or ticket.phase not in ("queued", "decoding"):
            return  # cancelled while its last tokens were on their way, or written twice
        if ticket.replica is not None:
            self._losses[ticket.replica] = 0
        place = None if self.journal is None else self.journal.keep(group)
        self.commit(changes.Generated(number, self.replicas.cache_pressure(), place), [group])
        self._verifying.ask(number)

    def _on_verified(self, event: GroupVerified) -> None:
        self._say("verify", event, num_answers=len(event.verdicts))
        number = event.number
        if number not in self.ledger.tickets:
            return
        group = self._verifying.answered(event, self.settings.faults)
        if group is None:
            return
        group, disposition = self.grade(group)
        self.log.judged(group, disposition)
        is_solved = all(r.verdict is not None and r.verdict.is_correct for r in group.rollouts)
        verdicts = ()
        if self.journal is not None:
            verdicts = tuple(dataclasses.asdict(r.verdict) for r in group.rollouts if r.verdict)
        self.commit(changes.Verified(number, disposition, is_solved, verdicts), [group])
        settings = self.settings
        if disposition == "keep":
            return
        if faults.are_solved(self.ledger, settings.solved_after):
            logger.info("step %d: the problems are solved; the run ends here", self.ledger.step)
            self.commit(changes.RunEnds(self.ledger.step))
            return
        max_failed = settings.faults.failed_tickets
        faults.refuse_fruitless(self.ledger, max_failed, settings.max_tickets_per_step)

    def _on_scored(self, event: rl_events.GroupsScored) -> None:
        self._say("score", event)
        places = () if self.journal is None else tuple(map(self.journal.keep, event.groups))
        numbers = tuple(group.ticket.number for group in event.groups)
        self.commit(changes.Scored(numbers, places), event.groups)

    def _on_trained(self, event: rl_events.StepTrained) -> None:
        lease, reread = self.ledger.lease, self.ledger.reread
        scheduler = self.settings.scheduler
        numbers = tuple(group.ticket.number for group in lease)
        ahead = scheduler.groups_per_step * (1 + scheduler.max_staleness)
        limit = max(self.ledger.issue_limit, max(numbers) + 1 + ahead)
        self.commit(changes.Trained(event.step, numbers, limit))
        self.trainer.publish(event.step)
        again = journal.rereads(self.ledger, len(reread))
        counts, num_open = self.ledger.counts(), len(self.ledger.tickets)
        self._log_step(event, lease + reread, again, counts, num_open)

    def _log_step(
        self,
        event: rl_events.StepTrained,
        groups: Sequence[Group],
        reread: dict[str, int],
        counts: dict[str, int],
        num_open: int,
    ) -> None:
        self._say("train", event, step=event.step)
        course = self.ledger.source.course
        taught = {} if course is None else course.metrics(event.step, counts["issued"])
        metrics = {**event.metrics, **reread, **taught, "tickets": counts, "open": num_open}
        self.log.step(event.step, metrics, groups)

    def _on_published(self, event: rl_events.VersionPublished) -> None:
        self._say("publish", event, version=event.version)
        version = event.version
        last = self.ledger.total_steps if self.keep_going() else version
        self.commit(changes.Published(version, last, self.versions.checksum(version)))
        if version % self.settings.checkpoint_every == 0 or self.ledger.is_finished:
            self._save(version)
        self._executor.retire_versions()

    def _on_saved(self, event: rl_events.Saved) -> None:
        """The checkpoint before this one stays, for the case that this one is damaged."""
        self._saved = event.step
        if self.journal is not None:
            self.journal.forget_before(self._reaches_back_to)
            self._reaches_back_to = self._segments.pop(event.step)

    def _on_replica_failed(self, replica: int, error: str) -> None:
        """Quarantine; its groups go on elsewhere under their version, or here once it is mended."""
        budget = self.settings.faults
        self._executor.on_lost(replica)
        self._losses[replica] += 1
        losses = self._losses[replica]
        if losses > budget.replica_losses:
            raise WorkerLost(
                f"replica {replica} failed {losses} times in a row, and replica_losses allows "
                f"{budget.replica_losses}; last: {error.rstrip('.')}. Once that is mended, "
                "the same command goes on from here."
            )
        self.commit(changes.ReplicaLost(replica, losses))
        pause_s = budget.pause_s(losses)
        logger.warning("replica %d failed (%s); used again in %.1f s", replica, error, pause_s)
        self._say("replica_lost", replica=replica)
        self._inbox.alarm(pause_s, changes.ReplicaBack(replica))

    def _say(self, kind: str, event: Any = None, **fields: Any) -> None:
        times = {"at_s": self.clock()}
        if event is not None:
            times = {"start_s": event.start_s, "end_s": event.end_s}
        self.log.event({"kind": kind, **fields, **times})

    # ---- actions ------------------------------------------------------------------------------

    def _act(self) -> None:
        settings, policy = self.settings, self.settings.scheduler
        for _ in range(MAX_DECISIONS):
            actions = dora.decide(self.ledger, policy, self.clock())
            if not actions and self._saving == self._saved:
                faults.refuse_standstill(self.ledger, policy)
            if not actions or not self._executor.may_do(actions):
                return  # asked again after the next event
            for action in actions:
                faults.refuse_action(action, self.ledger, policy)
                faults.refuse_excess(action, self.ledger, policy, settings.max_tickets_per_step)
                self._executor.carry_out(action)
        raise ConfigError(
            f"the policy {own.name_of(policy)} went on to decide, {shown(actions)} last, "
            f"{MAX_DECISIONS} times without an event. Return [] where there is nothing to do."
        )
