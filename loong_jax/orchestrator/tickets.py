"""Tickets: those that are open, and where they come from.

    queued -> decoding -> verifying -> judged -> scoring -> ready -> leased -> (trained)

`queued` tickets carry the policy version that they must be written under. The source is an endless
stream of problems, and problems to be issued again.
"""

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from loong_jax.orchestrator.changes import Afterwards
from loong_jax.orchestrator.curriculum import MAX_PASSED_OVER, Course, Curriculum
from loong_jax.problems.problem import Problem
from loong_jax.rollout.records import Group, Ticket, TicketEnd

Phase = Literal["queued", "decoding", "verifying", "judged", "scoring", "ready", "leased"]
UNFINISHED: tuple[Phase, ...] = ("queued", "decoding", "verifying", "scoring")
WITHOUT_LOGPROBS: tuple[Phase, ...] = ("queued", "decoding", "verifying", "judged", "scoring")
UNLEASED: tuple[Phase, ...] = (*WITHOUT_LOGPROBS, "ready")


@dataclasses.dataclass(kw_only=True)
class Entry:
    """An open ticket, and its group once that is written."""

    ticket: Ticket
    version: int  # policy version the group is, or must be, written under
    phase: Phase = "queued"
    replica: int | None = None  # that decodes it
    group: Group | None = None
    num_judged: int = 0  # earlier issues of its problem that came to a verdict

    @property
    def number(self) -> int:
        return self.ticket.number


class OpenTickets(Mapping[int, Entry]):
    """Entries by ticket number in the order of issue, with indices; change them here alone."""

    def __init__(self, entries: Iterable[Entry] = ()):
        self._entries: dict[int, Entry] = {}
        self._by_phase: dict[Phase, set[int]] = {phase: set() for phase in (*UNLEASED, "leased")}
        self._by_version: dict[Phase, Counter[int]] = {phase: Counter() for phase in self._by_phase}
        self._by_replica: dict[int, set[int]] = {}
        for entry in entries:
            self.add(entry)

    def __getitem__(self, number: int) -> Entry:
        return self._entries[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        self._entries[entry.number] = entry
        self._by_phase[entry.phase].add(entry.number)
        self._by_version[entry.phase][entry.version] += 1
        if entry.replica is not None:
            self._by_replica.setdefault(entry.replica, set()).add(entry.number)

    def move(self, number: int, phase: Phase, replica: int | None = None) -> Entry:
        entry = self._entries[number]
        self._forget(entry)
        entry.phase, entry.replica = phase, replica
        self.add(entry)
        return entry

    def remove(self, number: int) -> Entry:
        entry = self._entries.pop(number)
        self._forget(entry)
        return entry

    def _forget(self, entry: Entry) -> None:
        self._by_phase[entry.phase].remove(entry.number)
        counts = self._by_version[entry.phase]
        counts[entry.version] -= 1
        if not counts[entry.version]:
            del counts[entry.version]
        if entry.replica is not None:
            self._by_replica[entry.replica].remove(entry.number)

    def in_phase(self, *phases: Phase) -> list[Entry]:
        """The tickets in any of `phases`, in the order of issue."""
        numbers = [number for phase in phases for number in self._by_phase[phase]]
        return [self._entries[number] for number in sorted(numbers)]

    def count(self, *phases: Phase) -> int:
        return sum(len(self._by_phase[phase]) for phase in phases)

    def versions(self, *phases: Phase) -> Counter[int]:
        """The number of tickets in any of `phases` by version; versions without any are absent."""
        counts: Counter[int] = Counter()
        for phase in phases:
            counts.update(self._by_version[phase])
        return counts

    def decoding_on(self, replica: int) -> list[int]:
        """Numbers of the tickets that `replica` decodes, in the order of issue."""
        return sorted(self._by_replica.get(replica, ()))

    def num_decoding(self, *replicas: int) -> int:
        """The number of tickets that `replicas` decode together."""
        return sum(len(self._by_replica.get(replica, ())) for replica in replicas)


REISSUED_ENDS: tuple[TicketEnd, ...] = ("filtered", "stale", "ungradable", "failed")


class TicketSource:
    """Opens tickets in order. `problem_at(cursor)` must be a pure function of the cursor.

    A problem whose ticket did not train is issued again, until it has been issued `max_issues`
    times; stale tickets do not count, since their problem was never judged by a batch. The
    re-issued go to the back of a queue that is served before the stream goes on. A curriculum may
    pass problems of the stream over and bound the lengths of answers; `course` is told how the
    groups of open tickets did.
    """

    def __init__(
        self,
        problem_at: Callable[[int], Problem],
        *,
        max_issues: int = 1,
        curriculum: Curriculum | None = None,
    ):
        self._problem_at = problem_at
        self._max_issues = max_issues
        self._cursor = 0
        # problem, issues, and how many of them came to a verdict
        self._again: deque[tuple[Problem, int, int]] = deque()
        self._deferred: deque[tuple[Problem, int, int]] = deque()  # for a round of their own
        curriculum = curriculum or Curriculum()
        self.course = Course(curriculum) if curriculum.is_on else None

    @property
    def num_deferred(self) -> int:
        """Problems that wait for a round of their own."""
        return len(self._deferred)

    def open(self, number: int, *, deferred: bool = False, step: int = 0) -> tuple[Ticket, int]:
        """Ticket `number` of the run, issued after `step` steps, and how many earlier issues of its
        problem came to a verdict.
        """
        if deferred:
            problem, issues, num_judged = self._deferred.popleft()
        elif self._again:
            problem, issues, num_judged = self._again.popleft()
        else:
            problem, issues, num_judged = self._next_of_stream(number, step), 0, 0
        limit = None if self.course is None else self.course.limit
        ticket = Ticket(number=number, problem=problem, issue=issues, max_new_tokens=limit)
        return ticket, num_judged

    def _next_of_stream(self, number: int, step: int) -> Problem:
        """The next one that the curriculum does not set aside, or the last one looked at."""
        for passed_over in range(MAX_PASSED_OVER + 1):
            problem = self._problem_at(self._cursor)
            self._cursor += 1
            if self.course is None:
                return problem
            is_posed = self.course.is_posed(problem, step=step, ticket=number)
            if is_posed or passed_over == MAX_PASSED_OVER:
                self.course.num_passed_over += passed_over
                return problem
        raise AssertionError("the last one is posed")

    def end(
        self, ticket: Ticket, num_judged: int, how: TicketEnd, afterwards: Afterwards = "again"
    ) -> None:
        """The problem of a ticket that ended joins the queue again where its budget allows.

        `afterwards` may put the problem back for a round of deferred ones, or give it up.
        """
        if how not in REISSUED_ENDS or afterwards == "drop":
            return
        num_judged += how != "stale"
        if num_judged < self._max_issues:
            queue = self._deferred if afterwards == "defer" else self._again
            queue.append((ticket.problem, ticket.issue + 1, num_judged))

    def snapshot(self) -> dict[str, Any]:
        """JSON values from which `restore` continues the same stream."""
        return {
            "cursor": self._cursor,
            "again": [[p.to_json(), *issues] for p, *issues in self._again],
            "deferred": [[p.to_json(), *issues] for p, *issues in self._deferred],
            "curriculum": None if self.course is None else self.course.to_json(),
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        self._cursor = record["cursor"]
        self._again, self._deferred = (
            deque((Problem.from_json(p), issues, judged) for p, issues, judged in queue)
            for queue in (record["again"], record.get("deferred", ()))
        )
        if self.course is not None and record["curriculum"] is not None:
            self.course.restore(record["curriculum"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedStream:
    """Problems of several streams in a fixed rotation: cursor i draws from stream i mod n."""

    streams: tuple[Callable[[int], Problem], ...]

    def __call__(self, cursor: int) -> Problem:
        turn, which = divmod(cursor, len(self.streams))
        return self.streams[which](turn)
