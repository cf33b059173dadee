"""A replica: one engine, its slots, and the one policy version they decode under.

Attempts wait in a queue per prefill bucket, enter slots as these become free, and leave them when
they end; a group is handed on when its last attempt has ended. Where the engine runs out of pages,
new attempts wait and the youngest running ones step aside with their cache, to come back first.
Which tokens an attempt gets depends on weights, problem, issue, attempt and seed alone.
"""

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.models.parameters import Weights
from loong_jax.problems.problem import Problem
from loong_jax.rollout import records
from loong_jax.rollout.agentic.agent import Agent, Toolbox
from loong_jax.rollout.agentic.paused import PausedOnTools
from loong_jax.rollout.attempts import (
    Attempt,
    Job,
    Listen,
    MigrationPayload,
    PartialGroup,
    partials_of,
    prefill_of,
    to_host,
)
from loong_jax.rollout.programs import Reading, ResultTokens
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.rollout.slot_table import PrefillQueue, SlotTable

EncodePrompt = Callable[[Problem], np.ndarray]
AttemptLengths = Callable[[records.Ticket], tuple[int, ...]]
Prefilled = tuple[ResultTokens, list[Attempt]]  # of these, by the member that each is

COUNTS = (  # restarts: without a cache
    "preemptions", "restarts", "tokens_reprefilled", "tickets_given", "tickets_taken",
    "chunks_between_blocks", "rests", "slots_rested",
)  # fmt: skip
WAIT_S = 0.05  # for tools, where nothing decodes meanwhile


def prompt_encoder(tokenizer: Tokenizer) -> EncodePrompt:
    """The form of a prompt that training uses too: its text, behind <bos> where there is one."""
    return lambda problem: np.array(tokenizer.prompt_ids(problem.prompt), np.int32)


class Replica:
    """Decodes groups of tickets under one policy version at a time. For one thread at a time."""

    def __init__(
        self,
        engine: SlotEngine,
        *,
        group_size: int,
        sampling: records.SamplingSettings,
        seed: int,
        encode_prompt: EncodePrompt | None = None,
        agent: Agent | None = None,
        limits: AttemptLengths | None = None,
        clock: Callable[[], float] = time.monotonic,
        number: int = 0,
    ):
        """`agent` for samples that may call tools. `limits` gives the most tokens of each attempt
        at a ticket, in place of max_new_tokens. Raises ConfigError for settings that clash.
        """
        agent = agent or Agent(toolbox=Toolbox())
        reads_on = not agent.toolbox or engine.config.chunked_prefill
        assert reads_on, "an agent reads on behind what it has read, and chunked_prefill is off"
        assert group_size >= 1, f"group_size={group_size}"
        engine.config.check_sampling(sampling)
        self.engine, self.number = engine, number
        self.group_size, self.sampling, self.seed = group_size, sampling, seed
        self._tokenizer: Tokenizer = engine.tokenizer
        agent.check(self._tokenizer)
        self._calls_tools = bool(agent.toolbox)
        self._tools = PausedOnTools(agent, self._tokenizer, clock)
        self._encode = encode_prompt or prompt_encoder(self._tokenizer)
        self._limits = limits
        self._clock = clock
        self._params: Weights = {}
        self._slots = SlotTable(engine)
        self._waiting = PrefillQueue(engine.config)
        self._jobs: dict[int, Job] = {}  # by ticket number
        self._counts = Counter(dict.fromkeys(COUNTS, 0))
        self.is_paused = False

    # ---- commands -------------------------------------------------------------------------------

    @property
    def version(self) -> int | None:
        return self._slots.version

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
        """Counters since the start, of engine and tools too; num_slots_held is as of now."""
        own = {f"num_{name}": count for name, count in self._counts.items()}
        own |= {"num_slots_held": self.active_slots} | self._slots.statistics()
        return own | (self._tools.statistics() if self._calls_tools else {})

    def pause(self) -> None:
        """Steps do nothing until `resume`; what runs keeps its slots and cache."""
        self.is_paused = True

    def rest(self) -> None:
        """Pauses and frees the devices but for weights: what runs waits in host memory, to go on
        from there. What was kept of ended prompts is lost; a long read begins again.
        """
        if self._slots.is_given_up:
            return
        self.pause()
        aside = self._slots.give_up()
        self._counts.update(rests=1, slots_rested=len(aside))
        to_host(self._waiting.held)
        self._waiting.held[:0] = aside
        long_read, self._waiting.long_read = self._waiting.long_read, None
        for attempt in () if long_read is None else long_read[1]:
            self._queue(attempt)

    def resume(self) -> None:
        """Ends `pause` and `rest`."""
        self._slots.make_anew()
        self.is_paused = False

    def put_down(self) -> None:
        """Lets go of the weights, so that those of the next `assign` or `swap` have their room."""
        self._params = {}

    def assign(self, version: int, params: Weights) -> None:
        """Takes up the weights of `version`. Only an empty replica changes version."""
        assert self.is_empty, f"tickets {sorted(self._jobs)[:8]} are written under {self.version}"
        if self.version != version:
            self._slots.forget()
        self._slots.version, self._params = version, params

    def swap(self, version: int, params: Weights, *, keep_cache: bool) -> None:
        """Goes on with everything under the weights of `version`: one response, several versions.

        What other systems do at a weight update, for comparison with them; DORA never does. What
        runs keeps the cache that the old weights wrote, or is read again under the new ones.
        """
        assert self.version is not None, "there is nothing to swap before a version is assigned"
        if not keep_cache:
            running = list(self._slots)
            jobs, waiting = self._remove(list(self._jobs), extract=False)
            self._jobs = {job.ticket.number: job for job in jobs}
            for attempt in running:
                self._read_again(attempt)
            for attempt in waiting:
                self._queue(attempt, keeps_caches=False)
            self._slots.forget()
        paused = [one.attempt for one in self._tools.paused]
        for attempt in paused:
            attempt.cache = attempt.cache if keep_cache else None
        for attempt in (*paused, *self.under_way()):
            attempt.go_on_under(version)
        self._slots.version, self._params = version, params

    def submit(
        self,
        tickets: Iterable[records.Ticket],
        *,
        group_size: int | None = None,
        sampling: records.SamplingSettings | None = None,
        partials: Mapping[int, PartialGroup] | None = None,
        listen: Listen | None = None,
    ) -> None:
        """Queues tickets. Raises ValueError for a prompt or length that no slot can hold.

        `partials`, by ticket number, are what a lost replica had written under this version.
        `listen` is called after each block with every attempt that had a slot in it.
        """
        assert self.version is not None, "tickets for a replica without weights"
        for ticket in tickets:
            assert ticket.number not in self._jobs, f"ticket {ticket.number} is here already"
            prompt = self._encode(ticket.problem)
            size, drawn = group_size or self.group_size, sampling or self.sampling
            limits = self._limits(ticket) if self._limits is not None else None
            if ticket.max_new_tokens is not None:
                limits = (min(ticket.max_new_tokens, drawn.max_new_tokens),) * size
            job = Job(ticket, prompt, size, drawn, self.version, limits, listen)
            self.engine.config.check_sampling(job.sampling)
            if ticket.problem.arguments.get("tools"):
                self._tools.agent.tools_of(ticket.problem)
            # Whatever is wrong with this ticket is said before anything of it is queued.
            self.engine.config.prefill_length(len(prompt))
            self.engine.config.check_length(len(prompt), max(limits or (drawn.max_new_tokens,)))
            self._jobs[ticket.number] = job
            partial = (partials or {}).get(ticket.number)
            ended, unfinished = (partial.ended, partial.unfinished) if partial else ({}, {})
            job.rollouts |= ended
            for number in sorted(set(range(job.size)) - set(ended)):
                attempt = Attempt(job, number, 0)
                if number in unfinished:
                    tokens, log_probs, attempt.started_s = unfinished[number]
                    attempt.extend(tokens, log_probs)
                    self._read_again(attempt)
                else:
                    self._waiting.queue(attempt)

    def under_way(self) -> Iterator[Attempt]:
        """Attempts that have not ended, whether they have a slot or wait for one."""
        yield from self._slots
        yield from self._waiting.attempts()

    def jobs(self) -> Iterable[Job]:
        """Tickets that have not ended, with their responses that have."""
        return self._jobs.values()

    def partials(self) -> dict[int, PartialGroup]:
        """Responses so far by ticket number; good for `submit` of another replica."""
        version = -1 if self.version is None else self.version
        return partials_of(version, self._jobs.values(), self.under_way())

    def cancel(self, ticket_numbers: Iterable[int]) -> None:
        """Forgets these tickets at once and frees their slots; unknown numbers are ignored."""
        jobs, _ = self._remove(ticket_numbers, extract=False)
        self._tools.cancel(set(jobs))

    def give(self, ticket_numbers: Iterable[int]) -> MigrationPayload:
        """Cancels tickets as `cancel`, and hands over their tokens and the caches of what runs."""
        assert self.version is not None
        jobs, attempts = self._remove(ticket_numbers, extract=True)
        self._counts["tickets_given"] += len(jobs)
        paused = tuple(self._tools.take(set(jobs)))
        return MigrationPayload(self.number, self.version, tuple(jobs), tuple(attempts), paused)

    def take(self, payload: MigrationPayload) -> records.GroupsMigrated:
        """Goes on with what another replica of the same version gave.

        A sample whose cache this engine cannot use is read again, prompt and partial response; one
        that is too long to be read is drawn again from its beginning, to the same tokens.
        """
        assert payload.version == self.version, f"under {payload.version}, to {self.version}"
        num_moved = num_reprefilled = 0  # tokens, those of prompts too
        numbers = tuple(job.ticket.number for job in payload.jobs)
        assert self._jobs.keys().isdisjoint(numbers), f"one of tickets {numbers} is here already"
        self._jobs |= dict(zip(numbers, payload.jobs, strict=True))
        for attempt in payload.attempts:
            num_tokens = 0 if attempt.prefix is None else len(attempt.sequence)
            self._queue(attempt)
            if attempt.prefix is None:
                num_reprefilled += num_tokens
            else:
                num_moved += num_tokens
        for sample in payload.paused:
            self._tools.put(sample)
        self._counts["tickets_taken"] += len(numbers)
        return records.GroupsMigrated(
            payload.source, self.number, numbers, num_moved, num_reprefilled
        )

    def step(self) -> tuple[list[records.Group], records.BlockDecoded]:
        """Fills free slots, decodes one block, and returns the groups that are complete.

        Prefill, inserts and block are all under way before the one wait for their results.
        """
        start_s = self._clock()
        if self.is_paused:
            return [], self._report(start_s, 0, 0, 0)
        aside = self._slots.make_room()
        self._waiting.held[:0] = aside
        self._counts["preemptions"] += len(aside)
        groups = self._take_back(start_s) if self._tools.paused else []
        prefills = self._admit(start_s)
        occupied = self._slots.occupied()
        block = self._slots.decode(self._params, occupied) if occupied else None
        if block is None and not prefills and self._tools.paused:
            self._tools.wait(WAIT_S)
        num_tokens = 0
        for result, attempts in prefills:
            result = result.convert_to_numpy()
            for attempt in attempts:
                if result.target is not None:
                    attempt.read(result.target[attempt.member, : len(attempt.sequence)])
                attempt.cache = None
                attempt.extend(*result.written(attempt.member))
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
                if attempt.cut_at_stop(self._tokenizer.decode):
                    self._slots.halt(slot)
                    reason = "stop"
                else:
                    reason = attempt.finish_reason(self._tokenizer.end_ids)
                if reason is not None and self._calls_tools:
                    extract = functools.partial(self._slots.extract, slot)
                    if self._tools.begin(attempt, extract):
                        self._slots.leave(slot)
                        continue
                if attempt.job.listen is not None:
                    attempt.job.listen(attempt, reason)
                if reason is not None:
                    self._slots.leave(slot)
                    groups += self._end_attempt(attempt, reason, end_s)
        num_prompts = sum(len({a.prompt_key[0] for a in attempts}) for _, attempts in prefills)
        return groups, self._report(start_s, num_tokens, len(occupied), num_prompts)

    def _report(self, start_s: float, *counts: int) -> records.BlockDecoded:
        version = -1 if self.version is None else self.version
        return records.BlockDecoded(self.number, version, start_s, self._clock(), *counts)

    # ---- parts of a step ------------------------------------------------------------------------

    def _admit(self, now_s: float) -> list[Prefilled]:
        """Puts waiting attempts into free slots, reading prompts as needed."""
        room = self._waiting
        long_read, room.long_read = room.long_read, None
        prefills = [] if long_read is None else self._read_on(*long_read)
        while self._slots.has_free:
            if not room.held:
                is_full = bool(self._tools.paused) and self._tools.is_full
                attempts = room.next_attempts(new_prompts=not is_full)
                if not attempts:
                    break
                prefills += self._read(attempts, now_s)
                if not room.held:
                    continue
            if not self._slots.place(room.held):
                break
        return prefills

    def _read(self, attempts: list[Attempt], now_s: float) -> list[Prefilled]:
        """Prefill of what these attempts begin with; they are held from then on.

        What takes several chunks is begun, and goes on between blocks.
        """
        for member, attempt in enumerate(attempts):
            attempt.started_s, attempt.member = attempt.started_s or now_s, member
        prompts, rows, requests = prefill_of(attempts, self.seed)
        if attempts[0].cache is None:
            known = self._slots.find(prompts)
        else:
            known = self._tools.known(attempts, self.engine.config.prefill_prompts)
        reading = self.engine.begin_prefill(
            self._params, prompts, rows, requests, existing_prefix=known, version=self.version
        )
        return self._read_on(reading, attempts)

    def _read_on(self, reading: Reading, attempts: list[Attempt]) -> list[Prefilled]:
        """The next chunk, or all that is left where nothing decodes meanwhile."""
        while reading.num_left > 0:
            reading = self.engine.prefill_chunk(self._params, reading)
            if reading.num_left > 0 and self.active_slots:
                self._counts["chunks_between_blocks"] += 1
                self._waiting.long_read = reading, attempts
                return []
        prefix, result = self.engine.end_prefill(self._params, reading)
        for attempt in attempts:
            attempt.prefix = prefix
        self._waiting.held += attempts
        return [(result, attempts)]

    def _take_back(self, now_s: float) -> list[records.Group]:
        groups = []
        for attempt, fits in self._tools.returned():
            if fits:
                self._queue(attempt)
            else:
                groups += self._end_attempt(attempt, "length", now_s)
        return groups

    def _queue(self, attempt: Attempt, *, keeps_caches: bool = True) -> None:
        """Queues an attempt, with its prefix, or its cache from before its tools, where that can be
        used here.
        """
        known = attempt.cache if attempt.prefix is None else attempt.prefix
        if known is None:
            self._waiting.queue(attempt)
        elif not (keeps_caches and self.engine.accepts(known)):
            self._read_again(attempt)
        elif attempt.prefix is None:
            self._waiting.queue_returned(attempt)
        else:
            attempt.order = self._waiting.next_order()
            self._waiting.held.append(attempt)

    def _remove(
        self, ticket_numbers: Iterable[int], *, extract: bool
    ) -> tuple[list[Job], list[Attempt]]:
        """Takes tickets out of queues and slots: also those that ran, with `extract`."""
        numbers = [number for number in ticket_numbers if number in self._jobs]
        jobs = [self._jobs.pop(number) for number in dict.fromkeys(numbers)]
        gone = set(jobs)
        attempts = self._waiting.remove(gone)
        ended = self._slots.of(gone)
        for slot in ended if extract else ():
            attempt = self._slots[slot]
            attempt.prefix, attempt.member = self._slots.extract(slot), 0
            attempts.append(attempt)
        self._slots.stop(ended)
        return jobs, sorted(attempts, key=lambda attempt: attempt.prefix is None)

    def _read_again(self, attempt: Attempt) -> None:
        """Queues an attempt that has lost its cache, or cannot use it."""
        attempt.prefix = attempt.cache = None
        if attempt.length and attempt.finish_reason(self._tokenizer.end_ids):
            attempt.cut(1)  # its end is drawn, and found, again
        try:
            self.engine.config.prefill_length(len(attempt.sequence))
        except ValueError:  # too long to be read in this engine
            attempt.forget()
        self._counts["restarts"] += 1
        self._counts["tokens_reprefilled"] += len(attempt.sequence)
        self._waiting.queue(attempt)

    def _end_attempt(
        self, attempt: Attempt, reason: records.FinishReason, end_s: float
    ) -> list[records.Group]:
        """The group of its job, if it was the last one."""
        job, text = attempt.job, self._tokenizer.response_text(attempt.turn_tokens)
        job.rollouts[attempt.number] = attempt.to_rollout(reason, text, end_s)
        if len(job.rollouts) < job.size:
            return []
        del self._jobs[job.ticket.number]
        rollouts = tuple(job.rollouts[number] for number in range(job.size))
        return [records.Group(ticket=job.ticket, version=job.version, rollouts=rollouts)]
