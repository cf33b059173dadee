"""One HTTP connection: who is let in, its body in, its answer or error out while anybody reads.

Bodies are read under a limit of size and time, every message is sent under one of time.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Send

from loong_jax.rollout.serving.frontend import Frontend
from loong_jax.rollout.serving.openai_schema import ApiError
from loong_jax.rollout.serving.request import Busy, Refused, ServingLimits, Unavailable

log = logging.getLogger(__name__)


class ClientGone(Exception):
    """Nobody reads the answer."""


class Sender:
    """`send`, with a limit of time on every message."""

    def __init__(self, send: Send, timeout_s: float):
        self._send, self._timeout_s = send, timeout_s
        self.has_begun = False

    async def __call__(self, message: AsgiMessage) -> None:
        self.has_begun = True
        try:
            await asyncio.wait_for(self._send(message), self._timeout_s)
        except (TimeoutError, OSError):
            raise ClientGone from None

    async def whole(self, response: Response) -> None:
        headers = response.raw_headers
        start = {"type": "http.response.start", "status": response.status_code, "headers": headers}
        await self(start)
        await self({"type": "http.response.body", "body": bytes(response.body)})

    async def begin_events(self) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
        ]
        await self({"type": "http.response.start", "status": 200, "headers": headers})

    async def event(self, body: Mapping[str, Any]) -> None:
        await self.data(f"data: {json.dumps(body)}\n\n".encode())

    async def data(self, data: bytes) -> None:
        await self({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self({"type": "http.response.body", "body": b""})


async def read_body(http: HttpRequest, receive: Receive, limits: ServingLimits) -> bytes:
    """The whole body. Raises ApiError where it is too long or too slow, ClientGone if it stops."""
    most = limits.max_body_bytes
    too_long = ApiError(413, f"The body has more than {most} bytes. Shorten it.", code="too_long")
    named = http.headers.get("content-length", "0")
    if named.isdecimal() and int(named) > most:
        raise too_long
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                size += len(message.get("body", b""))
                if size > most:
                    raise too_long
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        limit_s = limits.body_timeout_s
        raise ApiError(408, f"The body took longer than {limit_s:g} s.") from None


async def while_connected(receive: Receive, answer) -> None:
    """Runs `answer` until it is done or the client goes; then raises ClientGone."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.create_task(answer), asyncio.create_task(watch())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientGone
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
    tasks[0].result()


def let_in(frontend: Frontend, authorization: str | None) -> None:
    if not frontend.lets_in(authorization):
        raise ApiError(
            401,
            "The API key is missing or wrong. Send it as `Authorization: Bearer KEY`.",
            kind="authentication_error",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def check_model(frontend: Frontend, name: str) -> None:
    if name != frontend.model_name:
        raise ApiError(
            404,
            f"The model {name[:100]!r} is not here; {frontend.model_name!r} is.",
            kind="not_found_error",
            param="model",
            code="model_not_found",
        )


def error_response(error: Exception) -> Response:
    if isinstance(error, Busy):
        headers = {"Retry-After": str(error.retry_after_s)}
        error = ApiError(429, str(error), kind="rate_limit_error", code="busy", headers=headers)
    elif isinstance(error, Refused):
        error = ApiError(400, str(error))
    elif isinstance(error, Unavailable):
        error = ApiError(503, str(error), kind="server_error", code="stopping")
    elif not isinstance(error, ApiError):
        log.error("a request met a mistake of ours", exc_info=error)
        error = ApiError(500, f"The server failed: {type(error).__name__}.", kind="server_error")
    return JSONResponse(error.body, error.status, headers=error.headers)
