"""Samples whose tools run: their calls and caches, until the answers are there.

A paused sample has no slot. Its cache, of everything but the last token, which was drawn and never
read, lies in host memory. When its turn of tools is over it waits for a prefill like any prompt,
but ahead of those, and only what is new is read behind its cache.

Each call has a thread of its own, so that nothing here is waited for. A thread cannot be ended from
outside: one that is still busy when its turn's time is over is left behind, and its place given to
another; where too many were left behind, further calls fail at once and say why.
"""

import dataclasses
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.problems.problem import Problem
from loong_jax.rollout.agentic.agent import Agent, Toolbox, ToolError
from loong_jax.rollout.attempts import Attempt, Job
from loong_jax.rollout.programs import CachedPrefixes
from loong_jax.rollout.records import Turn
from loong_jax.verifiers import tool_calls
from loong_jax.verifiers.tool_calls import ToolCall, ToolCalls

logger = logging.getLogger(__name__)

MAX_LEFT_BEHIND = 64  # threads
MAX_ERROR_CHARS = 500
COUNTS = (
    "slots_paused", "turns_of_tools", "calls", "calls_failed", "tokens_of_tools", "tokens_read_on",
)  # fmt: skip


class Answer(NamedTuple):
    """The result of a call; `failure` is one word or none, and the text says more."""

    text: str
    failure: str = ""  # "error", "timeout", "refused"


class CallPool:
    """At most `max_calls_at_once` calls at a time, besides those that were left behind."""

    def __init__(self, max_calls_at_once: int):
        self.num_left_behind = 0  # still busy with what nobody waits for
        self._num_free = max_calls_at_once
        self._waiting: deque[tuple[CallsOfTurn, int, Callable[..., str]]] = deque()
        self._lock = threading.Lock()

    def start(
        self,
        toolbox: Toolbox,
        calls: Sequence[ToolCall],
        *,
        problem: Problem,
        timeout_s: float,
        wake: Callable[[], None],
    ) -> "CallsOfTurn":
        """Begins the calls of one turn. `wake` is called, from any thread, when all have ended."""
        turn = CallsOfTurn(self, len(calls), timeout_s, wake)
        if self.num_left_behind >= MAX_LEFT_BEHIND:
            stuck = f"error: {self.num_left_behind} earlier calls never returned"
            turn.settle([Answer(stuck, "error")] * len(calls))
            return turn
        for index, call in enumerate(calls):
            carry_out = functools.partial(toolbox[call.name].call, call.arguments, problem=problem)
            self._waiting.append((turn, index, carry_out))
        self._begin(0)
        return turn

    def leave_behind(self, num_busy: int) -> None:
        """Nobody waits for these calls any more; others have their places."""
        with self._lock:
            self.num_left_behind += num_busy
        self._begin(num_busy)

    def _begin(self, num_free: int) -> None:
        """Begins calls that wait, now that so many more places are free."""
        with self._lock:
            self._num_free += num_free
            while self._num_free and self._waiting:
                self._num_free -= 1
                work = self._waiting.popleft()
                threading.Thread(target=self._run, args=work, name="tool-call", daemon=True).start()

    def _run(self, turn: "CallsOfTurn", index: int, call: Callable[..., str]) -> None:
        if turn.carry_out(index, call):
            self._begin(1)
        else:
            with self._lock:
                self.num_left_behind -= 1


class CallsOfTurn:
    """The calls of one turn. Asked by one thread, answered by those of the pool.

    It can be pickled: it then waits, at most until its time is over, and takes its answers along.
    """

    def __init__(self, pool: CallPool, num_calls: int, timeout_s: float, wake: Callable[[], None]):
        self.wake = wake
        self._pool = pool
        self._lock = threading.Lock()
        self._answers: list[Answer | None] = [None] * num_calls
        self._num_busy = 0
        self._is_over = num_calls == 0
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s

    def answers(self) -> list[Answer] | None:
        """In the order of the calls, or None while some are under way and time is left."""
        with self._lock:
            if not self._is_over:
                if None in self._answers and time.monotonic() < self._deadline_s:
                    return None
                self._end()
            late = Answer(f"error: no answer within {self._timeout_s:g} s", "timeout")
            return [answer or late for answer in self._answers]

    def settle(self, answers: list[Answer]) -> None:
        """Ends the turn with these answers."""
        with self._lock:
            self._answers = list(answers)
            self._end()
        self.wake()

    def cancel(self) -> None:
        """Nobody asks any more; calls not begun are dropped."""
        with self._lock:
            if not self._is_over:
                self._end()

    def carry_out(self, index: int, call: Callable[..., str]) -> bool:
        """Runs one call in this thread; False if the turn was over before it came back."""
        with self._lock:
            left_s = self._deadline_s - time.monotonic()
            if self._is_over or left_s <= 0:
                return True
            self._num_busy += 1
        try:
            answer = Answer(str(call(timeout_s=left_s)))
        except TimeoutError as error:
            answer = Answer(f"error: {str(error)[:MAX_ERROR_CHARS] or 'no time left'}", "timeout")
        except Exception as error:  # of the tool: data for the policy
            logger.debug("a tool failed", exc_info=True)
            name = "" if isinstance(error, ToolError) else f"{type(error).__name__}: "
            answer = Answer(f"error: {name}{error}"[:MAX_ERROR_CHARS], "error")
        with self._lock:
            if self._is_over:
                return False
            self._num_busy -= 1
            self._answers[index] = answer
            is_last = None not in self._answers
        if is_last:
            self.wake()
        return True

    def _end(self) -> None:
        self._is_over = True
        if self._num_busy:
            self._pool.leave_behind(self._num_busy)
            self._num_busy = 0

    def __getstate__(self) -> dict[str, Any]:
        while (answers := self.answers()) is None:
            time.sleep(0.001)
        return {"answers": answers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(CallPool(1), 0, 0.0, lambda: None)
        self._answers = state["answers"]


def read_turn_end(text: str, schemas: Mapping[str, Any]) -> ToolCalls | None:
    """The calls of a turn, of tools with these schemas, or why they cannot be carried out; None
    where it makes none.

    `text` is the turn without the token that ended it. Calls stand behind the thinking and end the
    turn; what is written while thinking calls nothing.
    """
    spoken = tool_calls.spoken(text)
    tags = None if spoken is None else tool_calls.tags_in(spoken)
    if spoken is None or tags is None:
        return None
    found = tool_calls.read(spoken, schemas)
    if not found.problem and spoken.rpartition(tags[1])[2].strip():
        return ToolCalls(problem="text follows the last call: calls end a turn")
    return found


@dataclasses.dataclass(eq=False)
class PausedSample:
    """One sample whose tools run."""

    attempt: Attempt
    calls: CallsOfTurn
    num_calls: int  # that the policy made
    others: tuple[Answer, ...]  # to calls that were not carried out, behind the others
    since_s: float


class PausedOnTools:
    """The paused samples of one replica. One thread at a time may use it."""

    def __init__(self, agent: Agent, tokenizer: Tokenizer, clock: Callable[[], float]):
        self.agent = agent
        self.paused: list[PausedSample] = []
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self._tokenizer, self._clock = tokenizer, clock
        self._pool = CallPool(agent.max_calls_at_once)
        self._answered = threading.Event()

    @property
    def is_full(self) -> bool:
        return len(self.paused) >= self.agent.max_paused

    def statistics(self) -> dict[str, int]:
        """Counters since the start; `num_paused` and `num_calls_left_behind` are as of now."""
        left_behind = self._pool.num_left_behind
        counts = self.counts | {"paused": len(self.paused), "calls_left_behind": left_behind}
        return {f"num_{name}": count for name, count in counts.items()}

    def begin(self, attempt: Attempt, extract: Callable[[], Any]) -> bool:
        """False where it calls no tools, or the turn that it has ended was its last. Otherwise its
        calls are begun, and it is to leave the slot whose cache `extract` gives.
        """
        limits, problem = self.agent.limits, attempt.job.ticket.problem
        tools = self.agent.tools_of(problem)
        if not tools or len(attempt.tool_turns) + 1 >= limits.max_turns:
            return False
        if attempt.length >= attempt.job.sampling.max_new_tokens:
            return False
        text = self._tokenizer.response_text(attempt.turn_tokens)
        end = read_turn_end(text, tools.schemas)
        if end is None:
            return False
        attempt.cache = jax.device_get(extract())
        self.counts["slots_paused"] += 1
        room = limits.max_calls - sum(turn.num_calls for turn in attempt.tool_turns)
        allowed = end.calls[: max(0, room)]
        others = [Answer(f"error: {end.problem}", "malformed")] if end.problem else []
        refusal = Answer(f"error: no more than {limits.max_calls} calls are carried out", "refused")
        others += [refusal] * (len(end.calls) - len(allowed))
        wake, limit_s = self._answered.set, limits.timeout_s
        calls = self._pool.start(tools, allowed, problem=problem, timeout_s=limit_s, wake=wake)
        if not allowed:
            wake()
        paused = PausedSample(attempt, calls, len(end.calls), tuple(others), self._clock())
        self.paused.append(paused)
        return True

    def returned(self) -> list[tuple[Attempt, bool]]:
        """Samples whose tools have answered, with the answers, and whether these fitted in."""
        self._answered.clear()
        found, still = [], []
        for paused in self.paused:
            answers = paused.calls.answers()
            if answers is None:
                still.append(paused)
            else:
                fits = self._answer(paused, [*answers, *paused.others])
                found.append((paused.attempt, fits))
        self.paused = still
        return found

    def wait(self, timeout_s: float) -> None:
        """Until some calls have ended, `timeout_s` at most."""
        self._answered.wait(timeout_s)

    def cancel(self, jobs: set[Job]) -> None:
        """Forgets the samples of these jobs; what their tools answer is dropped."""
        for paused in self.take(jobs):
            paused.calls.cancel()
            paused.attempt.cache = None

    def take(self, jobs: set[Job]) -> list[PausedSample]:
        """The paused samples of these jobs, which are not here any more."""
        taken = [paused for paused in self.paused if paused.attempt.job in jobs]
        self.paused = [paused for paused in self.paused if paused.attempt.job not in jobs]
        return taken

    def put(self, paused: PausedSample) -> None:
        """A sample that another replica has paused."""
        paused.calls.wake = self._answered.set
        self.paused.append(paused)
        self._answered.set()

    def known(self, attempts: Sequence[Attempt], num_rows: int) -> CachedPrefixes:
        """The caches of these samples in as many rows, to read on behind them."""
        caches = [getattr(a.cache, "device", a.cache).cache for a in attempts]  # paged or not
        caches += [caches[0]] * (num_rows - len(caches))
        start = np.zeros(num_rows, np.int32)
        for row, attempt in enumerate(attempts):
            start[row] = attempt.num_cached
            self.counts["tokens_read_on"] += len(attempt.sequence) - attempt.num_cached
        return CachedPrefixes(_stack(tuple(caches)), start)

    def _answer(self, paused: PausedSample, answers: list[Answer]) -> bool:
        attempt = paused.attempt
        tokens = self.agent.answer_tokens(
            self._tokenizer,
            attempt.job.ticket.problem,
            attempt.turn_tokens,
            [answer.text for answer in answers],
        )
        failures = tuple(answer.failure for answer in answers if answer.failure)
        self.counts["turns_of_tools"] += 1
        self.counts["calls"] += paused.num_calls
        self.counts["calls_failed"] += len(failures)
        if attempt.length + len(tokens) >= attempt.job.sampling.max_new_tokens:
            attempt.cache = None
            return False
        self.counts["tokens_of_tools"] += len(tokens)
        turn = Turn(
            role="tool",
            first=attempt.length,
            num_tokens=len(tokens),
            num_calls=paused.num_calls,
            failures=failures,
            wall_s=self._clock() - paused.since_s,
        )
        attempt.extend_by_tools(tokens, turn)
        return True


@jax.jit
def _stack(caches):
    return jax.tree.map(lambda *rows: jax.numpy.concatenate(rows, axis=2), *caches)
