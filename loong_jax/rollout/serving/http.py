"""The OpenAI-compatible HTTP interface, with /health and /metrics beside it.

Of one connection: who is let in, its body in, its answer or error out while anybody reads. Bodies
are read under a limit of size and time, every message is sent under one of time.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from loong_jax.rollout.serving import openai_schema
from loong_jax.rollout.serving.frontend import Frontend
from loong_jax.rollout.serving.openai_schema import ApiError, Asked, TextOffsets
from loong_jax.rollout.serving.request import (
    Busy,
    EventStream,
    Failed,
    Piece,
    Refused,
    Request,
    ServingLimits,
    Unavailable,
)


class Sender:
    """`send`, with a limit of time on every message. Raises ClientDisconnect where it is over."""

    def __init__(self, send: Send, timeout_s: float):
        self._send, self._timeout_s = send, timeout_s
        self.has_begun = False

    async def __call__(self, message: AsgiMessage) -> None:
        self.has_begun = True
        try:
            await asyncio.wait_for(self._send(message), self._timeout_s)
        except (TimeoutError, OSError):
            raise ClientDisconnect from None


async def read_body(http: HttpRequest, limits: ServingLimits) -> bytes:
    """The whole body. Raises ApiError where it is too long or too slow, ClientDisconnect if it
    stops.
    """
    most, limit_s = limits.max_body_bytes, limits.body_timeout_s
    too_long = ApiError(413, f"The body has more than {most} bytes. Shorten it.", code="too_long")
    named = http.headers.get("content-length", "0")
    if named.isdecimal() and int(named) > most:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            async for part in http.stream():
                body += part
                if len(body) > most:
                    raise too_long
    except TimeoutError:
        raise ApiError(408, f"The body took longer than {limit_s:g} s.") from None
    return bytes(body)


async def while_connected(receive: Receive, answer) -> Any:
    """Runs `answer` until it is done or the client goes; then raises ClientDisconnect."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.create_task(answer), asyncio.create_task(watch())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
    return tasks[0].result()


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


log = logging.getLogger(__name__)

STATUS_OF = {"engine": 500, "timeout": 504, "cancelled": 409, "slow_reader": 408, "stopping": 503}


class Completions:
    """Both kinds of completions, as an ASGI application of its own."""

    def __init__(self, frontend: Frontend, *, is_chat: bool):
        self.frontend, self.is_chat = frontend, is_chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = Sender(send, self.frontend.limits.send_timeout_s)
        try:
            asked, request = await self._read(HttpRequest(scope, receive))
            async with self.frontend.submitted(request) as events:
                if asked.streams:
                    stream = self._stream(asked, request, events)
                    await while_connected(receive, _send_events(stream, sender))
                else:
                    whole = self._whole(asked, request, events)
                    answer = JSONResponse(await while_connected(receive, whole))
                    await answer(scope, receive, sender)
        except ClientDisconnect:
            log.debug("a client went before its answer was complete")
        except Exception as error:
            if sender.has_begun:
                raise
            await error_response(error)(scope, receive, sender)

    async def _read(self, http: HttpRequest) -> tuple[Asked, Request]:
        frontend = self.frontend
        let_in(frontend, http.headers.get("authorization"))
        body = openai_schema.parse_json(await read_body(http, frontend.limits))
        asked = openai_schema.parse(body, is_chat=self.is_chat, limits=frontend.limits)
        name = frontend.model_name if body.get("model") is None else body["model"]
        if not isinstance(name, str):
            raise ApiError(400, "model must be a text.", param="model")
        check_model(frontend, name)
        if self.is_chat:
            tokens = [await frontend.tokens_of_chat(asked.messages, asked.variables)]
        else:
            tokens = [
                await frontend.tokens_of(text)
                if isinstance(text, str)
                else np.array(text, np.int32)
                for text in asked.prompts
            ]
        return asked, Request(
            prompts=tuple(tokens),
            sampling=frontend.sampling([len(prompt) for prompt in tokens], **asked.sampling),
            num_samples=asked.num_samples,
            seed=asked.seed,
            timeout_s=frontend.limits.request_timeout_s,
        )

    # ---- answers --------------------------------------------------------------------------------

    async def _whole(self, asked: Asked, request: Request, events: EventStream) -> dict[str, Any]:
        found: list[list[Piece]] = [[] for _ in range(request.total_samples)]
        async for event in _events(events, request):
            found[event.index].append(event)
        body = self._head(request, "chat.completion" if self.is_chat else "text_completion")
        body["choices"], num_tokens = [], 0
        for index, pieces in enumerate(found):
            tokens = tuple(token for piece in pieces for token in piece.tokens)
            log_probs = tuple(log_prob for piece in pieces for log_prob in piece.log_probs)
            text = "".join(piece.text for piece in pieces)
            whole = Piece(index, text, tokens, log_probs, pieces[-1].reason)
            message = {"role": "assistant", "refusal": None}
            body["choices"].append(self._choice(whole, asked, TextOffsets(), **message))
            num_tokens += len(tokens)
        body["usage"] = openai_schema.usage(_num_prompt_tokens(request), num_tokens)
        return body

    async def _stream(
        self, asked: Asked, request: Request, events: EventStream
    ) -> AsyncIterator[dict[str, Any]]:
        """The chunks of an answer; an error is the last one."""
        head = self._head(request, "chat.completion.chunk" if self.is_chat else "text_completion")
        if asked.wants_usage:
            head["usage"] = None
        if self.is_chat:
            for index in range(request.total_samples):
                delta = {"role": "assistant", "content": ""}
                yield head | {"choices": [_chunk(index, delta=delta)]}
        num_tokens = 0
        offsets = [TextOffsets() for _ in range(request.total_samples)]
        try:
            async for event in _events(events, request):
                chunk = self._choice(event, asked, offsets[event.index])
                num_tokens += len(event.tokens)
                yield head | {"choices": [chunk]}
        except ApiError as error:
            yield error.body
            return
        if asked.wants_usage:
            counts = openai_schema.usage(_num_prompt_tokens(request), num_tokens)
            yield head | {"choices": [], "usage": counts}

    def _choice(
        self, choice: Piece, asked: Asked, offsets: TextOffsets, **message: Any
    ) -> dict[str, Any]:
        log_probs = None
        if asked.wants_log_probs and choice.tokens:
            pieces = [self.frontend.tokenizer.token_bytes(token) for token in choice.tokens]
            if self.is_chat:
                log_probs = openai_schema.chat_log_probs(pieces, choice.log_probs)
            else:
                log_probs = openai_schema.text_log_probs(pieces, choice.log_probs, offsets)
        said: dict[str, Any] = {"text": choice.text}
        if self.is_chat and message:
            said = {"message": message | {"content": choice.text}}
        elif self.is_chat:
            is_empty = choice.reason is not None and not choice.text
            said = {"delta": {} if is_empty else {"content": choice.text}}
        return _chunk(choice.index, **said, logprobs=log_probs, finish_reason=choice.reason)

    def _head(self, request: Request, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        return {
            "id": f"{prefix}-{request.request_id}",
            "object": kind,
            "created": int(time.time()),
            "model": self.frontend.model_name,
            "system_fingerprint": f"version-{self.frontend.scheduler.version}",
        }


async def _send_events(bodies: AsyncIterator[dict[str, Any]], sender: Sender) -> None:
    """Each as an event, and [DONE] behind them unless the last one was an error."""
    kind = (b"content-type", b"text/event-stream; charset=utf-8")
    headers = [kind, (b"cache-control", b"no-cache")]
    await sender({"type": "http.response.start", "status": 200, "headers": headers})

    async def send(data: str) -> None:
        event = f"data: {data}\n\n".encode()
        await sender({"type": "http.response.body", "body": event, "more_body": True})

    async for body in bodies:
        await send(json.dumps(body))
        if "error" in body:
            break
    else:
        await send("[DONE]")
    await sender({"type": "http.response.body", "body": b""})


async def _events(events: EventStream, request: Request) -> AsyncIterator[Piece]:
    """Until every sample has ended. Raises ApiError where the request failed."""
    num_left = request.total_samples
    while num_left:
        event = await events.get()
        if isinstance(event, Failed):
            raise ApiError(STATUS_OF[event.kind], event.message, kind=event.kind, code=event.kind)
        num_left -= event.reason is not None
        yield event


def _num_prompt_tokens(request: Request) -> int:
    return sum(len(prompt) for prompt in request.prompts)


def _chunk(
    index: int, *, logprobs: Any = None, finish_reason: str | None = None, **content: Any
) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}


def make_app(frontend: Frontend) -> Starlette:
    """The ASGI application."""

    async def models(request: HttpRequest) -> Response:
        let_in(frontend, request.headers.get("authorization"))
        return JSONResponse({"object": "list", "data": [_model(frontend)]})

    async def model(request: HttpRequest) -> Response:
        let_in(frontend, request.headers.get("authorization"))
        check_model(frontend, request.path_params["name"])
        return JSONResponse(_model(frontend))

    async def health(_: HttpRequest) -> Response:
        status = frontend.scheduler.status()
        return JSONResponse(status._asdict(), 200 if status.is_ready else 503)

    async def metrics(_: HttpRequest) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(frontend.scheduler.metrics.text(), media_type=kind)

    routes = [
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/v1/completions", Completions(frontend, is_chat=False), methods=["POST"]),
        Route("/v1/chat/completions", Completions(frontend, is_chat=True), methods=["POST"]),
        Route("/health", health),
        Route("/metrics", metrics),
    ]
    handlers = {ApiError: _told, HTTPException: _routing_error, 500: _told}
    return Starlette(routes=routes, exception_handlers=handlers)


def _model(frontend: Frontend) -> dict[str, Any]:
    return {
        "id": frontend.model_name,
        "object": "model",
        "created": frontend.started_s,
        "owned_by": "loong_jax",
        "max_model_len": frontend.scheduler.engine.config.room(0),
    }


async def _told(_: HttpRequest, error: Exception) -> Response:
    return error_response(error)


async def _routing_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:100]}: {error.detail}."
    return error_response(ApiError(error.status_code, message, headers=error.headers))
