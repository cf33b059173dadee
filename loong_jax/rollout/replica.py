"""A replica: one engine, its slots, and the one policy version they decode under.

Attempts wait in a queue per prefill bucket, enter slots as these become free, and leave them when
they end; a group is handed on when its last attempt has ended. Where the engine runs out of pages,
new attempts wait and the youngest running ones step aside with their cache, to come back first.
A prompt that takes several chunks is read between blocks, one chunk at a time.
An attempt that calls tools leaves its slot with its cache until they have answered.
Running attempts can also be given to another replica. One thread at a time may use a replica.
Which tokens an attempt gets depends on weights, problem, issue, attempt and seed alone.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.environments.environment import Problem
from loong_jax.errors import ConfigError
from loong_jax.rollout.agentic.agent import Agent
from loong_jax.rollout.agentic.paused import PausedOnTools
from loong_jax.rollout.agentic.tools import Toolbox
from loong_jax.rollout.attempts import (
    Attempt,
    Held,
    Job,
    LongRead,
    MigrationPayload,
    Moved,
    partials_of,
)
from loong_jax.rollout.engine import Engine, Params, PrefillWork, ResultTokens, SampleRequest
from loong_jax.rollout.partial import PartialGroup
from loong_jax.rollout.prefill_queue import PrefillQueue
from loong_jax.rollout.records import FinishReason, Group, Rollout, SamplingSettings, Ticket
from loong_jax.rollout.slot_table import SlotTable

EncodePrompt = Callable[[Problem], np.ndarray]
AttemptLengths = Callable[[Ticket], tuple[int, ...]]

WAIT_S = 0.05  # for tools, where nothing decodes meanwhile


class BlockStats(NamedTuple):
    """Figures of one `Replica.step`. Times are those of the replica's clock."""

    start_s: float
    end_s: float
    num_tokens: int  # written by the policy, first tokens included
    active_slots: int  # when decoding began
    num_prompts: int  # read by prefill


class Prefilled(NamedTuple):
    """The first tokens of the members of a prefill, and whose they are."""

    result: ResultTokens
    members: tuple[tuple[int, Attempt], ...]  # member of the prefix, attempt


def prompt_encoder(tokenizer: Tokenizer) -> EncodePrompt:
    """The form of a prompt that training uses too: its text, behind <bos> where there is one."""
    return lambda problem: np.array(tokenizer.prompt_ids(problem.prompt), np.int32)


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
        agent: Agent | None = None,
        limits: AttemptLengths | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`agent` for samples that may call tools. `limits` gives the most tokens of each attempt
        at a ticket, to replay a trace of lengths; max_new_tokens holds for all without it. Raises
        ConfigError for settings that clash.
        """
        if agent is not None and not engine.config.chunked_prefill:
            raise ConfigError(
                "an agent reads on behind what it has read, and chunked_prefill is off. Set it."
            )
        if group_size < 1:
            raise ConfigError(f"group_size={group_size} must be at least 1.")
        engine.config.check_sampling(sampling)
        self.engine = engine
        self.group_size = group_size
        self.sampling = sampling
        self.seed = seed
        self.version: int | None = None
        self._tokenizer: Tokenizer = engine.get_tokenizer()
        agent = agent or Agent(toolbox=Toolbox())
        agent.check(self._tokenizer)
        self._encode = encode_prompt or prompt_encoder(self._tokenizer)
        self._limits = limits
        self._clock = clock
        self._params: Params = None
        self._slots = SlotTable(engine)
        self._waiting = PrefillQueue(engine.config)
        self._tools = PausedOnTools(agent, self._tokenizer, clock)
        self._jobs: dict[int, Job] = {}  # by ticket number
        self._counts: Counter[str] = Counter()
        self.is_paused = False

    # ---- commands -------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Nothing is queued or decoding."""
        return not self._jobs

    @property
    def active_slots(self) -> int:
        return self._slots.num_active

    @property
    def cache_pressure(self) -> float:
        """Share of its cache, in [0, 1], that running samples take."""
        return self._slots.cache_pressure

    def statistics(self) -> dict[str, int]:
        """Counters since the start: those of the engine, and

        num_preemptions, num_restarts (attempts without their cache), num_tokens_reprefilled,
        num_tickets_given, num_tickets_taken, num_chunks_between_blocks, num_rests,
        num_slots_rested and those of tools, see `PausedOnTools.statistics`. Beside these, what is
        held now: num_slots_held.
        """
        names = ("preemptions", "restarts", "tokens_reprefilled", "tickets_given", "tickets_taken")
        names += ("chunks_between_blocks", "rests", "slots_rested")
        own = {f"num_{name}": self._counts[name] for name in names}
        held = {"num_slots_held": self.active_slots}
        own |= self._tools.statistics()
        return {**own, **held, **self._slots.statistics()}

    def pause(self) -> None:
        """Steps do nothing until `resume`; what runs keeps its slots and cache."""
        self.is_paused = True

    def rest(self) -> None:
        """As `pause`, and gives its cache up: what runs waits in host memory, to go on from there.

        So the devices are free for somebody else, save for the weights, which the version store
        holds in any case. What was kept of ended prompts is lost; a long read begins again.
        """
        if self._slots.is_given_up:
            return
        self.pause()
        aside = self._slots.give_up(self.version)
        self._counts.update(rests=1, slots_rested=len(aside))
        self._waiting.held = aside + [
            Held(jax.device_get(one.prefix), one.waiting) for one in self._waiting.held
        ]
        long_read, self._waiting.long_read = self._waiting.long_read, None
        for _, attempt in () if long_read is None else long_read.waiting:
            self._queue(attempt)

    def resume(self) -> None:
        """Ends `pause` and `rest`."""
        self._slots.make_anew()
        self.is_paused = False

    def assign(self, version: int, params: Params) -> None:
        """Takes up the weights of `version`. Only an empty replica changes version."""
        assert self.is_empty, f"tickets {sorted(self._jobs)[:8]} are written under {self.version}"
        if self.version is not None and self.version != version:
            self._slots.forget(self.version)
        self.version, self._params = version, params

    def swap(self, version: int, params: Params, *, keep_cache: bool) -> None:
        """Goes on with everything under the weights of `version`: one response, several versions.

        What other systems do at a weight update, for comparison with them; DORA never does. What
        runs keeps the cache that the old weights wrote, or is read again under the new ones.
        """
        assert self.version is not None, "there is nothing to swap before a version is assigned"
        if not keep_cache:
            running = list(self._slots)
            jobs, held, queued = self._remove(list(self._jobs), extract=False)
            self._jobs = {job.ticket.number: job for job in jobs}
            running += [attempt for one in held for _, attempt in one.waiting]
            for attempt in running:
                self._read_again(attempt)
            for attempt in queued:
                if attempt.cache is not None:  # back from its tools, or being read behind them
                    attempt.cache = None
                    self._read_again(attempt)
                else:
                    self._waiting.queue(attempt)
            self._slots.forget(self.version)
        paused = [one.attempt for one in self._tools.paused]
        for attempt in paused:
            attempt.cache = attempt.cache if keep_cache else None
        for attempt in (*paused, *self.under_way()):
            attempt.go_on_under(version)
        self.version, self._params = version, params

    def submit(
        self,
        tickets: Iterable[Ticket],
        *,
        group_size: int | None = None,
        sampling: SamplingSettings | None = None,
        partials: Mapping[int, PartialGroup] | None = None,
    ) -> None:
        """Queues tickets. Raises ValueError for a prompt or length that no slot can hold.

        `partials`, by ticket number, are what a lost replica had written under this version.
        """
        assert self.version is not None, "tickets for a replica without weights"
        for ticket in tickets:
            assert ticket.number not in self._jobs, f"ticket {ticket.number} is here already"
            prompt = self._encode(ticket.problem)
            size, drawn = group_size or self.group_size, sampling or self.sampling
            limits = self._limits(ticket) if self._limits is not None else None
            if ticket.max_new_tokens is not None:
                limits = (min(ticket.max_new_tokens, drawn.max_new_tokens),) * size
            job = Job(ticket, prompt, size, drawn, self.version, limits)
            self.engine.config.check_sampling(job.sampling)
            self._tools.agent.tools_of(ticket.problem)
            # Whatever is wrong with this ticket is said before anything of it is queued.
            self.engine.config.prefill_length(len(prompt))
            self.engine.config.check_length(len(prompt), max(limits or (drawn.max_new_tokens,)))
            self._jobs[ticket.number] = job
            partial = (partials or {}).get(ticket.number, PartialGroup(self.version, {}, {}))
            job.rollouts |= partial.ended
            for number in sorted(set(range(job.size)) - set(partial.ended)):
                attempt = Attempt(job, number, 0)
                if number in partial.unfinished:
                    tokens, log_probs, attempt.started_s = partial.unfinished[number]
                    attempt.extend(tokens, log_probs)
                    self._read_again(attempt)
                else:
                    self._waiting.queue(attempt)

    def under_way(self) -> Iterator[Attempt]:
        """Attempts that have not ended, whether they have a slot or wait for one."""
        yield from self._slots
        yield from self._waiting.attempts()

    def ended(self) -> Iterator[Rollout]:
        """Responses that have ended in groups that have not."""
        for job in self._jobs.values():
            yield from job.rollouts.values()

    def partials(self) -> dict[int, PartialGroup]:
        """Responses so far by ticket number; good for `submit` of another replica."""
        version = -1 if self.version is None else self.version
        return partials_of(version, self._jobs.values(), self.under_way())

    def cancel(self, ticket_numbers: Iterable[int]) -> None:
        """Forgets these tickets at once and frees their slots; unknown numbers are ignored."""
        jobs, _, _ = self._remove(ticket_numbers, extract=False)
        self._tools.cancel(set(jobs))

    def give(self, ticket_numbers: Iterable[int]) -> MigrationPayload:
        """As `cancel`, but hands over what was written and the caches of what runs."""
        assert self.version is not None
        jobs, held, queued = self._remove(ticket_numbers, extract=True)
        self._counts["tickets_given"] += len(jobs)
        paused = tuple(self._tools.take(set(jobs)))
        return MigrationPayload(self.version, tuple(jobs), tuple(held), tuple(queued), paused)

    def take(self, payload: MigrationPayload) -> Moved:
        """Goes on with what another replica of the same version gave.

        A sample whose cache this engine cannot use is read again, prompt and partial response; one
        that is too long to be read is drawn again from its beginning, to the same tokens.
        """
        assert payload.version == self.version, f"under {payload.version}, to {self.version}"
        num_moved = num_reprefilled = 0
        for job in payload.jobs:
            number = job.ticket.number
            assert number not in self._jobs, f"ticket {number} is here already"
            self._jobs[number] = job
        for held in payload.held:
            num_tokens = sum(len(attempt.sequence) for _, attempt in held.waiting)
            if self.engine.accepts(held.prefix):
                for _, attempt in held.waiting:
                    attempt.order = self._waiting.next_order()
                self._waiting.held.append(held)
                num_moved += num_tokens
            else:
                for _, attempt in held.waiting:
                    self._read_again(attempt)
                num_reprefilled += num_tokens
        for attempt in payload.queued:
            self._queue(attempt)
        for sample in payload.paused:
            self._tools.put(sample)
        self._counts["tickets_taken"] += len(payload.jobs)
        numbers = tuple(job.ticket.number for job in payload.jobs)
        return Moved(numbers, num_moved, num_reprefilled)

    def step(self) -> tuple[list[Group], BlockStats]:
        """Fills free slots, decodes one block, and returns the groups that are complete.

        Prefill, inserts and block are all under way before the one wait for their results.
        """
        start_s = self._clock()
        if self.is_paused:
            return [], BlockStats(start_s, start_s, 0, 0, 0)
        aside = self._slots.make_room(self.version)
        self._waiting.held[:0] = aside
        self._counts["preemptions"] += len(aside)
        groups = self._take_back(start_s)
        prefills = self._admit(start_s)
        occupied = self._slots.occupied()
        block = self._slots.decode(self._params, occupied) if occupied else None
        if block is None and not prefills:
            self._tools.wait(WAIT_S)
        num_tokens = 0
        for result, attempts in prefills:
            result = result.convert_to_numpy()
            for member, attempt in attempts:
                if result.target is not None:
                    attempt.read(result.target[member, : len(attempt.sequence)])
                attempt.cache = None
                attempt.extend(*result.written(member))
            num_tokens += len(attempts)
        if block is not None:
            result, rows = block
            result = result.convert_to_numpy()
            end_s = self._clock()
            for slot, row in zip(occupied, rows, strict=True):
                attempt, written = self._slots[slot], result.written(row)
                attempt.extend(*written)
                count = len(written[0])
                if result.target is not None:
                    attempt.targets.append(result.target[row, :count])
                num_tokens += count
                if attempt.cut_at_stop(self._tokenizer, count):
                    self._slots.halt(slot)
                    reason = "stop"
                else:
                    reason = self._finish_reason(attempt)
                if reason is not None and not self._pause_on_tools(slot, attempt):
                    self._slots.leave(slot, self.version)
                    self._end_attempt(attempt, reason, end_s)
                    groups += self._complete(attempt.job)
        num_prompts = sum(len({a.prompt_key[0] for _, a in waiting}) for _, waiting in prefills)
        stats = BlockStats(start_s, self._clock(), num_tokens, len(occupied), num_prompts)
        return groups, stats

    # ---- parts of a step ------------------------------------------------------------------------

    def _admit(self, now_s: float) -> list[Prefilled]:
        """Puts waiting attempts into free slots, reading prompts as needed."""
        room = self._waiting
        long_read, room.long_read = room.long_read, None
        prefills = [] if long_read is None else self._read_on(long_read)
        while self._slots.has_free:
            if not room.held:
                attempts = room.next_attempts(new_prompts=not self._tools.is_full)
                if not attempts:
                    break
                prefills += self._read(attempts, now_s)
                if not room.held:
                    continue
            held = room.held[0]
            if not self._slots.place(held):
                break
            if not held.waiting:
                room.held.pop(0)
        return prefills

    def _read(self, attempts: list[Attempt], now_s: float) -> list[Prefilled]:
        """Prefill of what these attempts begin with; members are held from then on.

        What takes several chunks is begun, and goes on between blocks.
        """
        rows: dict[tuple[int, int], int] = {}
        prompts = []
        for attempt in attempts:
            attempt.started_s = attempt.started_s or now_s
            if attempt.prompt_key not in rows:
                rows[attempt.prompt_key] = len(prompts)
                prompts.append(attempt.sequence)
        assert self.version is not None
        if attempts[0].cache is None:
            known = self._slots.find(prompts, self.version)
        else:
            known = self._tools.known(attempts, self.engine.config.prefill_prompts)
        work = PrefillWork(
            prompts,
            [rows[attempt.prompt_key] for attempt in attempts],
            [
                SampleRequest.of(a.job.ticket, a.number, a.sampling_left, seed=self.seed)
                for a in attempts
            ],
            known,
            self.version,
        )
        reading = self.engine.begin_prefill(self._params, work)
        return self._read_on(LongRead(reading, deque(enumerate(attempts))))

    def _read_on(self, long_read: LongRead) -> list[Prefilled]:
        """The next chunk, or all that is left where nothing decodes meanwhile."""
        reading, waiting = long_read
        while reading.num_left > 0:
            reading = self.engine.prefill_chunk(self._params, reading)
            if reading.num_left > 0 and self.active_slots:
                self._counts["chunks_between_blocks"] += 1
                self._waiting.long_read = LongRead(reading, waiting)
                return []
        prefix, result = self.engine.end_prefill(self._params, reading)
        self._waiting.held.append(Held(prefix, waiting))
        return [Prefilled(result, tuple(waiting))]

    def _pause_on_tools(self, slot: int, attempt: Attempt) -> bool:
        """True where the attempt has called tools; it has left its slot then."""
        end = self._tools.asks(attempt)
        if end is None:
            return False
        cache = jax.device_get(self._slots.extract(slot))
        self._slots.leave(slot, self.version)
        self._tools.pause(attempt, end, cache)
        return True

    def _take_back(self, now_s: float) -> list[Group]:
        """Queues the attempts whose tools have answered; groups that a lack of room completes."""
        groups = []
        for attempt, fits in self._tools.returned():
            if fits:
                self._queue(attempt)
            else:
                self._end_attempt(attempt, "length", now_s)
                groups += self._complete(attempt.job)
        return groups

    def _queue(self, attempt: Attempt) -> None:
        """With its cache, where it has one that can be used here."""
        if attempt.cache is not None and self.engine.accepts(attempt.cache):
            self._waiting.queue_returned(attempt)
        elif attempt.cache is not None:
            attempt.cache = None
            self._read_again(attempt)
        else:
            self._waiting.queue(attempt)

    def _remove(
        self, ticket_numbers: Iterable[int], *, extract: bool
    ) -> tuple[list[Job], list[Held], list[Attempt]]:
        """Takes tickets out of queues, held prefixes and slots; the running ones with `extract`."""
        numbers = [number for number in ticket_numbers if number in self._jobs]
        jobs = [self._jobs.pop(number) for number in dict.fromkeys(numbers)]
        gone = set(jobs)
        held, queued = self._waiting.remove(gone)
        ended = self._slots.of(gone)
        if extract:
            held += [
                Held(self._slots.extract(slot), deque([(0, self._slots[slot])])) for slot in ended
            ]
        self._slots.stop(ended, self.version)
        return jobs, held, queued

    def _read_again(self, attempt: Attempt) -> None:
        """Queues an attempt that has lost its cache."""
        if attempt.length and self._finish_reason(attempt):  # its end is drawn, and found, again
            attempt.cut(1)
        try:
            self.engine.config.prefill_length(len(attempt.sequence))
        except ValueError:  # too long to be read in this engine
            attempt.forget()
        self._counts["restarts"] += 1
        self._counts["tokens_reprefilled"] += len(attempt.sequence)
        self._waiting.queue(attempt)

    def _finish_reason(self, attempt: Attempt) -> FinishReason | None:
        last, sampling = attempt.tokens[-1][-1], attempt.job.sampling
        if last in self._tokenizer.end_ids or last in sampling.stop_ids:
            return "stop"
        return "length" if attempt.length >= attempt.most_tokens else None

    def _end_attempt(self, attempt: Attempt, reason: FinishReason, end_s: float) -> None:
        text = self._tokenizer.response_text(attempt.turn_tokens)
        attempt.job.rollouts[attempt.number] = attempt.to_rollout(reason, text, end_s)

    def _complete(self, job: Job) -> list[Group]:
        """The group of the job, if its last attempt has ended."""
        if len(job.rollouts) < job.size:
            return []
        del self._jobs[job.ticket.number]
        return [job.to_group()]
