"""What happens when there is too much, too slow, or broken: the server lives on."""

import asyncio
import contextlib
import dataclasses
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from loong_jax.rollout.paged_engine import PagedEngine
from loong_jax.rollout.serving.request import EventStream
from tests.processes import wait_until
from tests.rollout.serving import live

CHAT = "/v1/chat/completions"


def ask(**settings):
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40} | settings


def ask_for_long(server):
    """A request whose answer is known to be long; without a seed it may end after a token."""
    requests = (ask(max_tokens=120, seed=seed) for seed in range(50))
    return next(r for r in requests if num_tokens(server.post(CHAT, r)[2]) > 40)


def num_tokens(answer):
    return answer["usage"]["completion_tokens"]


def test_a_full_queue_answers_429_and_empties():
    limits = dataclasses.replace(live.LIMITS, max_queued=4)
    with live.running(limits=limits) as server:
        server.scheduler.pause()
        with contextlib.ExitStack() as stack:
            waiting = threading.Thread(target=lambda: server.post(CHAT, ask(n=8)))
            waiting.start()
            stack.callback(waiting.join, 60)
            wait_until(lambda: server.scheduler.status().num_waiting == 8)
            status, headers, answer = server.post(CHAT, ask())
            assert status == 429
            assert 1 <= int(headers["Retry-After"]) <= 60
            assert answer["error"]["type"] == "rate_limit_error"
            assert "at most 8 may" in answer["error"]["message"]
            server.scheduler.resume()
        assert server.post(CHAT, ask())[0] == 200
        server.check_no_leak()


def test_a_request_that_takes_too_long_fails_and_frees_its_slots():
    limits = dataclasses.replace(live.LIMITS, request_timeout_s=0.3)
    with live.running(limits=limits) as server:
        server.scheduler.pause()
        for streams in (False, True):
            status, _, answer = server.post(CHAT, ask(stream=streams))
            error = json.loads(answer.strip().split("data: ")[-1]) if streams else answer
            assert status == (200 if streams else 504)
            assert error["error"]["message"] == "The request took longer than 0.3 s."
        server.check_no_leak()


def test_a_reader_that_does_not_read_loses_its_slot():
    """Its events pile up until the limit; the answer of another goes on meanwhile."""
    limits = dataclasses.replace(live.LIMITS, max_unread=3, send_timeout_s=0.5)
    with live.running(limits=limits) as server:
        body = json.dumps(ask(n=4, stream=True, max_tokens=120, logprobs=True)).encode()
        slow = server.scheduler.metrics.requests.labels("slow_reader")._value
        with _blocked_sends(server), server.sending(CHAT, body, SO_RCVBUF=1024):
            wait_until(lambda: slow.get() == 1)
        assert server.post(CHAT, ask(max_tokens=2))[0] == 200  # too few events to pile up
        server.check_no_leak()


@contextlib.contextmanager
def _blocked_sends(server):
    """Nothing is taken from any events, as if the socket of its client were full.

    The kernel buffers megabytes on loopback, more than this model can write.
    """
    taken = EventStream.get

    async def never(self):
        await asyncio.sleep(0.2)
        return await taken(self)

    EventStream.get = never
    try:
        yield
    finally:
        EventStream.get = taken


class Broken(PagedEngine):
    """The engine of the other tests, with its programs, that fails when it is told to."""

    def __init__(self, engine):
        self.__dict__.update(engine.__dict__)
        self.failures = []  # names of the methods whose next calls fail, in order
        self.fails_at_block = None  # how many blocks come before one that fails
        self.block_s = 0.0  # how long a block takes longer

    def _may_fail(self, name):
        if self.failures[:1] == [name]:
            self.failures.pop(0)
            raise RuntimeError(f"{name} is broken")

    def init_decode_state(self):
        self._may_fail("init_decode_state")
        return super().init_decode_state()

    def begin_prefill(self, *args, **kwargs):
        self._may_fail("begin_prefill")
        return super().begin_prefill(*args, **kwargs)

    def generate(self, *args, **kwargs):
        time.sleep(self.block_s)
        if self.fails_at_block is not None:
            self.fails_at_block -= 1
            if self.fails_at_block < 0:
                self.fails_at_block = None
                raise RuntimeError("out of memory")
        return super().generate(*args, **kwargs)


@pytest.fixture
def broken():
    engine, weights = live.engine_and_weights()
    engine = Broken(engine)
    with live.running(engine=engine, weights=weights) as server:
        yield server, engine


def test_an_engine_error_fails_those_that_ran_and_the_server_lives_on(broken):
    server, engine = broken
    long = ask_for_long(server)
    engine.fails_at_block = 2
    status, _, answer = server.post(CHAT, long)
    assert status == 500
    assert answer["error"]["message"] == "The engine failed: RuntimeError: out of memory"
    assert server.post(CHAT, ask())[0] == 200
    assert server.scheduler.metrics.engine_errors._value.get() == 1
    server.check_no_leak()
    assert b"loong_pages 0.0" in server.scheduler.metrics.text()  # nor those of the one that failed


def test_what_had_not_begun_is_done_once_more(broken):
    server, engine = broken
    wanted = server.post(CHAT, ask(seed=1))[2]["choices"]
    engine.failures = ["begin_prefill"]
    assert server.post(CHAT, ask(seed=1))[2]["choices"] == wanted
    engine.failures = ["begin_prefill", "begin_prefill"]  # once more, and no more
    assert server.post(CHAT, ask())[0] == 500
    assert server.post(CHAT, ask())[0] == 200
    server.check_no_leak()


def test_a_replica_that_cannot_be_built_is_tried_again(broken):
    server, engine = broken
    engine.failures = ["begin_prefill", "init_decode_state"]
    assert server.post(CHAT, ask())[0] == 500
    wait_until(lambda: server.http("GET", "/health")[0] == 200)
    assert server.post(CHAT, ask())[0] == 200
    server.check_no_leak()


def test_the_end_waits_for_what_runs():
    with live.running() as server:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(server.post(CHAT, ask(n=4))))
        thread.start()
        wait_until(lambda: server.scheduler.status().num_requests == 1)
    thread.join(10)
    assert answers[0][0] == 200
    assert server.all_ended


def test_the_end_does_not_wait_for_ever():
    limits = dataclasses.replace(live.LIMITS, drain_timeout_s=0.2)
    engine, weights = live.engine_and_weights()
    slow = Broken(engine)
    with live.running(limits=limits, engine=slow, weights=weights) as server:
        long, answers = ask_for_long(server), []
        slow.block_s = 0.1
        call = lambda: answers.append(server.post(CHAT, long))  # noqa: E731
        thread = threading.Thread(target=call)
        thread.start()
        wait_until(lambda: server.scheduler.status().num_running == 1)
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 20
    thread.join(10)
    ((status, _, answer),) = answers
    assert status == 503
    assert "stopped before the request was done" in answer["error"]["message"]
    assert not server.all_ended


def test_a_server_that_stops_takes_nothing_new():
    with live.running() as server:
        server.scheduler.stop(1.0)
        assert server.http("GET", "/health")[0] == 503
        assert server.post(CHAT, ask())[0] == 503


def test_more_clients_than_slots_all_get_their_answers():
    with live.running() as server:

        def choices(seed):
            return server.post(CHAT, ask(seed=seed, n=2))[2]["choices"]

        wanted = list(map(choices, range(10)))
        with ThreadPoolExecutor(10) as pool:
            assert list(pool.map(choices, range(10))) == wanted
        server.check_no_leak()
