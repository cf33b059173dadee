"""Samples on their way: what a replica knows of each, and what goes along when one moves.

Partial groups are responses that are being written, kept outside the replica that writes them. When
it dies, its tickets go to another of their version together with their partials: ended responses
are used as they are, and unfinished ones are read again, prompt and partial, and go on.
"""

import dataclasses
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from loong_jax.rollout.engine_config import SampleRequest
from loong_jax.rollout.records import (
    FinishReason,
    Rollout,
    SamplingSettings,
    Ticket,
    Turn,
)
from loong_jax.rollout.text_stream import Decode, TextStream


@dataclasses.dataclass(eq=False)
class Job:
    """A ticket that is being written."""

    ticket: Ticket
    prompt: np.ndarray
    size: int
    sampling: SamplingSettings
    version: int  # under which it was begun
    limits: tuple[int, ...] | None = None  # tokens of each attempt, in place of max_new_tokens
    listen: "Listen | None" = None  # to what each block wrote
    rollouts: dict[int, Rollout] = dataclasses.field(default_factory=dict)
    num_told: int = 0  # of these, that a driver in another process was told of


@dataclasses.dataclass(eq=False)
class Attempt:
    """One sample, with what each call wrote."""

    job: Job
    number: int
    order: int  # of submission, over all attempts of the replica
    started_s: float = 0.0
    length: int = 0
    tokens: list[np.ndarray] = dataclasses.field(default_factory=list)
    log_probs: list[np.ndarray] = dataclasses.field(default_factory=list)
    targets: list[np.ndarray] = dataclasses.field(default_factory=list)  # of what was read, if kept
    tool_turns: list[Turn] = dataclasses.field(default_factory=list)
    cache: Any = None  # prefix of all but the last token it wrote, while tools run and until read
    prefix: Any = None  # that it waits with for a slot, as member `member` of it
    member: int = 0
    versions: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # as of a `Rollout`
    text: TextStream | None = None  # of the last turn as far as stop texts were looked for
    num_told: int = 0  # calls that a driver in another process was told of

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"text": None, "num_told": 0}  # a text holds a tokenizer

    def __post_init__(self):
        self.versions = self.versions or [(0, self.job.version)]

    def extend(self, tokens: np.ndarray, log_probs: np.ndarray) -> None:
        if len(tokens):
            self.length += len(tokens)
            self.tokens.append(tokens)
            self.log_probs.append(log_probs)

    def written(self, since: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and log-probabilities of call number `since` and of those after it."""
        tokens, log_probs = self.tokens[since:], self.log_probs[since:]
        if not tokens:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        return np.concatenate(tokens), np.concatenate(log_probs)

    def extend_by_tools(self, tokens: np.ndarray, turn: Turn) -> None:
        """Tokens that the policy reads and did not write."""
        self.text = None
        self.tool_turns.append(turn)
        self.extend(tokens, np.zeros(len(tokens), np.float32))

    def read(self, targets: np.ndarray) -> None:
        """The router's choices for the sequence; -1 where this reading did not look."""
        before = self.targets and np.concatenate(self.targets)
        if self.cache is not None and len(before):
            targets = targets.copy()
            targets[: len(before)] = before
        self.targets = [targets]

    def forget(self) -> None:
        """Begins again: the same request draws the same tokens."""
        self.length = self.num_told = 0
        self.tokens.clear()
        self.log_probs.clear()
        self.tool_turns.clear()
        self.cache = self.text = None
        del self.versions[1:]

    @property
    def turn_start(self) -> int:
        """The start of the policy's last turn, counted in the response."""
        last = self.tool_turns[-1] if self.tool_turns else None
        return 0 if last is None else last.first + last.num_tokens

    @property
    def num_cached(self) -> int:
        """Tokens that `cache` holds once tools have answered: up to the policy's last but one."""
        return len(self.job.prompt) + self.tool_turns[-1].first - 1

    @property
    def turn_tokens(self) -> np.ndarray:
        """Tokens of the policy's last turn."""
        return np.concatenate(self.tokens)[self.turn_start :]

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns of policy and tools; () where no tool was called."""
        found, first = [], 0
        for turn in self.tool_turns:
            found += [Turn(role="policy", first=first, num_tokens=turn.first - first), turn]
            first = turn.first + turn.num_tokens
        if found:
            found.append(Turn(role="policy", first=first, num_tokens=self.length - first))
        return tuple(found)

    @property
    def loss_mask(self) -> np.ndarray:
        """bool [response]: true where the policy wrote the token."""
        mask = np.ones(self.length, bool)
        for turn in self.tool_turns:
            mask[turn.first : turn.first + turn.num_tokens] = False
        return mask

    def cut(self, num_tokens: int) -> None:
        """Without its last `num_tokens` tokens."""
        self.text, self.num_told = None, 0
        self.length -= num_tokens
        for calls in (self.tokens, self.log_probs, *([self.targets] if self.targets else [])):
            left = num_tokens
            while left:
                last = calls.pop()
                if len(last) > left:
                    calls.append(last[:-left])
                left -= min(left, len(last))

    def cut_at_stop(self, decode: Decode) -> bool:
        """Cuts off what stands behind the token that completes a stop text; False without one.

        The same tokens are kept however long blocks are.
        """
        stops = self.job.sampling.stops
        if not stops:
            return False
        self.text = self.text or TextStream(decode, stops)
        unread = self.turn_tokens[self.text.num_tokens :]
        for num_read, token in enumerate(unread.tolist(), 1):
            self.text.push(token)
            if self.text.is_stopped:
                self.cut(len(unread) - num_read)
                return True
        return False

    @property
    def routing(self) -> np.ndarray | None:
        """int16 [prompt and response, L, K], -1 where nothing was read; None if not recorded."""
        if not self.targets:
            return None
        read = np.concatenate(self.targets)
        missing = len(self.sequence) - len(read)  # the last token, which was drawn and never read
        return np.pad(read, ((0, missing), (0, 0), (0, 0)), constant_values=-1).astype(np.int16)

    @property
    def sequence(self) -> np.ndarray:
        """int32: the prompt and what was written behind it."""
        return np.concatenate([self.job.prompt, *self.tokens])

    @property
    def prompt_key(self) -> tuple[int, int]:
        """Equal for attempts that a prefill reads as one: those of a ticket without tokens."""
        return self.job.ticket.number, self.number if self.length else -1

    def finish_reason(self, end_ids: Container[int]) -> FinishReason | None:
        """The reason why no more tokens follow, stop texts apart; None while some do."""
        if self.tokens[-1][-1] in end_ids or self.tokens[-1][-1] in self.job.sampling.stop_ids:
            return "stop"
        return "length" if self.length >= self.most_tokens else None

    @property
    def most_tokens(self) -> int:
        limits = self.job.limits
        return self.job.sampling.max_new_tokens if limits is None else limits[self.number]

    @property
    def sampling_left(self) -> SamplingSettings:
        """The sampling of the rest."""
        sampling, left = self.job.sampling, self.most_tokens - self.length
        if left == sampling.max_new_tokens:
            return sampling
        return dataclasses.replace(sampling, max_new_tokens=left)

    def go_on_under(self, version: int) -> None:
        """Tokens from here on are of `version`."""
        if self.versions[-1][0] == self.length:
            self.versions.pop()
        self.versions.append((self.length, version))

    def to_rollout(self, reason: FinishReason, text: str, end_s: float) -> Rollout:
        """The record of the ended attempt; `text` is that of its last turn."""
        return Rollout(
            ticket=self.job.ticket.number,
            attempt=self.number,
            prompt=self.job.prompt,
            tokens=np.concatenate(self.tokens),
            loss_mask=self.loss_mask,
            engine_logprob=np.concatenate(self.log_probs),
            sampling=self.job.sampling,
            versions=tuple(self.versions),
            finish_reason=reason,
            text=text,
            started_s=self.started_s,
            ended_s=end_s,
            routing=self.routing,
            turns=self.turns,
        )


class PartialRollout(NamedTuple):
    """An unfinished response: int32 tokens and float32 log-probabilities, [tokens so far]."""

    tokens: np.ndarray
    log_probs: np.ndarray
    started_s: float


class PartialGroup(NamedTuple):
    """The responses of one ticket by attempt, all written under `version`."""

    version: int
    ended: dict[int, Rollout]
    unfinished: dict[int, PartialRollout]

    @property
    def num_tokens(self) -> int:
        """The number of tokens in unfinished responses, prompts apart."""
        return sum(len(unfinished.tokens) for unfinished in self.unfinished.values())


class PartialReport(NamedTuple):
    """The tokens that one attempt wrote since its last report: they begin at position `start` of
    the response, and replace what was reported from there on.
    """

    ticket: int
    version: int
    attempt: int
    start: int
    new: PartialRollout


class SentTickets(Container[int]):
    """Tickets that were sent to replicas and are open, by number, and what is written of them.

    May be used from any thread.
    """

    def __init__(self):
        self._lock = threading.RLock()
        self._tickets: dict[int, tuple[Ticket, int]] = {}  # and the version each is written under
        self._partials: dict[int, PartialGroup] = {}

    def __contains__(self, number: object) -> bool:
        return number in self._tickets

    def add(self, tickets: Iterable[Ticket], version: int) -> None:
        with self._lock:
            self._tickets |= {ticket.number: (ticket, version) for ticket in tickets}

    def keep(self, partials: Mapping[int, PartialGroup]) -> None:
        """Whole partials; each replaces what was known of its ticket."""
        with self._lock:
            self._partials |= {n: partial for n, partial in partials.items() if n in self}

    def report(self, report: PartialReport | Rollout) -> None:
        """A part of a response, or one that has ended."""
        with self._lock:
            if report.ticket not in self:
                return
            partial = self._partials.get(report.ticket)
            if partial is None or partial.version != report.version:
                partial = self._partials[report.ticket] = PartialGroup(report.version, {}, {})
            unfinished, attempt = partial.unfinished, report.attempt
            if isinstance(report, Rollout):
                unfinished.pop(attempt, None)
                partial.ended[attempt] = report
                return
            known = unfinished.get(attempt)
            if report.start and (known is None or len(known.tokens) < report.start):
                return  # what lies between was lost: the partial stays as long as it is
            unfinished[attempt] = report.new
            if report.start and known is not None:
                tokens, log_probs = (
                    np.concatenate([old[: report.start], new])
                    for old, new in zip(known[:2], report.new[:2], strict=True)
                )
                unfinished[attempt] = PartialRollout(tokens, log_probs, known.started_s)

    def partials(self, numbers: Iterable[int], version: int) -> dict[int, PartialGroup]:
        """These tickets' partial groups under `version`, by number."""
        with self._lock:
            found = {number: self._partials.get(number) for number in numbers}
        return {
            n: partial for n, partial in found.items() if partial and partial.version == version
        }

    def lost(self, numbers: Iterable[int]) -> list[tuple[Ticket, int, dict[int, PartialGroup]]]:
        """Those of these tickets that are open, to go on elsewhere: each with its version, and what
        is known of it.
        """
        with self._lock:
            found = [self._tickets[number] for number in numbers if number in self]
            return [(t, version, self.partials([t.number], version)) for t, version in found]

    def forget(self, numbers: Iterable[int]) -> None:
        """These tickets are not written any more."""
        with self._lock:
            for number in numbers:
                self._tickets.pop(number, None)
                self._partials.pop(number, None)

    def forget_version(self, version: int) -> None:
        """Nobody goes on with what was written under a version that is gone."""
        with self._lock:
            self._partials = {n: p for n, p in self._partials.items() if p.version != version}
            self._tickets = {n: sent for n, sent in self._tickets.items() if sent[1] != version}


Listen = Callable[[Attempt, FinishReason | None], None]  # after a block; the reason at the end


def prefill_of(
    attempts: Sequence[Attempt], seed: int
) -> tuple[list[np.ndarray], list[int], list[SampleRequest]]:
    """The prompts of a prefill, and the row and the request of each attempt; those with one
    `prompt_key` share a row.
    """
    prompts: dict[tuple[int, int], np.ndarray] = {}
    requests = []
    for attempt in attempts:
        if attempt.prompt_key not in prompts:
            prompts[attempt.prompt_key] = attempt.sequence
        ticket, sampling = attempt.job.ticket, attempt.sampling_left
        requests.append(SampleRequest.of(ticket, attempt.number, sampling, seed=seed))
    rows = {key: row for row, key in enumerate(prompts)}
    return list(prompts.values()), [rows[a.prompt_key] for a in attempts], requests


def to_host(attempts: Iterable[Attempt]) -> None:
    """Brings the prefixes that attempts wait with into host memory, as NumPy arrays."""
    found = jax.device_get({id(attempt.prefix): attempt.prefix for attempt in attempts})
    for attempt in attempts:
        attempt.prefix = found[id(attempt.prefix)]


class MigrationPayload(NamedTuple):
    """Tickets that leave a replica for another."""

    source: int  # number of that replica
    version: int
    jobs: tuple[Job, ...]  # with the responses that have ended
    attempts: tuple[Attempt, ...]  # the others; those that ran, or were to, have a prefix
    paused: tuple[Any, ...] = ()  # samples whose tools run

    def only(self, ticket_numbers: Container[int]) -> "MigrationPayload":
        """Without the tickets that are not among these."""
        jobs = tuple(job for job in self.jobs if job.ticket.number in ticket_numbers)
        return self._replace(
            jobs=jobs,
            attempts=tuple(attempt for attempt in self.attempts if attempt.job in jobs),
            paused=tuple(one for one in self.paused if one.attempt.job in jobs),
        )


def partials_of(
    version: int, jobs: Iterable[Job], attempts: Iterable[Attempt]
) -> dict[int, PartialGroup]:
    """By ticket number, what of each job is written; `attempts` are those that have not ended.

    They hold what the policy wrote. A response in which tools have answered begins again.
    """
    partials = {job.ticket.number: PartialGroup(version, dict(job.rollouts), {}) for job in jobs}
    for attempt in attempts:
        if attempt.length and not attempt.tool_turns:
            unfinished = PartialRollout(*attempt.written(0), attempt.started_s)
            partials[attempt.job.ticket.number].unfinished[attempt.number] = unfinished
    return partials
