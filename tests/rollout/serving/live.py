"""A server in a thread of this process, over a tiny model with random weights."""

import asyncio
import contextlib
import functools
import http.client
import json
import queue
import socket
import threading

import jax
import numpy as np

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models import moe
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.serving.frontend import Frontend
from loong_jax.rollout.serving.grpc_service import messages
from loong_jax.rollout.serving.request import ServingLimits
from loong_jax.rollout.serving.scheduler import Metrics, Scheduler
from loong_jax.rollout.serving.server import Address, serve
from tests.doubles import tiny
from tests.processes import wait_until
from tests.rollout import engine_checks

KEY = "a key for tests"
GRPC_KEY = (("authorization", f"Bearer {KEY}"),)
LIMITS = ServingLimits(
    max_queued=24,
    max_samples=8,
    max_unread=64,
    max_body_bytes=2**16,
    max_connections=64,
    default_tokens=16,
    request_timeout_s=60.0,
    body_timeout_s=1.0,
    send_timeout_s=1.0,
    drain_timeout_s=5.0,
)


@functools.cache
def engine_and_weights():
    """Compiled once for all tests."""
    config = tiny.smallest_config(num_layers=1)
    graphdef, weights = moe.init_weights(config, jax.random.key(0))
    weights["head"] = weights["head"] * 4
    shapes = tiny.engine_shapes(
        slots_per_replica=4,
        cache_length=128,
        prefill_lengths=(32,),
        prefill_prompts=2,
        prefill_members=4,
        chunked_prefill=True,
        truncation=True,
        pages=PageConfig(num_pages=36, page_size=16),
    )
    engine = engine_for(graphdef, config, AsciiTokenizer(), shapes)
    return engine, weights


def decoding(channel):
    """The call of gRPC that takes a request's bytes and gives a stream of answers."""
    return channel.unary_stream(
        "/jetstream_proto.Orchestrator/Decode",
        response_deserializer=messages.DecodeResponse.FromString,
    )


class Server:
    """`port` and `grpc_port` on 127.0.0.1, from `with running(...)`."""

    def __init__(self, scheduler, frontend):
        self.scheduler, self.frontend = scheduler, frontend
        self.port = self.grpc_port = 0
        self.all_ended = None

    def http(self, method, path, body=None, *, key=KEY, headers=None, timeout=60.0):
        """Status, headers and JSON (or text) of the answer; `body` is an object or bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
            sent = {"Authorization": f"Bearer {key}"} | (headers or {})
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            text = response.read().decode()
            if response.headers.get_content_type() == "application/json":
                return response.status, response.headers, json.loads(text)
            return response.status, response.headers, text
        finally:
            connection.close()

    def post(self, path, body, **options):
        return self.http("POST", path, body, **options)

    @contextlib.contextmanager
    def sending(self, path, body, *, length=None, **options):
        """A socket over which this much of a request was sent."""
        with socket.socket() as sock:
            sock.settimeout(10)
            for option, value in options.items():
                sock.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
            sock.connect(("127.0.0.1", self.port))
            length = len(body) if length is None else length
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
            sock.sendall(f"{head}Authorization: Bearer {KEY}\r\n\r\n".encode() + body)
            yield sock

    def is_empty(self):
        status = self.scheduler.status()
        return status.num_requests == status.num_running == status.num_waiting == 0

    def wait_until_empty(self, timeout_s=20.0):
        wait_until(self.is_empty, timeout_s)

    def check_no_leak(self):
        """No request, slot, sample or page is held, and the books of the pages balance."""
        self.wait_until_empty()
        found = queue.SimpleQueue()
        self.scheduler.group.ask(0, lambda replica: found.put(_check(replica)))
        assert found.get(timeout=20) is None


def _check(replica):
    """In the replica's thread, after all commands: what is wrong with it."""
    try:
        assert replica.is_empty
        assert replica.active_slots == 0
        engine_checks.check(replica)
    except AssertionError as error:
        return error


@contextlib.contextmanager
def running(*, limits=LIMITS, key=KEY, engine=None, weights=None, style="plain"):
    """A server that answers; it is drained and joined at the end."""
    if engine is None:
        engine, weights = engine_and_weights()
    scheduler = Scheduler(engine, weights, limits=limits, metrics=Metrics(), version=7)
    frontend = Frontend(
        scheduler=scheduler,
        tokenizer=engine.tokenizer,
        limits=limits,
        model_name="tiny",
        chat_style=style,
        api_key=key,
    )
    server = Server(scheduler, frontend)
    ready, failure = threading.Event(), []
    control = {}

    def on_ready(bound):
        server.port, server.grpc_port = bound.port, bound.grpc_port
        ready.set()

    async def main():
        control["loop"], control["stop"] = asyncio.get_running_loop(), asyncio.Event()
        server.all_ended = await serve(
            frontend, Address(port=0, grpc_port=0), on_ready=on_ready, stop=control["stop"]
        )

    def work():
        try:
            asyncio.run(main())
        except BaseException as error:
            failure.append(error)
            ready.set()

    scheduler.start()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        if failure:
            raise failure[0]
        socket.create_connection(("127.0.0.1", server.port), timeout=5).close()  # ready means it
        yield server
    finally:
        if not failure:
            control["loop"].call_soon_threadsafe(control["stop"].set)
        thread.join(60)
    assert not failure, failure
    assert not thread.is_alive()


def prompt(length):
    return (np.arange(length) * 7 % 90 + 33).tolist()
