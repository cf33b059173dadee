"""Samples whose tools run: their calls and caches, until the answers are there.

A parked sample has no slot. Its cache, of everything but the last token, which was drawn and never
read, lies in host memory. When its turn of tools is over it waits for a prefill like any prompt,
but ahead of those, and only what is new is read behind its cache.
"""

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import jax
import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.rollout.agentic import turn_end
from loong_jax.rollout.agentic.agent import Agent
from loong_jax.rollout.agentic.calls import Answer, CallPool, CallsOfTurn
from loong_jax.rollout.agentic.turn_end import TurnEnd
from loong_jax.rollout.attempts import Attempt, Job
from loong_jax.rollout.engine import Engine, Prefix
from loong_jax.rollout.paged_engine import PagedPrefix
from loong_jax.rollout.reading import Begun
from loong_jax.rollout.records import Turn


@dataclasses.dataclass(eq=False)
class Parked:
    """One sample whose tools run."""

    attempt: Attempt
    calls: CallsOfTurn
    num_calls: int  # that the policy made
    others: tuple[Answer, ...]  # to calls that were not carried out, behind the others
    since_s: float


class ParkingLot:
    """The parked samples of one replica. One thread at a time may use it."""

    def __init__(self, agent: Agent, tokenizer: Tokenizer, clock: Callable[[], float]):
        self.agent = agent
        self.parked: list[Parked] = []
        self.counts: Counter[str] = Counter()
        self._tokenizer, self._clock = tokenizer, clock
        self._pool = CallPool(agent.max_calls_at_once)
        self._answered = threading.Event()

    @property
    def is_full(self) -> bool:
        return len(self.parked) >= self.agent.max_parked

    def statistics(self) -> dict[str, int]:
        """Counters since the start; `num_parked` and `num_calls_left_behind` are as of now."""
        names = (
            "slots_parked",
            "turns_of_tools",
            "calls",
            "calls_failed",
            "tokens_of_tools",
            "tokens_read_on",
        )
        found = {f"num_{name}": self.counts[name] for name in names}
        left_behind = self._pool.num_left_behind
        return {**found, "num_parked": len(self.parked), "num_calls_left_behind": left_behind}

    def asks(self, attempt: Attempt) -> TurnEnd | None:
        """What the turn that `attempt` has ended asks of tools; None where it was its last one."""
        limits, tools = self.agent.limits, self.agent.tools_of(attempt.job.ticket.problem)
        if not tools or len(attempt.tool_turns) + 1 >= limits.max_turns:
            return None
        if attempt.length >= attempt.job.sampling.max_new_tokens:
            return None
        text = self._tokenizer.response_text(attempt.turn_tokens)
        return turn_end.read(text, tools.schemas)

    def park(self, attempt: Attempt, end: TurnEnd, cache: Prefix) -> None:
        """Begins the calls. `cache` is what the engine gave for the slot."""
        attempt.cache = cache
        self.counts["slots_parked"] += 1
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
        parked = Parked(attempt, calls, len(end.calls), tuple(others), self._clock())
        self.parked.append(parked)

    def returned(self) -> list[tuple[Attempt, bool]]:
        """Samples whose tools have answered, with the answers, and whether these fitted in."""
        self._answered.clear()
        found, still = [], []
        for parked in self.parked:
            answers = parked.calls.answers()
            if answers is None:
                still.append(parked)
            else:
                fits = self._answer(parked, [*answers, *parked.others])
                found.append((parked.attempt, fits))
        self.parked = still
        return found

    def wait(self, timeout_s: float) -> None:
        """Until some calls have ended, `timeout_s` at most."""
        if self.parked:
            self._answered.wait(timeout_s)

    def cancel(self, jobs: set[Job]) -> None:
        """Forgets the samples of these jobs; what their tools answer is dropped."""
        for parked in self.take(jobs):
            parked.calls.cancel()
            parked.attempt.cache = None

    def take(self, jobs: set[Job]) -> list[Parked]:
        """The parked samples of these jobs, which are not here any more."""
        taken = [parked for parked in self.parked if parked.attempt.job in jobs]
        self.parked = [parked for parked in self.parked if parked.attempt.job not in jobs]
        return taken

    def put(self, parked: Parked) -> None:
        """A sample that another replica has parked."""
        parked.calls.wake_with(self._answered.set)
        self.parked.append(parked)
        self._answered.set()

    def begun(self, engine: Engine, attempts: Sequence[Attempt]) -> Begun:
        """The caches of these samples, to read on behind them."""
        most = engine.max_prefill_prompts
        caches = [_cache_of(attempt.cache) for attempt in attempts]
        caches += [caches[0]] * (most - len(caches))
        start = np.zeros(most, np.int32)
        for row, attempt in enumerate(attempts):
            start[row] = num_read(attempt)
            self.counts["tokens_read_on"] += len(attempt.sequence) - num_read(attempt)
        return Begun(_stack(tuple(caches)), start)

    def _answer(self, parked: Parked, answers: list[Answer]) -> bool:
        attempt = parked.attempt
        tokens = self.agent.answer_tokens(
            self._tokenizer,
            attempt.job.ticket.problem,
            attempt.turn_tokens,
            [answer.text for answer in answers],
        )
        failures = tuple(answer.failure for answer in answers if answer.failure)
        self.counts["turns_of_tools"] += 1
        self.counts["calls"] += parked.num_calls
        self.counts["calls_failed"] += len(failures)
        if attempt.length + len(tokens) >= attempt.job.sampling.max_new_tokens:
            attempt.cache = None
            return False
        self.counts["tokens_of_tools"] += len(tokens)
        turn = Turn(
            role="tool",
            first=attempt.length,
            num_tokens=len(tokens),
            num_calls=parked.num_calls,
            failures=failures,
            wall_s=self._clock() - parked.since_s,
        )
        attempt.extend_by_tools(tokens, turn)
        return True


def num_read(attempt: Attempt) -> int:
    """How many tokens of a returned sample its cache holds: all but the policy's last one."""
    return len(attempt.job.prompt) + attempt.tool_turns[-1].first - 1


def _cache_of(prefix: Prefix):
    return (prefix.device if isinstance(prefix, PagedPrefix) else prefix).cache


@jax.jit
def _stack(caches):
    return jax.tree.map(lambda *rows: jax.numpy.concatenate(rows, axis=2), *caches)
