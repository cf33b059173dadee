"""The books of a run: state, problems, buffer and unfinished groups, all changed by one method.

`commit` writes a change to the journal and enters it; `replay` enters what a journal holds. Since
both enter in the same way, what is rebuilt equals what was lived.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from loong_jax.orchestrator import actions as acts
from loong_jax.orchestrator import changes, policy
from loong_jax.orchestrator import state as states
from loong_jax.orchestrator.changes import Change, Place
from loong_jax.orchestrator.journal import Journal
from loong_jax.orchestrator.state import RunState
from loong_jax.orchestrator.tickets import TicketSource
from loong_jax.rl.grading import Disposition
from loong_jax.rollout import plain
from loong_jax.rollout.buffer import Buffer, Lease
from loong_jax.rollout.records import Group, Ticket, TicketEnd
from loong_jax.verifiers.verdict import Verdict

Grade = Callable[[Group], tuple[Group, Disposition]]


class LostStep(NamedTuple):
    """A step that was trained after the last checkpoint: its weights are gone, its groups not."""

    step: int
    groups: tuple[Group, ...]
    reread: dict[str, int]  # see `Books.rereads`
    counts: dict[str, int]  # of tickets, when it ended
    num_open: int


class Replayed(NamedTuple):
    """What a journal held since the checkpoint."""

    num_changes: int
    steps: tuple[LostStep, ...]
    checksums: dict[int, str]  # of the weights by version, where known


class Books:
    """One thread at a time. Without a journal nothing survives but checkpoints."""

    def __init__(
        self,
        *,
        state: RunState,
        tickets: TicketSource,
        buffer: Buffer,
        grade: Grade,
        journal: Journal | None,
    ):
        self.state = state
        self.tickets = tickets
        self.buffer = buffer
        self.grade = grade
        self.journal = journal
        self.groups: dict[int, Group] = {}  # generated, not yet in the buffer
        self.lease: Lease | None = None

    # ---- changing -------------------------------------------------------------------------------

    def commit(self, change: Change, groups: Sequence[Group] = ()) -> None:
        """The change is in the journal, then in the books; its effect may follow.

        `groups` are those of a `Generated`, `Verified` or `Scored` change, in its order.
        """
        if self.journal is not None:
            self.journal.write(change)
        self._enter(change, groups)

    def keep(self, group: Group) -> tuple[Place, ...]:
        """Where the journal has the group's arrays now; () without a journal."""
        return () if self.journal is None else (self.journal.keep(group),)

    def verdicts(self, group: Group) -> tuple[dict[str, Any], ...]:
        """Those of the group, for a `Verified`; () without a journal."""
        if self.journal is None:
            return ()
        return tuple(dataclasses.asdict(r.verdict) for r in group.rollouts if r.verdict)

    def replay(self, found: Iterable[Change]) -> Replayed:
        """Enters what was committed after the checkpoint that `restore` was given."""
        steps: list[LostStep] = []
        checksums: dict[int, str] = {}
        found = tuple(found)
        for change in found:
            lease = self.lease
            self._enter(change, self._groups_of(change))
            match change:
                case changes.Trained(step):
                    assert lease is not None
                    reread, num_open = self.rereads(lease), len(self.state.tickets)
                    counts = self.state.counts()
                    steps.append(LostStep(step, lease.groups, reread, counts, num_open))
                case changes.Published(version, _, checksum):
                    checksums[version] = checksum
        return Replayed(len(found), tuple(steps), checksums)

    def _groups_of(self, change: Change) -> tuple[Group, ...]:
        match change:
            case changes.Generated(_, _, place) if self.journal is not None and place is not None:
                return (self.journal.load(place),)
            case changes.Scored(_, places) if self.journal is not None:
                return tuple(self.journal.load(place) for place in places)
            case changes.Verified(number, "keep", _, verdicts):
                judged = with_verdicts(self.groups[number], [Verdict(**v) for v in verdicts])
                return (self.grade(judged)[0],)
        return ()

    def _enter(self, change: Change, groups: Sequence[Group]) -> None:
        match change:
            case acts.Issue(count, version, deferred):
                for number in range(self.state.num_issued, self.state.num_issued + count):
                    ticket = self.tickets.open(number, deferred=deferred, step=self.state.step)
                    self.buffer.admit(ticket, version, self.state.step)
            case acts.Train(numbers):
                self.lease = self.buffer.lease(numbers, trainer_version=self.state.step)
            case acts.EndStale(numbers, afterwards):
                self._end(numbers, "stale", afterwards)
            case changes.Generated(number):
                (self.groups[number],) = groups
                lengths = [len(r.tokens) for r in self.groups[number].rollouts]
                self.tickets.written(number, lengths)
            case changes.Verified(number, disposition, _, verdicts):
                self.tickets.judged(number, _outcomes(verdicts, groups))
                if disposition == "keep":
                    (self.groups[number],) = groups
                else:
                    self._end((number,), disposition)
            case changes.Scored(numbers):
                for number, group in zip(numbers, groups, strict=True):
                    del self.groups[number]
                    self.buffer.complete(group)
            case changes.Trained(_, numbers):
                assert self.lease is not None
                self.buffer.commit(self.lease)
                self.lease = None
                for number in numbers:
                    self.tickets.end(number, "trained")
            case changes.Ended(numbers, how):
                self._end(numbers, how)
            case changes.Reopened(lost):
                if self.lease is not None:
                    self.buffer.abort(self.lease)
                    self.lease = None
                self._end(lost, "stale")
        self.state = changes.apply(self.state, change)

    def _end(
        self, numbers: Iterable[int], how: TicketEnd, afterwards: acts.Afterwards = "again"
    ) -> None:
        for number in numbers:
            self.groups.pop(number, None)
            self.buffer.end(number, how)
            self.tickets.end(number, how, afterwards)

    # ---- looking --------------------------------------------------------------------------------

    def ticket(self, number: int) -> Ticket:
        return self.tickets.ticket(number)

    def trained(self, step: int, scheduler: policy.Policy) -> changes.Trained:
        """The change that ends the step under way, and what may be issued from then on."""
        assert self.lease is not None
        numbers = tuple(group.ticket.number for group in self.lease.fresh)
        ahead = scheduler.groups_per_step * (1 + scheduler.max_staleness)
        return changes.Trained(step, numbers, max(self.state.issue_limit, max(numbers) + 1 + ahead))

    def rereads(self, lease: Lease) -> dict[str, int]:
        """Groups that the step of `lease` trained on again, and all so far; {} where none ever is.

        To be asked once the step is committed.
        """
        if not self.buffer.reuse.share:
            return {}
        return {"reuse/groups": len(lease.reread), "reuse/total": self.buffer.num_rereads}

    def without_weights(self, versions: Iterable[int]) -> tuple[int, ...]:
        """Open tickets that need one of `versions`: all that are not ready to train."""
        gone = set(versions)
        return tuple(
            ticket.number
            for ticket in self.state.tickets.values()
            if ticket.version in gone and ticket.phase not in ("ready", "leased")
        )

    # ---- checkpoints ----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """All that decides how the run goes on, taken between two changes."""
        return {
            "state": states.to_json(self.state),
            "tickets": self.tickets.snapshot(),
            "buffer": self.buffer.snapshot(),
            "groups": [plain.group_to_plain(group) for group in self.groups.values()],
            "versions": sorted(states.live_versions(self.state)),
            "journal": 0 if self.journal is None else self.journal.next_segment,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """The books as they were; a `Reopened` change makes them those of a new process."""
        self.state = states.from_json(snapshot["state"])
        self.tickets.restore(snapshot["tickets"])
        self.buffer.restore(snapshot["buffer"])
        groups = [plain.group_from_plain(record) for record in snapshot.get("groups", ())]
        self.groups = {group.ticket.number: group for group in groups}
        self.lease = None


def _outcomes(verdicts: Sequence[Mapping[str, Any]], groups: Sequence[Group]) -> list[str]:
    """Of a group's verdicts, which stand in the change where there is a journal."""
    if verdicts:
        return [verdict["outcome"] for verdict in verdicts]
    return [r.verdict.outcome for g in groups for r in g.rollouts if r.verdict is not None]


def with_verdicts(group: Group, verdicts: Sequence[Verdict]) -> Group:
    return group.replace_rollouts(
        tuple(
            dataclasses.replace(rollout, verdict=verdict)
            for rollout, verdict in zip(group.rollouts, verdicts, strict=True)
        )
    )
