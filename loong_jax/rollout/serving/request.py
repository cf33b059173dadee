"""Limits, requests and events: how clients and the scheduler talk; conversations as tokens.

Of the styles of a conversation, `template` is the chat template that comes with the weights.
`plain` is how our own recipes pose a problem: <bos> and the text; the messages of a conversation
follow each other as they are. `longcat` is how LongCat-Flash-Chat holds a conversation, for weights
that came without their template: rounds are numbered from 0, and an answer ends with a tag of its
own.
"""

import asyncio
import dataclasses
import json
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError, LoongError
from loong_jax.rollout.records import SamplingSettings

FailureKind = Literal["engine", "timeout", "cancelled", "slow_reader", "stopping"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingLimits:
    """Every wait ends and every queue is bounded by one of these."""

    max_queued: int = 256  # samples that wait for a slot; more are refused with 429
    max_samples: int = 64  # of one request: prompts times n
    max_stops: int = 4  # stop strings of one request
    max_stop_chars: int = 256  # of one stop string
    max_unread: int = 256  # events that a client has not taken yet; then it is cut off
    max_body_bytes: int = 2**20  # of one HTTP request or gRPC message
    max_connections: int = 512  # HTTP connections; further ones are answered with 503
    default_tokens: int = 256  # of a completion that names no maximum, where they fit
    request_timeout_s: float = 600.0  # from arrival to the last token, queue included
    body_timeout_s: float = 30.0  # for a client to send its request
    send_timeout_s: float = 30.0  # for a client to take a piece of its answer
    drain_timeout_s: float = 30.0  # for running requests once the server is asked to stop

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ConfigError(f"{field.name}={value} must be positive. Raise it.")


class Busy(LoongError):
    """There is no room for this request now; `retry_after_s` is a guess at when there will be."""

    def __init__(self, message: str, retry_after_s: int):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(LoongError):
    """The server is stopping, or its engine does not start."""


class Refused(LoongError, ValueError):
    """The request breaks a rule; sent again it would break it again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """`num_samples` continuations of each prompt. Sample j of prompt i has the index

    i * num_samples + j. With equal `seed`, prompts and settings the samples are equal too. The
    `stops` of `sampling` end a sample and are left out of its text.
    """

    prompts: tuple[np.ndarray, ...]  # int32, each
    sampling: SamplingSettings
    num_samples: int = 1
    seed: int | None = None
    timeout_s: float = 600.0
    request_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(12))

    @property
    def total_samples(self) -> int:
        return len(self.prompts) * self.num_samples


class Piece(NamedTuple):
    """More of one sample. Text that may be the beginning of a stop string comes later."""

    index: int
    text: str
    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()  # nats, of each token, as sampled
    reason: Literal["stop", "length"] | None = None  # of the last piece, which has no tokens


class Failed(NamedTuple):
    """The whole request ends here."""

    kind: FailureKind
    message: str


Event = Piece | Failed


class EventStream:
    """Events from the scheduler's thread to one client in an event loop.

    To be made in the loop that reads it. The writer looks at `num_unread` and gives up a client
    that does not read, so the box stays small.
    """

    def __init__(self):
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._events: deque[Event] = deque()

    @property
    def num_unread(self) -> int:
        return len(self._events)

    def put(self, events: Sequence[Event]) -> None:
        """Adds events, from any thread. Dropped where the loop has ended with its clients."""
        self._events.extend(events)
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop is closed
            self._events.clear()

    async def get(self) -> Event:
        while not self._events:
            self._ready.clear()
            await self._ready.wait()
        return self._events.popleft()


# ---- texts and conversations to tokens

ChatStyle = Literal["template", "plain", "longcat"]


class Message(NamedTuple):
    role: Literal["system", "user", "assistant"]
    content: str


def choose_style(asked: ChatStyle | None, tokenizer: Tokenizer, hf_config: str | None) -> ChatStyle:
    """The template of the weights, where there is one and nothing else is asked for.

    `hf_config` is the config.json that the weights came with. Raises ConfigError where there is no
    template to follow.
    """
    if asked == "template" and tokenizer.chat is None:
        raise ConfigError(
            "chat_style=template, and no chat template lies beside the tokenizer. Put "
            "chat_template.jinja there, or choose another style."
        )
    if asked is not None:
        return asked
    if tokenizer.chat is not None:
        return "template"
    kind = "" if hf_config is None else json.loads(hf_config).get("model_type", "longcat_flash")
    return "longcat" if str(kind).startswith("longcat") else "plain"


def text_tokens(tokenizer: Tokenizer, text: str, *, begin: bool = True) -> np.ndarray:
    """int32, with <bos> in front if `begin`. Raises ValueError for text that has no tokens."""
    return np.array(tokenizer.prompt_ids(text) if begin else tokenizer.encode(text), np.int32)


def chat_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    style: ChatStyle,
    variables: Mapping[str, Any] | None = None,
) -> np.ndarray:
    """int32: a conversation that the model is to go on with; `variables` go to its template.

    A last message of the assistant is continued. Raises ConfigError for what the template refuses.
    """
    if style != "template" or tokenizer.chat is None:
        return text_tokens(tokenizer, chat_text(messages, style))
    is_open = messages[-1].role == "assistant"
    given = [message._asdict() for message in messages]
    found = tokenizer.prompt_ids(given, continue_final_message=is_open, **(variables or {}))
    return np.array(found, np.int32)


def chat_text(messages: Sequence[Message], style: ChatStyle) -> str:
    """A conversation that the model is to go on with, without <bos>."""
    if style != "longcat":
        return "\n".join(message.content for message in messages)
    parts, num_rounds = [], 0
    for message in messages:
        if message.role == "system":
            parts.append(f"SYSTEM:{message.content}")
        elif message.role == "user":
            parts.append(f"[Round {num_rounds}] USER:{message.content}")
            num_rounds += 1
        else:
            parts.append(f"ASSISTANT:{message.content}</longcat_s>")
    if messages[-1].role == "assistant":  # its answer goes on
        return " ".join(parts).removesuffix("</longcat_s>")
    return " ".join((*parts, "ASSISTANT:"))
