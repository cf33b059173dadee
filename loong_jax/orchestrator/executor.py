"""Commands to the groups of processes, and what they report back.

`Executor` carries out what a policy has decided, `Verifying` asks for the verdicts of a group, and
asks again where a verifier was lost; `Inbox` is what the loop takes events from.
"""

import dataclasses
import heapq
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from loong_jax.orchestrator import changes, protocols
from loong_jax.orchestrator.changes import Action, Change
from loong_jax.orchestrator.faults import FaultBudget
from loong_jax.orchestrator.ledger import Ledger
from loong_jax.problems.verdict import Verdict
from loong_jax.rollout.records import Group
from loong_jax.verifiers.pool import VerifierPool, VerifierRequest

Ability = TypeVar("Ability")
VERIFIER_LOST = ("worker lost", "pool closed")  # reasons that say nothing about the answer


class Inbox:
    """Events in the order they come, and alarms when they are due."""

    def __init__(self, clock: Callable[[], float], events: protocols.EventQueue | None):
        self._events: protocols.EventQueue = events if events is not None else queue.Queue()
        self.put = self._events.put
        self._clock = clock
        self._alarms: list[tuple[float, int, Any]] = []  # when, order, event
        self._num_alarms = 0

    def next(self, timeout_s: float) -> Any:
        """The next alarm that is due, or the next event. Raises `queue.Empty` after `timeout_s`.

        Alarms go first, since events may come faster than they are taken.
        """
        due_s = self._alarms[0][0] - self._clock() if self._alarms else float("inf")
        if due_s <= 0:
            return heapq.heappop(self._alarms)[2]
        try:
            return self._events.get(timeout=min(timeout_s, due_s))
        except queue.Empty:
            if due_s <= timeout_s:
                return heapq.heappop(self._alarms)[2]
            raise

    def alarm(self, pause_s: float, event: Any) -> None:
        """`event` comes after `pause_s`."""
        self._num_alarms += 1
        heapq.heappush(self._alarms, (self._clock() + pause_s, self._num_alarms, event))


@dataclasses.dataclass(eq=False)
class Executor:
    """Commands replicas, trainer and version store."""

    ledger: Ledger
    commit: Callable[[Change], None]
    replicas: protocols.ReplicaGroup
    trainer: protocols.TrainerGroup
    versions: protocols.Versions
    # sources and targets of moves under way
    moves: Counter[tuple[int, int]] = dataclasses.field(default_factory=Counter)

    def carry_out(self, action: Action) -> None:
        """Enters the action in the ledger and does it."""
        if isinstance(action, changes.EndStale):
            self.end(action)
            return
        self.commit(action)
        match action:
            case changes.Dispatch(replica, numbers, version):
                tickets = [self.ledger.tickets[number].ticket for number in numbers]
                self.replicas.dispatch(replica, tickets, version)
            case changes.Assign(replica, version):
                self.replicas.assign(replica, version)
                self.retire_versions()
            case changes.Migrate(source, target, numbers):
                self.moves[source, target] += 1
                self.can(protocols.MovesGroups).migrate(source, target, numbers)
            case changes.Swap(replica, version, keep_cache):
                self.can(protocols.SwapsWeights).swap(replica, version, keep_cache=keep_cache)
                self.retire_versions()
            case changes.Lend(replicas):
                self.can(protocols.LendsDevices).lend(replicas)
            case changes.Reclaim(replicas):
                self.can(protocols.LendsDevices).reclaim(replicas)
            case changes.Score(numbers, with_generators):
                groups = [self.ledger.group(number) for number in numbers]
                if with_generators and isinstance(self.trainer, protocols.ScoresEverywhere):
                    self.trainer.score_everywhere(groups)
                else:
                    self.trainer.score(groups)
            case changes.Train():
                groups = self.ledger.lease + self.ledger.reread
                self.trainer.train(self.ledger.step + 1, groups)

    def may_do(self, actions: Iterable[Action]) -> bool:
        """False for moves while others are under way: a sample that moves is not yet at its target,
        which the ledger names as its place already. They wait for `on_moved`.
        """
        return not self.moves or not any(isinstance(action, changes.Migrate) for action in actions)

    def on_moved(self, source: int, target: int) -> None:
        self.moves -= Counter([(source, target)])

    def on_lost(self, replica: int) -> None:
        """Moves from and to a replica that failed are over."""
        self.moves = Counter({p: n for p, n in self.moves.items() if replica not in p})

    def can(self, ability: type[Ability]) -> Ability:
        """The replicas, once more, as something that has the optional methods of `ability`."""
        assert isinstance(self.replicas, ability), f"{ability.__name__} is not among its needs"
        return self.replicas

    def retire_versions(self) -> None:
        """Versions nobody needs go; one whose publishing is not entered yet stays."""
        for version in set(self.versions.numbers()) - self.ledger.live_versions():
            if version <= self.ledger.newest_version:
                self.versions.retire(version)

    def end(self, change: changes.EndStale | changes.Ended) -> None:
        """Enters the change, and cancels those of its tickets that are being written."""
        by_replica: dict[int, list[int]] = {}
        for number in change.tickets:
            replica = self.ledger.tickets[number].replica
            if replica is not None:
                by_replica.setdefault(replica, []).append(number)
        self.commit(change)
        for replica, numbers in by_replica.items():
            self.replicas.cancel(replica, numbers)


class GroupVerified(NamedTuple):
    number: int
    attempts: tuple[int, ...]  # whose answers were judged
    verdicts: tuple[Verdict, ...]
    start_s: float
    end_s: float


class VerifyAgain(NamedTuple):
    """The pause after a lost verifier is over."""

    number: int
    attempts: tuple[int, ...]


@dataclasses.dataclass(eq=False)
class Verifying:
    """Sends the groups in the ledger to the verifiers; `GroupVerified` in the inbox answers."""

    run_name: str  # makes keys differ between runs that share a pool
    verifiers: VerifierPool
    ledger: Ledger
    inbox: Inbox
    log: protocols.RunLog
    clock: Callable[[], float]
    deadline_s: float
    # how often was asked before, of tickets whose verifier was lost
    times: dict[int, int] = dataclasses.field(default_factory=dict)

    def ask(self, number: int, attempts: Sequence[int] | None = None) -> None:
        """Asks for the verdicts of these attempts (None: of all), each within the deadline."""
        group = self.ledger.group(number)
        asked = range(len(group.rollouts)) if attempts is None else attempts
        times = self.times.get(number, 0)
        prefix = f"{self.run_name}/again{times}" if times else self.run_name
        start_s = self.clock()
        futures = self.verifiers.submit(
            [
                VerifierRequest(
                    key=f"{prefix}/{number}/{group.rollouts[index].attempt}",
                    problem=group.ticket.problem,
                    response_text=group.rollouts[index].text,
                    deadline_s=self.deadline_s,
                )
                for index in asked
            ]
        )
        remaining, lock = [len(futures)], threading.Lock()

        def one_done(_) -> None:
            with lock:
                remaining[0] -= 1
                if remaining[0]:
                    return
            verdicts = tuple(future.result() for future in futures)
            self.inbox.put(GroupVerified(number, tuple(asked), verdicts, start_s, self.clock()))

        for future in futures:
            future.add_done_callback(one_done)

    def answered(self, event: GroupVerified, budget: FaultBudget) -> Group | None:
        """The group with its verdicts; None where some are asked for again after a pause.

        A lost verifier says nothing about the answer.
        """
        group, unanswered = self.ledger.group(event.number), []
        rollouts = list(group.rollouts)
        for attempt, verdict in zip(event.attempts, event.verdicts, strict=True):
            rollouts[attempt] = dataclasses.replace(rollouts[attempt], verdict=verdict)
            if verdict.reason in VERIFIER_LOST:
                unanswered.append(attempt)
        group = group.replace_rollouts(tuple(rollouts))
        times = self.times.pop(event.number, 0) + 1
        if not unanswered or times >= budget.verifications:
            return group
        self.times[event.number] = times
        self.ledger.tickets[event.number].group = group  # with the verdicts that there are
        self.inbox.alarm(budget.pause_s(times), VerifyAgain(event.number, tuple(unanswered)))
        self.log.event({"kind": "verify_again", "num_answers": len(unanswered)})
        return None
