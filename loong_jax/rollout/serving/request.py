"""Limits, requests and events: how clients and the scheduler talk."""

import asyncio
import dataclasses
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

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
