"""The ledger of a run: its open tickets with their groups, its replicas, its trainer, its counters.

Each open ticket is one entry in one phase (see `tickets`) and ends exactly once, in one of
`records.TICKET_ENDS`; an ended ticket leaves and is only counted, so issued = ends + open after
every change. Staleness (trainer's version less
the group's) is bounded at admission and again where a step leases a group, so time spent waiting
counts. A step may lease groups beside that were trained before (`reuse`); their tickets have ended.

`enter` is the only way to change it, in one thread; policies read it. Token arrays are kept by
reference.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from loong_jax.errors import CheckpointError, ConfigError, LoongError
from loong_jax.orchestrator import changes
from loong_jax.orchestrator.changes import Afterwards, Change
from loong_jax.orchestrator.tickets import (
    UNLEASED,
    WITHOUT_LOGPROBS,
    Entry,
    OpenTickets,
    Phase,
    TicketSource,
)
from loong_jax.rollout import records
from loong_jax.rollout.records import TICKET_ENDS, Group, TicketEnd
from loong_jax.rollout.reuse import GroupReuse, TrainedGroups

FORMAT_VERSION = 2

TrainerTask = Literal["idle", "scoring", "training", "publishing"]
_REWOUND: dict[Phase, Phase] = {"decoding": "queued", "scoring": "judged", "leased": "ready"}


class LedgerError(LoongError):
    """A change that the ledger does not know: a ticket unknown, ended, or in another phase."""


class StaleError(LoongError):
    """A ticket or group too old to be trained on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaState:
    version: int | None = None  # None: never assigned
    draining: bool = False  # takes no new ticket, so that it can change version
    elastic: bool = False  # its devices belong to the trainer and can be lent to generation
    generating: bool = True  # False: the trainer has its devices; what it decodes is paused
    quarantined: bool = False  # it failed and is given no work until it is mended


class ReplicaSets(NamedTuple):
    """Numbers of the replicas that are not in quarantine, by what they do."""

    working: tuple[int, ...]  # all of them
    generating: tuple[int, ...]
    lent: tuple[int, ...]  # generating, on the trainer's devices
    taken: tuple[int, ...]  # not generating: the trainer has their devices
    hosts: Mapping[int | None, Sequence[int]]  # version -> generating ones


class Balance(NamedTuple):
    """The last rebalancing: another newest version or number of replicas calls for the next."""

    newest_version: int = -1
    num_generating: int = 0  # replicas, those in quarantine apart
    at_s: float = 0.0


@dataclasses.dataclass(kw_only=True, eq=False)
class Ledger:
    """See the module. `step` counts completed updates, so it is the trainer's version."""

    source: TicketSource  # of problems, for new tickets
    replicas: list[ReplicaState]
    groups_per_replica: int = 1
    max_staleness: int = 0  # S, in steps
    mixes_versions: bool = False  # a response may go on under later versions, as partial ones do
    reuse: GroupReuse = GroupReuse()
    seed: int = 0  # draws what is read again

    total_steps: int
    step: int = 0
    newest_version: int = 0  # newest published
    trainer: TrainerTask = "idle"
    tickets: OpenTickets = dataclasses.field(default_factory=OpenTickets)
    num_issued: int = 0
    ends: dict[TicketEnd, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(TICKET_ENDS, 0)
    )
    lease: tuple[Group, ...] = ()  # of the step under way
    reread: tuple[Group, ...] = ()  # that join them, trained by an earlier step
    issue_limit: int = 0  # deterministic mode: tickets below this number may exist
    balance: Balance = Balance()
    cache_pressure: float = 0.0  # share of its cache that the fullest replica uses
    lend_threshold: float | None = None  # of the elastic gate; None: still the configured one
    gate_step: int = -1  # step the elastic gate decided for last
    num_fruitless: int = 0  # tickets that ended without training since the last step
    num_failed: int = 0  # those of them that were ungradable or failed
    num_solved: int = 0  # those of them with every rollout right

    def __post_init__(self):
        self.trained = TrainedGroups(self.reuse, seed=self.seed, max_staleness=self.max_staleness)
        self._sets: ReplicaSets | None = None

    # ---- looking --------------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        return self.step >= self.total_steps and self.trainer == "idle"

    @property
    def sets(self) -> ReplicaSets:
        """Remembered while no replica changes, since replicas change far less than tickets."""
        if self._sets is None:
            working = {n: r for n, r in enumerate(self.replicas) if not r.quarantined}
            hosts: dict[int | None, list[int]] = {}
            for number, replica in working.items():
                if replica.generating:
                    hosts.setdefault(replica.version, []).append(number)
            self._sets = ReplicaSets(
                working=tuple(working),
                generating=tuple(n for n, r in working.items() if r.generating),
                lent=tuple(n for n, r in working.items() if r.generating and r.elastic),
                taken=tuple(n for n, r in working.items() if not r.generating),
                hosts=hosts,
            )
        return self._sets

    def counts(self) -> dict[str, int]:
        """Tickets issued and ended, by end; raises where they do not add up with the open ones."""
        ended = sum(self.ends.values())
        assert self.num_issued == ended + len(self.tickets), (
            f"{self.num_issued} tickets issued, but {ended} ended and {len(self.tickets)} open"
        )
        return {"issued": self.num_issued, **self.ends}

    def group(self, number: int) -> Group:
        group = self.tickets[number].group
        assert group is not None
        return group

    def live_versions(self) -> set[int]:
        """Versions that are hosted, or those of open tickets without log-probabilities."""
        hosted = {replica.version for replica in self.replicas if replica.version is not None}
        return hosted | {self.newest_version, *self.tickets.versions(*WITHOUT_LOGPROBS)}

    # ---- changing -------------------------------------------------------------------------------

    def enter(self, change: Change, groups: Sequence[Group] = ()) -> None:
        """The ledger after one change; `groups` are those of a `Generated`, `Verified` or `Scored`
        change, in its order. Replaying the same changes gives the same ledger.

        Raises LedgerError or StaleError for what may not happen now.
        """
        match change:
            case changes.Issue(count, version, deferred):
                for _ in range(count):
                    self._check_age(self.num_issued, version)
                    ticket, num_judged = self.source.open(
                        self.num_issued, deferred=deferred, step=self.step
                    )
                    self.tickets.add(Entry(ticket=ticket, version=version, num_judged=num_judged))
                    self.num_issued += 1
            case changes.Dispatch(replica, numbers, _):
                self._move(numbers, ("queued",), "decoding", replica)
            case changes.Assign(replica, version):
                self.set_replica(replica, version=version, draining=False)
            case changes.Drain(replica):
                self.set_replica(replica, draining=True)
            case changes.Migrate(_, target, numbers):
                self._move(numbers, ("decoding",), "decoding", target)
            case changes.Swap(replica, version, _):
                self.set_replica(replica, version=version)
            case changes.Lend(replicas) | changes.Reclaim(replicas):
                for replica in replicas:
                    self.set_replica(replica, generating=isinstance(change, changes.Lend))
            case changes.Score(numbers, _):
                self._move(numbers, ("judged",), "scoring")
                self.trainer = "scoring"
            case changes.Train(numbers):
                for number in numbers:
                    self._check_age(number, self._entry(number, ("ready",)).version)
                self._move(numbers, ("ready",), "leased")
                self.lease = tuple(self.group(number) for number in numbers)
                if self.reuse.share:
                    self.reread = self.trained.pick(len(numbers), self.step)
                self.trainer = "training"
            case changes.EndStale(numbers, afterwards):
                self._end(numbers, "stale", afterwards)
            case changes.SetIssueLimit(limit):
                self.issue_limit = limit
            case changes.Balanced(at_s):
                self.balance = Balance(self.newest_version, len(self.sets.generating), at_s)
            case changes.SetGate(threshold):
                self.lend_threshold, self.gate_step = threshold, self.step
            case _:
                self._enter_event(change, groups)
        self.counts()

    def _enter_event(self, event: changes.Event, groups: Sequence[Group]) -> None:
        match event:
            case changes.Generated(number, pressure, _):
                (group,) = groups
                self._check_versions(group)
                (entry,) = self._move((number,), ("queued", "decoding"), "verifying")
                entry.group, self.cache_pressure = group, pressure
                if self.source.course is not None:
                    lengths = [len(r.tokens) for r in group.rollouts]
                    self.source.course.written(lengths, limit=entry.ticket.max_new_tokens)
            case changes.Verified(number, disposition, is_solved, verdicts):
                if self.source.course is not None:
                    outcomes = [verdict["outcome"] for verdict in verdicts] or [
                        r.verdict.outcome for g in groups for r in g.rollouts if r.verdict
                    ]
                    problem = self._entry(number, ("verifying",)).ticket.problem
                    self.source.course.judged(problem, outcomes, ticket=number)
                if disposition == "keep":
                    (entry,) = self._move((number,), ("verifying",), "judged")
                    (entry.group,) = groups
                    return
                self._end((number,), disposition)
                self.num_fruitless += 1
                self.num_failed += disposition in ("ungradable", "failed")
                self.num_solved += is_solved
            case changes.Scored(numbers):
                entries = self._move(numbers, ("scoring",), "ready")
                for entry, group in zip(entries, groups, strict=True):
                    entry.group = group
                self.trainer = "idle"
            case changes.Trained(step, numbers, limit):
                if self.reuse.share:
                    self.trained.after_step(self.lease, self.reread, self.step)
                self.lease = self.reread = ()
                self._end(numbers, "trained")
                self.step, self.issue_limit, self.trainer = step, limit, "publishing"
                self.num_fruitless = self.num_failed = self.num_solved = 0
            case changes.Published(version, total_steps, _):
                self.newest_version, self.total_steps = version, total_steps
                self.trainer = "idle"
            case changes.SaveBegun():
                pass
            case changes.RunEnds(total_steps):
                self.total_steps = total_steps
            case changes.Ended(numbers, how):
                self._end(numbers, how)
            case changes.ReplicaLost(replica):
                self._move(self.tickets.decoding_on(replica), ("decoding",), "queued")
                self.set_replica(replica, version=None, draining=False, quarantined=True)
            case changes.ReplicaBack(replica):
                self.set_replica(replica, quarantined=False)
            case changes.Reopened(lost):
                self._rewind(lost)

    def set_replica(self, replica: int, **columns) -> None:
        self.replicas[replica] = dataclasses.replace(self.replicas[replica], **columns)
        self._sets = None

    def _rewind(self, lost: Sequence[int]) -> None:
        """A new process goes on: nothing is in anyone's hands, a step or scoring pass under way did
        not happen, and what was trained is still to be published.
        """
        self.lease = self.reread = ()
        for entry in list(self.tickets.values()):
            self.tickets.move(entry.number, _REWOUND.get(entry.phase, entry.phase))
        self._end(lost, "stale")
        for number in range(len(self.replicas)):
            self.set_replica(number, quarantined=False)
        self.trainer = "publishing" if self.newest_version < self.step else "idle"
        self.balance = Balance()

    def _move(
        self,
        numbers: Sequence[int],
        before: tuple[Phase, ...],
        phase: Phase,
        replica: int | None = None,
    ) -> list[Entry]:
        if len(set(numbers)) != len(numbers):
            raise LedgerError(f"tickets {tuple(numbers)} to be {phase}. Name each once.")
        for number in numbers:
            self._entry(number, before)
        return [self.tickets.move(number, phase, replica) for number in numbers]

    def _end(
        self, numbers: Iterable[int], how: TicketEnd, afterwards: Afterwards = "again"
    ) -> None:
        """The tickets leave and are counted; their problems may be issued again."""
        for number in numbers:
            self._entry(number, ("leased",) if how == "trained" else UNLEASED)
            entry = self.tickets.remove(number)
            self.ends[how] += 1
            self.source.end(entry.ticket, entry.num_judged, how, afterwards)

    def _entry(self, number: int, phases: tuple[Phase, ...]) -> Entry:
        entry = self.tickets.get(number)
        if entry is None or entry.phase not in phases:
            known = "ended" if 0 <= number < self.num_issued else "never issued"
            raise LedgerError(
                f"ticket {number} is {entry.phase if entry else known}, but must be "
                f"{' or '.join(phases)} for this. Each ticket goes its way once."
            )
        return entry

    def _check_age(self, number: int, version: int) -> None:
        staleness = self.step - version
        if staleness < 0:
            raise LedgerError(
                f"ticket {number} under version {version}, but the trainer is at {self.step}. A "
                "version is published before anything is written under it."
            )
        if staleness > self.max_staleness:
            raise StaleError(
                f"ticket {number} is {staleness} steps old, more than max_staleness="
                f"{self.max_staleness}. End it as stale and issue its problem again."
            )

    def _check_versions(self, group: Group) -> None:
        number = group.ticket.number
        admitted = self._entry(number, ("queued", "decoding")).version
        strangers = {v for r in group.rollouts for _, v in r.versions} - {admitted}
        if self.mixes_versions:
            strangers = {v for v in strangers if v < admitted}
        if group.version != admitted or strangers:
            raise LedgerError(
                f"ticket {number} was admitted under version {admitted}, but its group says "
                f"{group.version} and its tokens {sorted(strangers) or group.version}. A group "
                "has one version, save under a policy that mixes_versions."
            )

    # ---- checkpoints ----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """All that decides how the run goes on, taken between two changes: JSON and arrays."""
        return {
            "format_version": FORMAT_VERSION,
            "run": {name: getattr(self, name) for name in _SCALARS},
            "ends": dict(self.ends),
            "balance": list(self.balance),
            "replicas": [dataclasses.asdict(replica) for replica in self.replicas],
            "tickets": [_entry_to_plain(entry) for entry in self.tickets.values()],
            "source": self.source.snapshot(),
            "trained": self.trained.snapshot(),
            "versions": sorted(self.live_versions()),
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        """The ledger as it was; a `Reopened` change makes it that of a new process."""
        if "format_version" not in record:
            record = _from_format_1(record)
        elif record["format_version"] != FORMAT_VERSION:
            raise CheckpointError(
                f"the checkpoint's tickets have format_version={record['format_version']!r}, not "
                f"{FORMAT_VERSION}. Go on with the version of loong_jax that wrote it."
            )
        for name in _SCALARS:
            setattr(self, name, record["run"][name])
        self.ends = {end: record["ends"].get(end, 0) for end in TICKET_ENDS}
        self.balance = Balance(*record["balance"])
        self.replicas = [ReplicaState(**replica) for replica in record["replicas"]]
        self._sets, self.lease, self.reread = None, (), ()
        self.tickets = OpenTickets(map(_entry_from_plain, record["tickets"]))
        self.source.restore(record["source"])
        self.trained.restore(record["trained"])


_SCALARS = (
    "total_steps", "step", "newest_version", "trainer", "num_issued", "issue_limit",
    "cache_pressure", "lend_threshold", "gate_step", "num_fruitless", "num_failed", "num_solved",
)  # fmt: skip


def _entry_to_plain(entry: Entry) -> dict[str, Any]:
    return {
        "ticket": records.ticket_to_plain(entry.ticket),
        "version": entry.version,
        "phase": entry.phase,
        "replica": entry.replica,
        "group": None if entry.group is None else records.group_to_plain(entry.group),
        "num_judged": entry.num_judged,
    }


def _entry_from_plain(record: Mapping[str, Any]) -> Entry:
    group = record["group"] and records.group_from_plain(record["group"])
    ticket = group.ticket if group else records.ticket_from_plain(record["ticket"])
    return Entry(**{**record, "ticket": ticket, "group": group})


def _from_format_1(old: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot of a run in which state, ticket source, buffer and groups were kept apart."""
    state, source, buffer = old["state"], old["tickets"], old["buffer"]
    groups = {group["ticket"]["number"]: group for group in old.get("groups", ())}
    groups |= {t["ticket"]["number"]: t["group"] for t in buffer["tickets"] if t["group"]}
    places = {place["number"]: place for place in state["tickets"].values()}
    tickets = []
    for number, problem, issue, num_judged, *limits in sorted(source["open"], key=lambda t: t[0]):
        ticket = {"number": number, "problem": problem, "issue": issue}
        ticket["max_new_tokens"] = limits[0] if limits else None
        place = {name: places[number][name] for name in ("version", "phase", "replica")}
        group = groups.get(number)
        tickets.append({"ticket": ticket, "group": group, "num_judged": num_judged} | place)
    missing = {"cache_pressure": 0.0, "lend_threshold": None, "gate_step": -1}
    return {
        "run": missing | dict.fromkeys(("num_fruitless", "num_failed", "num_solved"), 0) | state,
        "ends": state["ends"],
        "balance": state.get("balance", ()),
        "replicas": state["replicas"],
        "tickets": tickets,
        "source": {**source, "curriculum": source.get("lessons")},
        "trained": buffer.get("trained", {"num_reads": 0, "kept": []}),
    }


class ReadOnly(Ledger):
    """The ledger as a policy sees it: the same, but its fields cannot be set."""

    def __init__(self, ledger: Ledger):
        object.__setattr__(self, "__dict__", ledger.__dict__)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ConfigError(
            f"the policy set view.{name}={value!r:.40}. The view is the loop's: return actions."
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the view has no {name!r}; docs/how-to/add_scheduler.md lists what it has"
        )
