"""Calls under way, each in a thread of its own making, so that nothing here is waited for.

A thread cannot be ended from outside. One that is still busy when its turn's time is over is left
behind and replaced; where too many were left behind, further calls fail at once and say why.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from loong_jax.problems.problem import Problem
from loong_jax.rollout.agentic.agent import Toolbox, ToolError
from loong_jax.verifiers.tool_calls import ToolCall

logger = logging.getLogger(__name__)

MAX_LEFT_BEHIND = 64  # threads
IDLE_S = 5.0  # after which a thread without work ends
MAX_ERROR_CHARS = 500


class Answer(NamedTuple):
    """The result of a call; `failure` is one word or none, and the text says more."""

    text: str
    failure: str = ""  # "error", "timeout", "refused"


class _Work(NamedTuple):
    turn: "CallsOfTurn"
    index: int
    carry_out: Callable[[float], str]  # takes the seconds that are left


class CallPool:
    """At most `max_calls_at_once` calls at a time, besides those that were left behind."""

    def __init__(self, max_calls_at_once: int):
        self.max_calls_at_once = max_calls_at_once
        self._waiting: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = 0  # those left behind not counted
        self._num_idle = 0
        self.num_left_behind = 0  # still busy with what nobody waits for

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
            stuck = f"{self.num_left_behind} earlier calls never returned"
            turn.settle([Answer(f"error: {stuck}", "error")] * len(calls))
            return turn
        for index, call in enumerate(calls):
            tool = toolbox[call.name]

            def carry_out(left_s: float, tool=tool, call=call) -> str:
                return tool.call(call.arguments, problem=problem, timeout_s=left_s)

            self._waiting.put(_Work(turn, index, carry_out))
            self._add_thread()
        return turn

    def _add_thread(self) -> None:
        with self._lock:
            is_full = self._num_threads >= self.max_calls_at_once
            if is_full or self._num_idle >= self._waiting.qsize():
                return
            self._num_threads += 1
        threading.Thread(target=self._run, name="tool-call", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._num_idle += 1
            try:
                work = self._waiting.get(timeout=IDLE_S)
            except queue.Empty:
                work = None
            with self._lock:
                self._num_idle -= 1
                if work is None and self._waiting.empty():
                    self._num_threads -= 1
                    return
            if work is not None and not work.turn.carry_out(work.index, work.carry_out):
                with self._lock:
                    self.num_left_behind -= 1
                return  # another thread took this one's place

    def replace(self, num_busy: int) -> None:
        """Threads that nobody waits for any more are counted apart from now on."""
        with self._lock:
            self._num_threads -= num_busy
            self.num_left_behind += num_busy
        for _ in range(num_busy):
            self._add_thread()


class CallsOfTurn:
    """The calls of one turn. Asked by one thread, answered by those of the pool.

    It can be pickled: it then waits, at most until its time is over, and takes its answers along.
    """

    def __init__(self, pool: CallPool, num_calls: int, timeout_s: float, wake: Callable[[], None]):
        self._pool: CallPool | None = pool
        self._lock = threading.Lock()
        self._answers: list[Answer | None] = [None] * num_calls
        self._busy: set[int] = set()
        self._is_over = num_calls == 0
        self._all_ended = threading.Event()
        self._wake = wake
        self.started_s = time.monotonic()
        self.deadline_s = self.started_s + timeout_s

    def answers(self) -> list[Answer] | None:
        """In the order of the calls, or None while some are under way and time is left."""
        with self._lock:
            if not self._is_over:
                if None in self._answers and time.monotonic() < self.deadline_s:
                    return None
                self._end()
            return [answer or self._late() for answer in self._answers]

    def settle(self, answers: list[Answer]) -> None:
        """Ends the turn with these answers."""
        with self._lock:
            self._answers = list(answers)
            self._end()
        self._wake()

    def cancel(self) -> None:
        """Nobody asks any more; calls not begun are dropped."""
        with self._lock:
            if not self._is_over:
                self._end()

    def carry_out(self, index: int, call: Callable[[float], str]) -> bool:
        """Runs one call in this thread; False if the turn was over before it came back."""
        with self._lock:
            left_s = self.deadline_s - time.monotonic()
            if self._is_over or left_s <= 0:
                return True
            self._busy.add(index)
        try:
            answer = Answer(str(call(left_s)))
        except TimeoutError as error:
            answer = Answer(f"error: {str(error)[:MAX_ERROR_CHARS] or 'no time left'}", "timeout")
        except ToolError as error:
            answer = Answer(f"error: {error}"[:MAX_ERROR_CHARS], "error")
        except Exception as error:  # of the tool: data for the policy
            logger.debug("a tool failed", exc_info=True)
            text = f"error: {type(error).__name__}: {error}"
            answer = Answer(text[:MAX_ERROR_CHARS], "error")
        with self._lock:
            if self._is_over:
                return False
            self._busy.discard(index)
            self._answers[index] = answer
            is_last = None not in self._answers
        if is_last:
            self._all_ended.set()
            self._wake()
        return True

    def _end(self) -> None:
        self._is_over = True
        self._all_ended.set()
        if self._busy and self._pool is not None:
            self._pool.replace(len(self._busy))
            self._busy.clear()

    def _late(self) -> Answer:
        limit_s = self.deadline_s - self.started_s
        return Answer(f"error: no answer within {limit_s:g} s", "timeout")

    def __getstate__(self) -> dict[str, Any]:
        self._all_ended.wait(max(0.0, self.deadline_s - time.monotonic()))
        return {"answers": self.answers() or [self._late()] * len(self._answers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(CallPool(1), 0, 0.0, lambda: None)
        self._answers = list(state["answers"])

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Another thread asks from now on."""
        self._wake = wake
