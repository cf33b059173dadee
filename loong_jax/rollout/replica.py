"""A replica: one engine, its slots, and the one policy version they decode under.

Attempts wait in a queue per prefill bucket, enter slots as these become free, and leave them when
they end; a group is handed on when its last attempt has ended. One thread at a time may use a
replica. Which tokens an attempt gets depends on weights, problem, issue, attempt and seed alone.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.environments.problem import Problem
from loong_jax.errors import ConfigError
from loong_jax.rollout.engine import (
    Engine,
    Params,
    Prefix,
    ResultTokens,
    SampleRequest,
    refuse_truncation,
)
from loong_jax.rollout.records import FinishReason, Group, Rollout, SamplingSettings, Ticket

EncodePrompt = Callable[[Problem], np.ndarray]


class BlockStats(NamedTuple):
    """What one `Replica.step` did. Times are those of the replica's clock."""

    start_s: float
    end_s: float
    num_tokens: int  # written by the policy, first tokens included
    active_slots: int  # when decoding began
    num_prompts: int  # read by prefill


@dataclasses.dataclass(eq=False)
class _Attempt:
    """One sample on its way, with what each call wrote."""

    job: "_Job"
    number: int
    order: int  # of submission, over all attempts of the replica
    started_s: float = 0.0
    length: int = 0
    tokens: list[np.ndarray] = dataclasses.field(default_factory=list)
    log_probs: list[np.ndarray] = dataclasses.field(default_factory=list)

    def extend(self, tokens: np.ndarray, log_probs: np.ndarray) -> None:
        if len(tokens):
            self.length += len(tokens)
            self.tokens.append(tokens)
            self.log_probs.append(log_probs)


@dataclasses.dataclass(eq=False)
class _Job:
    """A ticket that is being written."""

    ticket: Ticket
    prompt: np.ndarray
    size: int
    sampling: SamplingSettings
    rollouts: dict[int, Rollout] = dataclasses.field(default_factory=dict)
    is_cancelled: bool = False


class _Held(NamedTuple):
    """A prefix whose members wait for slots."""

    prefix: Prefix
    waiting: deque[tuple[int, _Attempt]]  # member of the prefix, attempt


def prompt_encoder(tokenizer: Tokenizer) -> EncodePrompt:
    """The form of a prompt that training uses too: <bos>, then the text."""
    return lambda problem: np.array([tokenizer.bos_id, *tokenizer.encode(problem.prompt)], np.int32)


class Replica:
    """Decodes groups of tickets under one policy version at a time."""

    def __init__(
        self,
        engine: Engine,
        *,
        group_size: int,
        sampling: SamplingSettings,
        seed: int,
        encode_prompt: EncodePrompt | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if group_size < 1:
            raise ConfigError(f"group_size={group_size} must be at least 1.")
        refuse_truncation(sampling)
        self.engine = engine
        self.group_size = group_size
        self.sampling = sampling
        self.seed = seed
        self.version: int | None = None
        self._tokenizer: Tokenizer = engine.get_tokenizer()
        self._encode = encode_prompt or prompt_encoder(self._tokenizer)
        self._clock = clock
        self._params: Params = None
        self._state = engine.init_decode_state()
        self._slots: list[_Attempt | None] = [None] * engine.max_concurrent_decodes
        self._free = deque(range(engine.max_concurrent_decodes))
        self._queues: dict[int, deque[_Attempt]] = {}  # by prefill bucket
        self._held: list[_Held] = []
        self._jobs: dict[int, _Job] = {}  # by ticket number
        self._order = 0

    # ---- commands -------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Nothing is queued or decoding."""
        return not self._jobs

    @property
    def active_slots(self) -> int:
        return len(self._slots) - len(self._free)

    def assign(self, version: int, params: Params) -> None:
        """Takes up the weights of `version`. Only an empty replica changes version."""
        if not self.is_empty:
            raise RuntimeError(
                f"version {version} assigned while tickets {sorted(self._jobs)[:8]} are being "
                f"written under version {self.version}. Let them end or cancel them first."
            )
        self.version, self._params = version, params

    def submit(
        self,
        tickets: Iterable[Ticket],
        *,
        group_size: int | None = None,
        sampling: SamplingSettings | None = None,
    ) -> None:
        """Queues tickets. Raises ValueError for a prompt or length that no slot can hold."""
        if self.version is None:
            raise RuntimeError("tickets for a replica without weights. Assign a version first.")
        for ticket in tickets:
            if ticket.number in self._jobs:
                raise ValueError(f"ticket {ticket.number} is here already. Number tickets once.")
            prompt = self._encode(ticket.problem)
            job = _Job(ticket, prompt, group_size or self.group_size, sampling or self.sampling)
            bucket = self.engine.prefill_length(len(prompt))
            self._jobs[ticket.number] = job
            queue = self._queues.setdefault(bucket, deque())
            queue.extend(_Attempt(job, i, self._order + i) for i in range(job.size))
            self._order += job.size

    def cancel(self, ticket_numbers: Iterable[int]) -> None:
        """Forgets these tickets at once and frees their slots; unknown numbers are ignored."""
        jobs = [self._jobs.pop(n) for n in ticket_numbers if n in self._jobs]
        if not jobs:
            return
        for job in jobs:
            job.is_cancelled = True
        for bucket, queue in self._queues.items():
            self._queues[bucket] = deque(a for a in queue if not a.job.is_cancelled)
        self._held = [
            held._replace(waiting=deque(w for w in held.waiting if not w[1].job.is_cancelled))
            for held in self._held
        ]
        self._held = [held for held in self._held if held.waiting]
        ended = [i for i, a in enumerate(self._slots) if a is not None and a.job.is_cancelled]
        if ended:
            self._state = self.engine.cancel(self._state, ended)
            for slot in ended:
                self._release(slot)

    def step(self) -> tuple[list[Group], BlockStats]:
        """Fills free slots, decodes one block, and returns the groups that are complete.

        Prefill, inserts and block are all under way before the one wait for their results.
        """
        start_s = self._clock()
        prefills = self._admit(start_s)
        occupied = [i for i, attempt in enumerate(self._slots) if attempt is not None]
        block = self._decode(occupied) if occupied else None
        num_tokens = 0
        for result, attempts in prefills:
            result = result.convert_to_numpy()
            tokens = result.data[:, slice(*result.tokens_idx)]
            for member, attempt in enumerate(attempts):
                attempt.extend(tokens[member], result.log_prob[member])
            num_tokens += len(attempts)
        groups = []
        if block is not None:
            result, rows = block
            result = result.convert_to_numpy()
            tokens = result.data[:, slice(*result.tokens_idx)]
            counts = result.data[:, slice(*result.valid_idx)].sum(axis=1)
            end_s = self._clock()
            for slot, row in zip(occupied, rows, strict=True):
                attempt, count = self._slots[slot], int(counts[row])
                assert attempt is not None
                attempt.extend(tokens[row, :count], result.log_prob[row, :count])
                num_tokens += count
                reason = self._finish_reason(attempt)
                if reason is not None:
                    self._release(slot)
                    self._end_attempt(attempt, reason, end_s)
                    if (group := self._complete(attempt.job)) is not None:
                        groups.append(group)
        num_prompts = sum(len({id(a.job) for a in attempts}) for _, attempts in prefills)
        stats = BlockStats(start_s, self._clock(), num_tokens, len(occupied), num_prompts)
        return groups, stats

    # ---- parts of a step ------------------------------------------------------------------------

    def _admit(self, now_s: float) -> list[tuple[ResultTokens, list[_Attempt]]]:
        """Puts waiting attempts into free slots, reading prompts as needed."""
        prefills = []
        while self._free:
            if not self._held:
                attempts = self._next_attempts()
                if not attempts:
                    break
                prompts: dict[int, int] = {}  # ticket number -> row
                for attempt in attempts:
                    attempt.started_s = now_s
                    prompts.setdefault(attempt.job.ticket.number, len(prompts))
                prefix, result = self.engine.prefill_batch(
                    params=self._params,
                    prompts=[self._jobs[number].prompt for number in prompts],
                    rows=[prompts[a.job.ticket.number] for a in attempts],
                    requests=[
                        SampleRequest.of(a.job.ticket, a.number, a.job.sampling, seed=self.seed)
                        for a in attempts
                    ],
                )
                prefills.append((result, attempts))
                self._held.append(_Held(prefix, deque(enumerate(attempts))))
            held = self._held[0]
            placed = [
                held.waiting.popleft() for _ in range(min(len(held.waiting), len(self._free)))
            ]
            slots = [self._free.popleft() for _ in placed]
            for slot, (_, attempt) in zip(slots, placed, strict=True):
                self._slots[slot] = attempt
            self._state = self.engine.bulk_insert(
                held.prefix, self._state, slots, members=[member for member, _ in placed]
            )
            if not held.waiting:
                self._held.pop(0)
        return prefills

    def _next_attempts(self) -> list[_Attempt]:
        """Attempts for one prefill, from the bucket whose head has waited longest."""
        queues = [queue for queue in self._queues.values() if queue]
        if not queues:
            return []
        queue = min(queues, key=lambda queue: queue[0].order)
        attempts: list[_Attempt] = []
        jobs: set[int] = set()
        while queue and len(attempts) < self.engine.max_prefill_members:
            jobs.add(queue[0].job.ticket.number)
            if len(jobs) > self.engine.max_prefill_prompts:
                break
            attempts.append(queue.popleft())
        return attempts

    def _decode(self, occupied: list[int]) -> tuple[ResultTokens, list[int]]:
        """One block; returns its result and the row of each occupied slot in it."""
        if len(occupied) <= self.engine.max_narrow_slots:
            slots = np.array(occupied, np.int32)
            self._state, result = self.engine.generate(self._params, self._state, slots=slots)
            return result, list(range(len(occupied)))
        self._state, result = self.engine.generate(self._params, self._state)
        return result, occupied

    def _finish_reason(self, attempt: _Attempt) -> FinishReason | None:
        if attempt.tokens[-1][-1] == self._tokenizer.eos_id:
            return "stop"
        return "length" if attempt.length >= attempt.job.sampling.max_new_tokens else None

    def _release(self, slot: int) -> None:
        self._slots[slot] = None
        self._free.append(slot)
        self.engine.free_resource(slot)

    def _end_attempt(self, attempt: _Attempt, reason: FinishReason, end_s: float) -> None:
        job, tokens = attempt.job, np.concatenate(attempt.tokens)
        assert self.version is not None
        job.rollouts[attempt.number] = Rollout(
            ticket=job.ticket.number,
            attempt=attempt.number,
            prompt=job.prompt,
            tokens=tokens,
            loss_mask=np.ones(len(tokens), bool),
            engine_logprob=np.concatenate(attempt.log_probs),
            sampling=job.sampling,
            versions=((0, self.version),),
            finish_reason=reason,
            text=self._tokenizer.decode(tokens),
            started_s=attempt.started_s,
            ended_s=end_s,
        )

    def _complete(self, job: _Job) -> Group | None:
        if len(job.rollouts) < job.size:
            return None
        del self._jobs[job.ticket.number]
        assert self.version is not None
        rollouts = tuple(job.rollouts[number] for number in range(job.size))
        return Group(ticket=job.ticket, version=self.version, rollouts=rollouts)
