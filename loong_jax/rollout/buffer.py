"""The buffer: groups between generation and training, and the ledger of all tickets.

    admit -> open --complete--> ready --lease--> leased --commit--> (trained)
               \\                  |  ^               |
                +----- end -------+  +---- abort ----+      ends: records.TICKET_ENDS

Each ticket is in exactly one state and ends exactly once; issued = sum of ends + open ones,
checked at every transition. Staleness (trainer's version minus the group's) is bounded at admission
and again at lease, so time spent waiting counts. A lease is a transaction: until its commit, an
abort or a restored snapshot brings its groups back.

A lease may hold groups that were trained before (`reuse`). Such a re-read is counted and is no
transition: its ticket has ended.

One thread at a time may use a buffer. Token arrays are kept by reference.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from loong_jax.errors import ConfigError, LoongError
from loong_jax.rollout import plain
from loong_jax.rollout.records import TICKET_ENDS, Group, Ticket, TicketEnd
from loong_jax.rollout.reuse import GroupReuse, TrainedGroups

FORMAT_VERSION = 1

TicketState = Literal["open", "ready", "leased"]
NO_REUSE = GroupReuse()


class LedgerError(LoongError):
    """A transition that the ledger does not know: a ticket unknown, ended, or in another state."""


class StaleError(LoongError):
    """A ticket or group too old to be trained on."""


@dataclasses.dataclass
class _Entry:
    ticket: Ticket
    version: int
    state: TicketState = "open"
    group: Group | None = None
    completed: int = -1  # place in the order of completion


@dataclasses.dataclass(frozen=True)
class Lease:
    """Groups on their way into one training step. Ends with `commit` or `abort`, once."""

    number: int
    trainer_version: int
    fresh: tuple[Group, ...]
    reread: tuple[Group, ...] = ()  # trained by an earlier step

    @property
    def groups(self) -> tuple[Group, ...]:
        """All that the step trains on."""
        return self.fresh + self.reread


class Buffer:
    """See the module. `max_staleness` is S, in steps.

    With `mixes_versions`, for partial rollouts, a response may go on under later versions than the
    one it was admitted under, which its age counts from. `reuse` says how much of a lease was
    trained before, `seed` which of it.
    """

    def __init__(
        self,
        *,
        max_staleness: int,
        mixes_versions: bool = False,
        reuse: GroupReuse = NO_REUSE,
        seed: int = 0,
    ):
        if max_staleness < 0:
            raise ConfigError(f"max_staleness={max_staleness} must be >= 0. Use 0 for on-policy.")
        self.max_staleness = max_staleness
        self.mixes_versions = mixes_versions
        self.reuse = reuse
        self._entries: dict[int, _Entry] = {}  # tickets that have not ended, by number
        self._ends: dict[TicketEnd, int] = dict.fromkeys(TICKET_ENDS, 0)
        self._num_issued = 0
        self._num_completed = 0
        self._num_leases = 0
        self._leases: dict[int, Lease] = {}  # that have not ended, by number
        self._to_regenerate: list[Ticket] = []
        self._trained = TrainedGroups(reuse, seed=seed, max_staleness=max_staleness)

    # ---- the way of a ticket --------------------------------------------------------------------

    def admit(self, ticket: Ticket, version: int, trainer_version: int) -> None:
        """A ticket is issued, to be written under `version`. Numbers come in order, from 0.

        Raises StaleError where the version is older than the bound even now.
        """
        if ticket.number != self._num_issued:
            raise LedgerError(
                f"ticket {ticket.number} admitted, but the next is {self._num_issued}. Tickets are "
                "numbered in the order of issue."
            )
        self._check_age(ticket.number, version, trainer_version)
        self._num_issued += 1
        self._entries[ticket.number] = _Entry(ticket, version)
        self._check()

    def complete(self, group: Group) -> None:
        """An open ticket's group is generated, judged and scored."""
        number = group.ticket.number
        entry = self._entry(number, "open")
        strangers = {v for r in group.rollouts for _, v in r.versions} - {entry.version}
        if self.mixes_versions:
            strangers = {v for v in strangers if v < entry.version}
        if group.version != entry.version or strangers:
            raise LedgerError(
                f"ticket {number} was admitted under version {entry.version}, but its group says "
                f"{group.version} and its tokens {sorted(strangers) or group.version}. A group "
                "has one version, save under a policy that mixes_versions."
            )
        entry.state, entry.group = "ready", group
        entry.completed, self._num_completed = self._num_completed, self._num_completed + 1
        self._check()

    def end(self, ticket_number: int, end: TicketEnd) -> None:
        """An open or ready ticket ends other than by training."""
        if end == "trained" or end not in self._ends:
            raise LedgerError(
                f"ticket {ticket_number} cannot end as {end!r} here: tickets become trained by "
                f"commit, otherwise one of {TICKET_ENDS[1:]}."
            )
        self._entry(ticket_number, "open", "ready")
        self._finish(ticket_number, end)
        self._check()

    # ---- training -------------------------------------------------------------------------------

    def lease(
        self,
        wanted: int | Sequence[int],
        trainer_version: int,
        in_issue_order: bool = False,
    ) -> Lease | None:
        """Groups for the step from `trainer_version` to the next; None while there are too few.

        `wanted` is how many, oldest first by completion or by issue, or the numbers of the tickets.
        With a count, ready groups past the bound end as stale first; see `take_stale`. Numbers of
        stale tickets raise StaleError and change nothing. Groups that are read again come on top.
        """
        if isinstance(wanted, int):
            if wanted < 1:
                raise ValueError(f"a lease of {wanted} groups. A step trains on at least one.")
            self.end_stale(trainer_version)
            ready = [entry for entry in self._entries.values() if entry.state == "ready"]
            if len(ready) < wanted:
                return None
            ready.sort(key=lambda e: e.ticket.number if in_issue_order else e.completed)
            entries = ready[:wanted]
        else:
            if not wanted or len(set(wanted)) != len(wanted):
                raise LedgerError(f"a lease of tickets {tuple(wanted)}. Name each once.")
            entries = [self._entry(number, "ready") for number in wanted]
            for entry in entries:
                self._check_age(entry.ticket.number, entry.version, trainer_version)
        groups = []
        for entry in entries:
            assert entry.group is not None
            entry.state = "leased"
            groups.append(entry.group)
        reread = self._trained.pick(len(groups), trainer_version)
        lease = Lease(self._num_leases, trainer_version, tuple(groups), reread)
        self._leases[lease.number] = lease
        self._num_leases += 1
        self._check()
        return lease

    def commit(self, lease: Lease) -> None:
        """The step is done; its tickets end as trained."""
        for number in self._close(lease):
            self._finish(number, "trained")
        self._trained.read(lease.reread)
        self._trained.keep(lease.fresh, lease.trainer_version)
        self._check()

    def abort(self, lease: Lease) -> None:
        """The step did not happen; its groups are ready again, in their old places."""
        for number in self._close(lease):
            self._entries[number].state = "ready"
        self._check()

    def end_stale(self, trainer_version: int) -> int:
        """Ends ready groups too old for the next step; returns how many."""
        oldest = trainer_version - self.max_staleness
        stale = [e for e in self._entries.values() if e.state == "ready" and e.version < oldest]
        for entry in stale:
            self._to_regenerate.append(entry.ticket)
            self._finish(entry.ticket.number, "stale")
        self._check()
        return len(stale)

    def take_stale(self) -> tuple[Ticket, ...]:
        """Tickets that `lease` or `end_stale` ended, each once: issue their problems again."""
        tickets, self._to_regenerate = tuple(self._to_regenerate), []
        return tickets

    # ---- looking --------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Tickets issued, by end, and open (not ended, whatever their state)."""
        return {"issued": self._num_issued, **self._ends, "open": len(self._entries)}

    @property
    def num_rereads(self) -> int:
        """How many times groups were trained on again, over the run."""
        return self._trained.num_reads

    def state_of(self, ticket_number: int) -> TicketState | Literal["ended"]:
        entry = self._entries.get(ticket_number)
        if entry is None and not 0 <= ticket_number < self._num_issued:
            raise LedgerError(f"ticket {ticket_number} was never admitted.")
        return "ended" if entry is None else entry.state

    def numbers(self, *states: TicketState) -> tuple[int, ...]:
        """Tickets in any of `states`, in the order of issue."""
        return tuple(sorted(n for n, e in self._entries.items() if e.state in states))

    # ---- checkpoints ----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Plain values and NumPy arrays; `plain.to_arrays` makes it a file without pickles."""
        return {
            "format_version": FORMAT_VERSION,
            "max_staleness": self.max_staleness,
            "num_issued": self._num_issued,
            "num_completed": self._num_completed,
            "num_leases": self._num_leases,
            "ends": dict(self._ends),
            "trained": self._trained.snapshot(),
            "to_regenerate": [plain.ticket_to_plain(t) for t in self._to_regenerate],
            "tickets": [
                {
                    "ticket": plain.ticket_to_plain(entry.ticket),
                    "version": entry.version,
                    "completed": entry.completed,
                    "group": None if entry.group is None else plain.group_to_plain(entry.group),
                }
                for entry in self._entries.values()
            ],
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continues from a snapshot. What was leased is ready again: its step did not happen."""
        if snapshot["format_version"] != FORMAT_VERSION:
            raise LedgerError(
                f"a snapshot of format {snapshot['format_version']}, and this is "
                f"{FORMAT_VERSION}. Resume with the release that wrote it."
            )
        self.max_staleness = snapshot["max_staleness"]
        self._num_issued = snapshot["num_issued"]
        self._num_completed = snapshot["num_completed"]
        self._num_leases = snapshot["num_leases"]
        self._leases = {}
        self._ends = {end: snapshot["ends"].get(end, 0) for end in TICKET_ENDS}
        self._to_regenerate = [plain.ticket_from_plain(t) for t in snapshot["to_regenerate"]]
        self._trained.restore(snapshot.get("trained", {"num_reads": 0, "kept": []}))
        self._entries = {}
        for record in snapshot["tickets"]:
            group = record["group"] and plain.group_from_plain(record["group"])
            ticket = group.ticket if group else plain.ticket_from_plain(record["ticket"])
            self._entries[ticket.number] = _Entry(
                ticket,
                record["version"],
                "ready" if group else "open",
                group,
                record["completed"],
            )
        self._check()

    # ---- parts ----------------------------------------------------------------------------------

    def _entry(self, number: int, *states: TicketState) -> _Entry:
        found = self.state_of(number)
        if found not in states:
            raise LedgerError(
                f"ticket {number} is {found}, but must be {' or '.join(states)} for this. Each "
                "ticket goes its way once."
            )
        return self._entries[number]

    def _check_age(self, number: int, version: int, trainer_version: int) -> None:
        staleness = trainer_version - version
        if staleness < 0:
            raise LedgerError(
                f"ticket {number} under version {version}, but the trainer is at "
                f"{trainer_version}. A version is published before anything is written under it."
            )
        if staleness > self.max_staleness:
            raise StaleError(
                f"ticket {number} is {staleness} steps old, more than max_staleness="
                f"{self.max_staleness}. End it as stale and issue its problem again."
            )

    def _close(self, lease: Lease) -> Iterable[int]:
        # After a restore a number may be given a second time, so the number alone says too little.
        if self._leases.get(lease.number) is not lease:
            raise LedgerError(
                f"lease {lease.number} is not open: committed, aborted, or from before a restore."
            )
        del self._leases[lease.number]
        return [group.ticket.number for group in lease.fresh]

    def _finish(self, number: int, end: TicketEnd) -> None:
        del self._entries[number]
        self._ends[end] += 1

    def _check(self) -> None:
        ended = sum(self._ends.values())
        assert self._num_issued == ended + len(self._entries), (
            f"{self._num_issued} tickets issued, but {ended} ended and {len(self._entries)} open"
        )
