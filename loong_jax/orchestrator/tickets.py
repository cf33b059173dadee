"""Where tickets come from: an endless stream of problems, and problems to be issued again."""

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loong_jax.environments.problem import Problem
from loong_jax.orchestrator import curriculum as lessons_of
from loong_jax.orchestrator.actions import Afterwards
from loong_jax.orchestrator.curriculum import Curriculum, Lessons
from loong_jax.rollout.records import Ticket, TicketEnd

REISSUED_ENDS: tuple[TicketEnd, ...] = ("filtered", "stale", "ungradable", "failed")


class TicketSource:
    """Opens tickets in order. `problem_at(cursor)` must be a pure function of the cursor.

    A problem whose ticket did not train is issued again, until it has been issued `max_issues`
    times; stale tickets do not count, since their problem was never judged by a batch. The
    re-issued go to the back of a queue that is served before the stream goes on. A curriculum may
    pass problems of the stream over and bound the lengths of answers; `judged` and `written` tell
    it how the groups of open tickets did.
    """

    def __init__(
        self,
        problem_at: Callable[[int], Problem],
        *,
        max_issues: int = 1,
        curriculum: Curriculum | None = None,
    ):
        if max_issues < 1:
            raise ValueError(
                f"max_issues={max_issues} must be at least 1: a problem is issued once."
            )
        self._problem_at = problem_at
        self._max_issues = max_issues
        self._cursor = 0
        self._again: deque[tuple[Problem, int, int]] = deque()  # problem, issues, judged issues
        self._deferred: deque[tuple[Problem, int, int]] = deque()  # for a round of their own
        self._open: dict[int, tuple[Ticket, int]] = {}
        self._curriculum = curriculum or Curriculum()
        self._lessons = Lessons()

    def open(self, number: int, *, deferred: bool = False, step: int = 0) -> Ticket:
        """Ticket `number` of the run, issued after `step` steps."""
        if deferred:
            problem, issues, judged = self._deferred.popleft()
        elif self._again:
            problem, issues, judged = self._again.popleft()
        else:
            problem, issues, judged = self._next_of_stream(number, step), 0, 0
        context = self._curriculum.context
        limit = lessons_of.limit_of(context, self._lessons) if context.is_on else None
        ticket = Ticket(number=number, problem=problem, issue=issues, max_new_tokens=limit)
        self._open[number] = (ticket, judged)
        return ticket

    def _next_of_stream(self, number: int, step: int) -> Problem:
        """The next one that the curriculum does not set aside, or the last one looked at."""
        rates, passed_over = self._curriculum.pass_rates, 0
        while True:
            problem = self._problem_at(self._cursor)
            self._cursor += 1
            if not rates.is_on or passed_over == lessons_of.MAX_PASSED_OVER:
                break
            if lessons_of.is_posed(rates, self._lessons, problem, step=step, ticket=number):
                break
            passed_over += 1
        if passed_over:
            total = self._lessons.num_passed_over + passed_over
            self._lessons = dataclasses.replace(self._lessons, num_passed_over=total)
        return problem

    def written(self, number: int, lengths: Sequence[int]) -> None:
        """The group of an open ticket has responses of these lengths, in tokens."""
        if (context := self._curriculum.context).is_on:
            limit = self.ticket(number).max_new_tokens
            self._lessons = lessons_of.after_lengths(context, self._lessons, lengths, limit=limit)

    def judged(self, number: int, outcomes: Sequence[str]) -> None:
        """The group of an open ticket has verdicts with these outcomes."""
        if (rates := self._curriculum.pass_rates).is_on:
            problem = self.ticket(number).problem
            self._lessons = lessons_of.after_verdicts(
                rates, self._lessons, problem, outcomes, ticket=number
            )

    def metrics(self, *, step: int, ticket: int) -> dict[str, Any]:
        """Counters of the curriculum after `step` steps and `ticket` tickets."""
        return lessons_of.metrics(self._curriculum, self._lessons, step=step, ticket=ticket)

    def ticket(self, number: int) -> Ticket:
        return self._open[number][0]

    def end(self, number: int, how: TicketEnd, afterwards: Afterwards = "again") -> None:
        """Closes a ticket; its problem joins the queue again where its budget allows.

        `afterwards` may put the problem back for a round of deferred ones, or give it up.
        """
        ticket, judged = self._open.pop(number)
        if how not in REISSUED_ENDS or afterwards == "drop":
            return
        judged += how != "stale"
        if judged < self._max_issues:
            queue = self._deferred if afterwards == "defer" else self._again
            queue.append((ticket.problem, ticket.issue + 1, judged))

    def snapshot(self) -> dict[str, Any]:
        """JSON values from which `restore` continues the same stream."""
        return {
            "cursor": self._cursor,
            "again": [[p.to_json(), issues, judged] for p, issues, judged in self._again],
            "deferred": [[p.to_json(), issues, judged] for p, issues, judged in self._deferred],
            "open": [
                [
                    ticket.number,
                    ticket.problem.to_json(),
                    ticket.issue,
                    judged,
                    ticket.max_new_tokens,
                ]
                for ticket, judged in self._open.values()
            ],
            "lessons": lessons_of.to_json(self._lessons),
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        self._cursor = record["cursor"]
        self._again = deque(
            (Problem.from_json(problem), issues, judged)
            for problem, issues, judged in record["again"]
        )
        self._deferred = deque(
            (Problem.from_json(problem), issues, judged)
            for problem, issues, judged in record.get("deferred", ())
        )
        self._open = {
            number: (
                Ticket(
                    number=number,
                    problem=Problem.from_json(problem),
                    issue=issue,
                    max_new_tokens=limits[0] if limits else None,
                ),
                judged,
            )
            for number, problem, issue, judged, *limits in record["open"]
        }
        if "lessons" in record:
            self._lessons = lessons_of.from_json(record["lessons"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedStream:
    """Problems of several streams in a fixed rotation: cursor i draws from stream i mod n."""

    streams: tuple[Callable[[int], Problem], ...]

    def __call__(self, cursor: int) -> Problem:
        turn, which = divmod(cursor, len(self.streams))
        return self.streams[which](turn)
