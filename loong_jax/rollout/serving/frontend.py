"""The part that both interfaces share: keys, tokens, defaults; a request ends with its client."""

import asyncio
import contextlib
import dataclasses
import hmac
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.serving import request as requests
from loong_jax.rollout.serving.request import EventStream, Refused, Request, ServingLimits
from loong_jax.rollout.serving.scheduler import Scheduler


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frontend:
    """One model behind both interfaces."""

    scheduler: Scheduler
    tokenizer: Tokenizer
    limits: ServingLimits
    model_name: str
    chat_style: requests.ChatStyle = "plain"
    api_key: str | None = None  # None: everybody may ask
    started_s: int = 0  # when the server began, in seconds of Unix time

    def lets_in(self, authorization: str | None) -> bool:
        """True for `Authorization: Bearer KEY` with our key; takes as long for any wrong one."""
        if self.api_key is None:
            return True
        scheme, _, key = (authorization or "").partition(" ")
        is_equal = hmac.compare_digest(
            key.strip().encode("utf-8", "surrogateescape"), self.api_key.encode()
        )
        return is_equal and scheme.lower() == "bearer"

    async def tokens_of(self, text: str, *, begin: bool = True) -> np.ndarray:
        """Raises Refused."""
        return await _encoded(requests.text_tokens, self.tokenizer, text, begin=begin)

    async def tokens_of_chat(
        self, messages: Sequence[requests.Message], variables: Mapping[str, Any]
    ) -> np.ndarray:
        """Raises Refused."""
        return await _encoded(
            requests.chat_ids, self.tokenizer, messages, self.chat_style, variables
        )

    def sampling(
        self,
        prompt_lengths: Sequence[int],
        *,
        max_tokens: int | None,
        temperature: float = 1.0,
        **others: Any,
    ) -> SamplingSettings:
        """Settings of a request; temperature 0 is greedy. Raises Refused."""
        if max_tokens is None:
            room = self.scheduler.engine.config.room(max(prompt_lengths, default=0))
            max_tokens = max(1, min(self.limits.default_tokens, room))
        is_greedy = temperature == 0
        try:
            return SamplingSettings(
                temperature=1.0 if is_greedy else temperature,
                greedy=is_greedy,
                max_new_tokens=max_tokens,
                **others,
            )
        except ValueError as error:
            raise Refused(str(error)) from None

    @contextlib.asynccontextmanager
    async def submitted(self, request: Request) -> AsyncIterator[EventStream]:
        """The events of a request that ends with its time, and when its client goes."""
        events, name, timeout_s = EventStream(), request.request_id, request.timeout_s
        self.scheduler.submit(request, events)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout_s, self.scheduler.expire, name, timeout_s)
        try:
            yield events
        finally:
            timer.cancel()
            self.scheduler.cancel(name)


async def _encoded(encode: Callable[..., np.ndarray], *args: Any, **options: Any) -> np.ndarray:
    """In a thread of its own, since a long text takes its time. Raises Refused."""
    try:
        return await asyncio.to_thread(encode, *args, **options)
    except (ValueError, TypeError) as error:  # TypeError: the library's word for half a pair
        raise Refused(f"The text cannot be tokenized: {error}") from None
