"""Samples whose tools run: their calls and caches, until the answers are there.

A paused sample has no slot. Its cache, of everything but the last token, which was drawn and never
read, lies in host memory. When its turn of tools is over it waits for a prefill like any prompt,
but ahead of those, and only what is new is read behind its cache.
"""

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.rollout.agentic.agent import Agent
from loong_jax.rollout.agentic.calls import Answer, CallPool, CallsOfTurn
from loong_jax.rollout.attempts import Attempt, Job
from loong_jax.rollout.reading import CachedPrefixes
from loong_jax.rollout.records import Turn
from loong_jax.rollout.slots import Prefix
from loong_jax.verifiers import tool_calls
from loong_jax.verifiers.tool_calls import ToolCall


class TurnEnd(NamedTuple):
    """Calls to carry out, or why what was written cannot be carried out."""

    calls: tuple[ToolCall, ...] = ()
    problem: str = ""


def read_turn_end(text: str, schemas: Mapping[str, Any]) -> TurnEnd | None:
    """The calls of a turn, of tools with these schemas; None where it makes none.

    `text` is the turn without the token that ended it. Calls stand behind the thinking and end the
    turn; what is written while thinking calls nothing.
    """
    spoken = tool_calls.spoken(text)
    tags = None if spoken is None else tool_calls.tags_in(spoken)
    if spoken is None or tags is None:
        return None
    found = tool_calls.read(spoken, schemas)
    if found.problem:
        return TurnEnd(problem=found.problem)
    if spoken.rpartition(tags[1])[2].strip():
        return TurnEnd(problem="text follows the last call: calls end a turn")
    return TurnEnd(found.calls)


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
        self.counts: Counter[str] = Counter()
        self._tokenizer, self._clock = tokenizer, clock
        self._pool = CallPool(agent.max_calls_at_once)
        self._answered = threading.Event()

    @property
    def is_full(self) -> bool:
        return len(self.paused) >= self.agent.max_paused

    def statistics(self) -> dict[str, int]:
        """Counters since the start; `num_paused` and `num_calls_left_behind` are as of now."""
        names = (
            "slots_paused",
            "turns_of_tools",
            "calls",
            "calls_failed",
            "tokens_of_tools",
            "tokens_read_on",
        )
        found = {f"num_{name}": self.counts[name] for name in names}
        left_behind = self._pool.num_left_behind
        return {**found, "num_paused": len(self.paused), "num_calls_left_behind": left_behind}

    def asks(self, attempt: Attempt) -> TurnEnd | None:
        """The calls of the turn that `attempt` has ended; None where it was its last one."""
        limits, tools = self.agent.limits, self.agent.tools_of(attempt.job.ticket.problem)
        if not tools or len(attempt.tool_turns) + 1 >= limits.max_turns:
            return None
        if attempt.length >= attempt.job.sampling.max_new_tokens:
            return None
        text = self._tokenizer.response_text(attempt.turn_tokens)
        return read_turn_end(text, tools.schemas)

    def begin(self, attempt: Attempt, extract: Callable[[], Prefix]) -> bool:
        """False where it calls no tools. Otherwise its calls are begun, and it is to leave the slot
        whose cache `extract` gives.
        """
        end = self.asks(attempt)
        if end is not None:
            self.pause(attempt, end, jax.device_get(extract()))
        return end is not None

    def pause(self, attempt: Attempt, end: TurnEnd, cache: Prefix) -> None:
        """Begins the calls. `cache` is what the engine gave for the slot."""
        attempt.cache = cache
        self.counts["slots_paused"] += 1
        limits, problem = self.agent.limits, attempt.job.ticket.problem
        room = limits.max_calls - sum(turn.num_calls for turn in attempt.tool_turns)
        allowed = end.calls[: max(0, room)]
        others = [Answer(f"error: {end.problem}", "malformed")] if end.problem else []
        refusal = Answer(f"error: no more than {limits.max_calls} calls are carried out", "refused")
        others += [refusal] * (len(end.calls) - len(allowed))
        calls = self._pool.start(
            self.agent.tools_of(problem),
            allowed,
            problem=problem,
            timeout_s=limits.timeout_s,
            wake=self._answered.set,
        )
        if not allowed:
            self._answered.set()
        paused = PausedSample(attempt, calls, len(end.calls), tuple(others), self._clock())
        self.paused.append(paused)

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
        if self.paused:
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
        paused.calls.wake_with(self._answered.set)
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
