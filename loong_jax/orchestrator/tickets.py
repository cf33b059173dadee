"""Where tickets come from: an endless stream of problems, and problems to be issued again."""

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loong_jax.environments.problem import Problem
from loong_jax.orchestrator import curriculum as curricula
from loong_jax.orchestrator.changes import Afterwards
from loong_jax.orchestrator.curriculum import Curriculum, CurriculumState
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
        self._problem_at = problem_at
        self._max_issues = max_issues
        self._cursor = 0
        # problem, issues, and how many of them came to a verdict
        self._again: deque[tuple[Problem, int, int]] = deque()
        self._deferred: deque[tuple[Problem, int, int]] = deque()  # for a round of their own
        self._curriculum = curriculum or Curriculum()
        self._learnt = CurriculumState()

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
        context = self._curriculum.context
        limit = curricula.limit_of(context, self._learnt) if context.is_on else None
        ticket = Ticket(number=number, problem=problem, issue=issues, max_new_tokens=limit)
        return ticket, num_judged

    def _next_of_stream(self, number: int, step: int) -> Problem:
        """The next one that the curriculum does not set aside, or the last one looked at."""
        rates, passed_over = self._curriculum.pass_rates, 0
        while True:
            problem = self._problem_at(self._cursor)
            self._cursor += 1
            if not rates.is_on or passed_over == curricula.MAX_PASSED_OVER:
                break
            if curricula.is_posed(rates, self._learnt, problem, step=step, ticket=number):
                break
            passed_over += 1
        if passed_over:
            total = self._learnt.num_passed_over + passed_over
            self._learnt = dataclasses.replace(self._learnt, num_passed_over=total)
        return problem

    def written(self, ticket: Ticket, lengths: Sequence[int]) -> None:
        """The group of an open ticket has responses of these lengths, in tokens."""
        if (context := self._curriculum.context).is_on:
            self._learnt = curricula.after_lengths(
                context, self._learnt, lengths, limit=ticket.max_new_tokens
            )

    def judged(self, ticket: Ticket, outcomes: Sequence[str]) -> None:
        """The group of an open ticket has verdicts with these outcomes."""
        if (rates := self._curriculum.pass_rates).is_on:
            self._learnt = curricula.after_verdicts(
                rates, self._learnt, ticket.problem, outcomes, ticket=ticket.number
            )

    def metrics(self, *, step: int, ticket: int) -> dict[str, Any]:
        """Counters of the curriculum after `step` steps and `ticket` tickets."""
        return curricula.metrics(self._curriculum, self._learnt, step=step, ticket=ticket)

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
            "curriculum": curricula.to_json(self._learnt),
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        self._cursor = record["cursor"]
        self._again, self._deferred = (
            deque((Problem.from_json(p), issues, judged) for p, issues, judged in queue)
            for queue in (record["again"], record.get("deferred", ()))
        )
        if record["curriculum"] is not None:
            self._learnt = curricula.from_json(record["curriculum"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedStream:
    """Problems of several streams in a fixed rotation: cursor i draws from stream i mod n."""

    streams: tuple[Callable[[int], Problem], ...]

    def __call__(self, cursor: int) -> Problem:
        turn, which = divmod(cursor, len(self.streams))
        return self.streams[which](turn)
