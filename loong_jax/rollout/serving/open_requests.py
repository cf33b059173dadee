"""A request on its way: whether it may be taken up, and what of its samples was handed out."""

import dataclasses
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from loong_jax.rollout.attempts import Attempt
from loong_jax.rollout.serving.limits import Limits
from loong_jax.rollout.serving.request import Mailbox, Piece, Refused, Request
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


@dataclasses.dataclass(eq=False)
class Sample:
    """What of one sample has been handed out."""

    index: int
    text: TextStream
    num_chunks: int = 0  # of the attempt's lists
    has_ended: bool = False

    def take(self, attempt: Attempt, end_ids: Collection[int]) -> Piece | None:
        """What `attempt` has grown by since the last call, up to what ends it."""
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
    mailbox: Mailbox
    arrived_s: float
    tickets: list[int] = dataclasses.field(default_factory=list)
    samples: dict[tuple[int, int], Sample] = dataclasses.field(default_factory=dict)
    has_begun: bool = False  # some sample was in a slot
    was_requeued: bool = False
    is_cancelled: bool = False

    @property
    def num_left(self) -> int:
        return self.request.total_samples - sum(s.has_ended for s in self.samples.values())


def check(request: Request, engine: SlotEngine, limits: Limits) -> None:
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
            engine.prefill_length(len(prompt))
            engine.check_sampling(request.sampling)
        except ValueError as error:
            raise Refused(str(error)) from None
        left = room(engine, len(prompt))
        if request.sampling.max_new_tokens > left:
            raise Refused(
                f"a prompt of {len(prompt)} tokens leaves room for {left}, and "
                f"max_tokens={request.sampling.max_new_tokens}. Lower it or shorten the prompt."
            )


def room(engine: SlotEngine, prompt_length: int) -> int:
    """How many tokens can follow a prompt."""
    return engine.config.cache_length + 1 - prompt_length
