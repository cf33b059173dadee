"""The gRPC interface: JetStream's `Orchestrator` by its method paths, and `loong.Control`.

Handlers are generic, so requests arrive as bytes and are read here: what is no message is answered
with INVALID_ARGUMENT. JetStream itself is not imported.

The first fields of messages are those of JetStream's `jetstream_proto`, number by number, so its
clients speak to us; ours begin at 100. The package has another name, since two sets of messages of
one name cannot live in one process. The descriptors are built here, from tables, which needs no
generated code and no compiler. Source: github.com/AI-Hypercomputer/JetStream, jetstream/core/proto.
"""

import asyncio
import math
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from loong_jax.rollout.serving.frontend import Frontend
from loong_jax.rollout.serving.openai_schema import MAX_TEMPERATURE, MIN_TEMPERATURE
from loong_jax.rollout.serving.request import (
    Busy,
    Event,
    Failed,
    Piece,
    Refused,
    Request,
    Unavailable,
)

PACKAGE = "loong_serving"

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "bool": _FIELD.TYPE_BOOL,
    "double": _FIELD.TYPE_DOUBLE,
    "float": _FIELD.TYPE_FLOAT,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "string": _FIELD.TYPE_STRING,
}

# message -> (label and type, name, number, its oneof); a type that is no scalar is a message
_MESSAGES: dict[str, tuple[tuple[str, str, int, str | None], ...]] = {
    "DecodeRequest": (
        ("int32", "max_tokens", 4, None),  # 0: as many as the server gives
        ("DecodeRequest.TextContent", "text_content", 5, "content"),
        ("DecodeRequest.TokenContent", "token_content", 6, "content"),
        ("DecodeRequest.Metadata", "metadata", 7, "metadata_optional"),
        ("int32", "num_samples", 8, None),  # 0: one
        ("string", "lora_adapter_id", 9, None),  # refused
        ("bool", "has_bos", 10, None),
        ("string", "request_id", 100, None),  # for Abort
        ("optional double", "temperature", 101, None),  # greedy where absent
        ("optional double", "top_p", 102, None),
        ("int32", "top_k", 103, None),
        ("double", "min_p", 104, None),
        ("optional int64", "seed", 105, None),
        ("repeated string", "stop", 106, None),
        ("double", "timeout_s", 107, None),  # 0: the server's; never longer than that
    ),
    "DecodeRequest.TextContent": (("string", "text", 1, None),),
    "DecodeRequest.TokenContent": (("repeated int32", "token_ids", 1, None),),
    "DecodeRequest.Metadata": (("float", "start_time", 1, None),),
    "DecodeResponse": (
        ("DecodeResponse.InitialContent", "initial_content", 2, "content"),
        ("DecodeResponse.StreamContent", "stream_content", 3, "content"),
        ("int32", "policy_version", 100, None),
    ),
    "DecodeResponse.InitialContent": (),
    "DecodeResponse.StreamContent": (
        ("repeated DecodeResponse.StreamContent.Sample", "samples", 1, None),
    ),
    "DecodeResponse.StreamContent.Sample": (
        ("string", "text", 1, None),
        ("repeated int32", "token_ids", 2, None),
        ("repeated float", "log_probs", 100, None),  # nats, of each token, as sampled
        ("string", "finish_reason", 101, None),  # stop or length, in its last message
    ),
    "HealthCheckRequest": (),
    "HealthCheckResponse": (("bool", "is_live", 1, None),),
    "AbortRequest": (("string", "request_id", 1, None),),
    "AbortResponse": (("bool", "was_running", 1, None),),
    "PauseRequest": (),
    "ResumeRequest": (),
    "StatusRequest": (),
    "StatusResponse": (
        ("bool", "is_ready", 1, None),
        ("bool", "is_paused", 2, None),
        ("bool", "is_stopping", 3, None),
        ("int32", "num_requests", 4, None),
        ("int32", "num_running", 5, None),
        ("int32", "num_waiting", 6, None),
    ),
}


def _build() -> types.SimpleNamespace:
    file = descriptor_pb2.FileDescriptorProto(
        name="loong_serving.proto", package=PACKAGE, syntax="proto3"
    )
    made: dict[str, Any] = {}
    for path, fields in _MESSAGES.items():
        parent, _, name = path.rpartition(".")
        made[path] = made[parent].nested_type.add() if parent else file.message_type.add()
        made[path].name = name
        for field in fields:
            _add_field(made[path], *field)
    pool = descriptor_pool.DescriptorPool()  # our own: the default one may know these names
    pool.AddSerializedFile(file.SerializeToString())
    found = {path: pool.FindMessageTypeByName(f"{PACKAGE}.{path}") for path in made}
    classes = {p: message_factory.GetMessageClass(d) for p, d in found.items() if "." not in p}
    return types.SimpleNamespace(**classes)


def _add_field(message: Any, kind: str, name: str, number: int, oneof: str | None) -> None:
    label, _, kind = kind.rpartition(" ")
    field = message.field.add(name=name, number=number)
    field.label = _FIELD.LABEL_REPEATED if label == "repeated" else _FIELD.LABEL_OPTIONAL
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    if label == "optional":  # absent and zero are told apart
        oneof, field.proto3_optional = f"_{name}", True
    if oneof is not None:
        names = [found.name for found in message.oneof_decl]
        if oneof not in names:
            message.oneof_decl.add(name=oneof)
            names.append(oneof)
        field.oneof_index = names.index(oneof)


messages = _build()

Context = grpc.aio.ServicerContext

_CODES = grpc.StatusCode
CODE_OF_FAILURE = {
    "engine": _CODES.INTERNAL,
    "timeout": _CODES.DEADLINE_EXCEEDED,
    "cancelled": _CODES.ABORTED,
    "slow_reader": _CODES.ABORTED,
    "stopping": _CODES.UNAVAILABLE,
}
MAX_RESPONSE_BYTES = 2**22


def make_server(frontend: Frontend) -> grpc.aio.Server:
    """To be started in the event loop that runs now; it listens nowhere yet."""
    limits = frontend.limits
    options = [
        ("grpc.max_receive_message_length", limits.max_body_bytes),
        ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
        ("grpc.max_metadata_size", 2**14),
        ("grpc.so_reuseport", 0),  # a port that is taken is an error, not a share
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.max_connections)
    orchestrator, unary = _Orchestrator(frontend), grpc.unary_unary_rpc_method_handler
    jetstreams = {
        "Decode": grpc.unary_stream_rpc_method_handler(orchestrator.decode),
        "HealthCheck": unary(orchestrator.health_check),
    }
    ours = {name: unary(method) for name, method in _control(frontend).items()}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("jetstream_proto.Orchestrator", jetstreams),
            grpc.method_handlers_generic_handler("loong.Control", ours),
        )
    )
    return server


class _Orchestrator:
    def __init__(self, frontend: Frontend):
        self.frontend = frontend

    async def health_check(self, data: bytes, context: Context) -> bytes:
        """Needs no key, as /health."""
        await _read(messages.HealthCheckRequest, data, context)
        is_live = self.frontend.scheduler.status().is_ready
        return messages.HealthCheckResponse(is_live=is_live).SerializeToString()

    async def decode(self, data: bytes, context: Context) -> None:
        await _let_in(self.frontend, context)
        asked = await _read(messages.DecodeRequest, data, context)
        timeout_s = self.frontend.limits.send_timeout_s
        try:
            request = await self._request(asked)
            async with self.frontend.submitted(request) as events:
                async for response in self._responses(request, events.get, context):
                    await asyncio.wait_for(context.write(response), timeout_s)
        except Refused as error:
            await context.abort(_CODES.INVALID_ARGUMENT, str(error))
        except Busy as error:
            after = (("retry-after", str(error.retry_after_s)),)
            await context.abort(_CODES.RESOURCE_EXHAUSTED, str(error), trailing_metadata=after)
        except Unavailable as error:
            await context.abort(_CODES.UNAVAILABLE, str(error))
        except TimeoutError:
            await context.abort(_CODES.ABORTED, f"A message was not taken for {timeout_s:g} s.")

    async def _request(self, asked: Any) -> Request:
        """Raises Refused."""
        limits = self.frontend.limits
        if asked.lora_adapter_id:
            raise Refused("lora_adapter_id: this server has no adapters. Leave it out.")
        kind = asked.WhichOneof("content")
        begin = not asked.has_bos
        if kind == "text_content":
            tokens = await self.frontend.tokens_of(asked.text_content.text, begin=begin)
        elif kind == "token_content":
            start = self.frontend.tokenizer.prompt_ids("") if begin else []
            tokens = np.array([*start, *asked.token_content.token_ids], np.int32)
        else:
            raise Refused("The request has no content. Send text_content or token_content.")
        if asked.max_tokens < 0 or asked.num_samples < 0 or asked.top_k < 0:
            raise Refused(
                f"max_tokens={asked.max_tokens}, num_samples={asked.num_samples} and "
                f"top_k={asked.top_k} must not be negative. Leave them out."
            )
        if len(asked.stop) > limits.max_stops or any(
            not 0 < len(stop) <= limits.max_stop_chars for stop in asked.stop
        ):
            raise Refused(
                f"stop: at most {limits.max_stops} texts of 1 to {limits.max_stop_chars} "
                "characters may be given."
            )
        temperature = asked.temperature if asked.HasField("temperature") else 0.0
        if temperature and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
            raise Refused(
                f"temperature={temperature} must be 0, or from {MIN_TEMPERATURE} to "
                f"{MAX_TEMPERATURE:g}."
            )
        sampling = self.frontend.sampling(
            [len(tokens)],
            max_tokens=asked.max_tokens or None,
            temperature=temperature,
            top_p=asked.top_p if asked.HasField("top_p") else 1.0,
            top_k=asked.top_k,
            min_p=asked.min_p,
            stops=tuple(asked.stop),
        )
        named = {"request_id": asked.request_id} if asked.request_id else {}
        return Request(
            prompts=(tokens,),
            sampling=sampling,
            num_samples=asked.num_samples or 1,
            seed=asked.seed if asked.HasField("seed") else None,
            timeout_s=_timeout_s(asked.timeout_s, limits.request_timeout_s),
            **named,
        )

    async def _responses(
        self,
        request: Request,
        get: Callable[[], Awaitable[Event]],
        context: Context,
    ) -> AsyncIterator[bytes]:
        num_left = request.total_samples
        while num_left:
            event = await get()
            if isinstance(event, Failed):
                await context.abort(CODE_OF_FAILURE[event.kind], event.message)
                return
            num_left -= event.reason is not None
            yield self._response(request, event)

    def _response(self, request: Request, event: Piece) -> bytes:
        """One entry per sample, as JetStream's clients expect; all but one are empty."""
        response = messages.DecodeResponse(policy_version=self.frontend.scheduler.version)
        samples = response.stream_content.samples
        for _ in range(request.total_samples):
            samples.add()
        sample = samples[event.index]
        sample.text = event.text
        sample.token_ids.extend(event.tokens)
        sample.log_probs.extend(event.log_probs)
        sample.finish_reason = event.reason or ""
        return response.SerializeToString()


def _control(frontend: Frontend) -> dict[str, Callable[[bytes, Context], Awaitable[bytes]]]:
    scheduler = frontend.scheduler

    def method(kind: Any, act: Callable[[Any], Any]):
        async def answer(data: bytes, context: Context) -> bytes:
            await _let_in(frontend, context)
            found = act(await _read(kind, data, context))
            if found is None:
                found = messages.StatusResponse(**scheduler.status()._asdict())
            return found.SerializeToString()

        return answer

    def abort(asked: Any) -> Any:
        """Ends the request of that id, whoever sent it."""
        return messages.AbortResponse(was_running=scheduler.cancel(asked.request_id))

    return {
        "Abort": method(messages.AbortRequest, abort),
        "Pause": method(messages.PauseRequest, lambda _: scheduler.pause()),
        "Resume": method(messages.ResumeRequest, lambda _: scheduler.resume()),
        "Status": method(messages.StatusRequest, lambda _: None),
    }


async def _read(kind: Any, data: bytes, context: Context) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.name
        await context.abort(_CODES.INVALID_ARGUMENT, f"{len(data)} bytes are no {name}.")


async def _let_in(frontend: Frontend, context: Context) -> None:
    found = dict(context.invocation_metadata() or ()).get("authorization")
    if not frontend.lets_in(found if isinstance(found, str) else None):
        await context.abort(
            _CODES.UNAUTHENTICATED,
            "The API key is missing or wrong. Send it as metadata: authorization, Bearer KEY.",
        )


def _timeout_s(asked: float, most: float) -> float:
    """The time asked for, where that is a positive number below `most`."""
    if math.isnan(asked) or asked < 0:
        raise Refused(f"timeout_s={asked} must be a positive number, or 0 for the server's own.")
    return min(asked, most) if asked else most
