"""A request on its way: if it may be taken up, its samples, and what of them was handed out."""

import dataclasses
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from loong_jax.rollout.attempts import Attempt
from loong_jax.rollout.records import FinishReason
from loong_jax.rollout.replica import Replica
from loong_jax.rollout.serving.request import EventStream, Piece, Refused, Request, ServingLimits
from loong_jax.rollout.serving.text import TextStream
from loong_jax.rollout.slot_engine import SlotEngine


class Status(NamedTuple):
    """How much there is to do."""

    is_ready: bool
    is_paused: bool
    is_stopping: bool
    num_requests: int
    num_running: int  # samples in slots
    num_waiting: int  # samples without one


class Progress(NamedTuple):
    """A sample that may have grown; `reason` once it has ended."""

    attempt: Attempt
    reason: FinishReason | None


class StreamingReplica(Replica):
    """Adds to `Replica` what clients need who wait for single samples."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._just_ended: list[Progress] = []

    def harvest(self) -> list[Progress]:
        """Every sample in a slot, and those that ended since the last harvest."""
        ended, self._just_ended = self._just_ended, []
        return ended + [Progress(attempt, None) for attempt in self._slots]

    def end(self, attempt: Attempt) -> None:
        """Ends a sample that is in a slot, as if it had drawn a token that stops it."""
        self._slots.stop([self._slots.index(attempt)], self.version)
        self._end_attempt(attempt, "stop", self._clock())
        self._just_ended.pop()  # whoever ends it knows
        self._complete(attempt.job)

    def _end_attempt(self, attempt: Attempt, reason: FinishReason, end_s: float) -> None:
        super()._end_attempt(attempt, reason, end_s)
        self._just_ended.append(Progress(attempt, reason))


@dataclasses.dataclass(eq=False)
class Sample:
    """How much of one sample has been handed out."""

    index: int
    text: TextStream
    num_chunks: int = 0  # of the attempt's lists
    has_ended: bool = False

    def take(self, attempt: Attempt, end_ids: Collection[int]) -> Piece | None:
        """The growth of `attempt` since the last call, up to what ends it."""
        chunks = attempt.tokens[self.num_chunks :]
        if not chunks:
            return None
        log_probs = np.concatenate(attempt.log_probs[self.num_chunks :])
        self.num_chunks = len(attempt.tokens)
        tokens: list[int] = []
        text = ""
        for token in np.concatenate(chunks).tolist():
            tokens.append(token)
            if token in end_ids:
                break
            text += self.text.push(token)
            if self.text.is_stopped:
                break
        return Piece(self.index, text, tuple(tokens), tuple(log_probs[: len(tokens)].tolist()))


@dataclasses.dataclass(eq=False)
class OpenRequest:
    """A request on its way."""

    request: Request
    events: EventStream
    arrived_s: float
    tickets: list[int] = dataclasses.field(default_factory=list)
    samples: dict[tuple[int, int], Sample] = dataclasses.field(default_factory=dict)
    has_begun: bool = False  # some sample was in a slot
    was_requeued: bool = False
    is_cancelled: bool = False

    @property
    def num_left(self) -> int:
        return self.request.total_samples - sum(s.has_ended for s in self.samples.values())


def check(request: Request, engine: SlotEngine, limits: ServingLimits) -> None:
    """Raises Refused for what this engine and these limits can never do."""
    if not 0 < request.total_samples <= limits.max_samples:
        raise Refused(
            f"{len(request.prompts)} prompts with n={request.num_samples} are "
            f"{request.total_samples} samples; a request may ask for 1 to "
            f"{limits.max_samples}. Split it."
        )
    vocabulary = engine.get_tokenizer().vocab_size
    for prompt in request.prompts:
        if len(prompt) and not (prompt.min() >= 0 and prompt.max() < vocabulary):
            odd = next(int(token) for token in prompt if not 0 <= token < vocabulary)
            raise Refused(f"token {odd} is not in 0..{vocabulary - 1}, the vocabulary.")
        try:
            engine.config.prefill_length(len(prompt))
            engine.config.check_sampling(request.sampling)
        except ValueError as error:
            raise Refused(str(error)) from None
        left = engine.config.room(len(prompt))
        if request.sampling.max_new_tokens > left:
            raise Refused(
                f"a prompt of {len(prompt)} tokens leaves room for {left}, and "
                f"max_tokens={request.sampling.max_new_tokens}. Lower it or shorten the prompt."
            )
